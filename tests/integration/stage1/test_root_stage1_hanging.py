"""Entrypoints of running pods that hang, fail, or are killed: each is given up after its time, with all that it
has started, in one clear line; its pod goes on, and can be used (Z4, Z6)."""

import os
import signal
import threading
from pathlib import Path

import pytest
from kurma_stager_rkt import entrypoints

from kurma_core.errors import StagerError
from kurma_core.hookspecs import Stdio
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.linux.mounts import mounts_at_or_below
from kurma_core.value import replace
from tests.integration.pods.support import until
from tests.integration.stage1.conftest import OF_APPS
from tests.integration.stage1.driven import driven

pytestmark = pytest.mark.root

LONG = "ln -s ready stage1/rootfs/rkt/supervisor-status; echo $$ > pid; exec sleep 1000\n"
#: What an entrypoint does, as the file of its name in the pod's directory says; without one, what it is to do.
OBEY = """how=$(cat {name} 2>/dev/null)
if test -n "$how"; then (trap '' TERM; exec sleep 1000) & fi
case $how in
hangs) echo half; trap '' TERM; touch hanging; while :; do sleep 1; done;;
fails) echo no; echo luck >&2; exit 4;;
killed) echo half; kill -KILL $$;;
esac
"""
WELL = {
    "app/stop": "echo 5 > stage1/rootfs/rkt/status/${1#--app=}\n",
    # It leaves the app's process behind, as small stage1s do.
    "app/start": "sleep 1000 > /dev/null 2>&1 &\n",
}
SCRIPTS = {
    "run": LONG,
    "gc": "exit 0\n",
    "enter": 'exec "$@"\n',
    **{name: OBEY.format(name=name.replace("/", "-")) + WELL.get(name, "") for name in OF_APPS},
}
HOWS = {
    "hangs": "did not end within 1 s: half",
    "fails": "ended with status 4: no / luck",
    "killed": "ended with status 137: half",
}


class Pod:
    """A mutable pod that runs; :attr:`app` is one that it may be given."""

    def __init__(self, found, pod, null):
        self.driver, self.cgroup = found.driver, CgroupTree(pod.cgroup)
        self.app = replace(pod, keep=True)
        self.empty = replace(self.app, apps=(), manifest=replace(pod.manifest, apps=()))
        self.null = null
        self.driver.prepare(self.empty)
        self.running = self.driver.start(self.empty, null)
        assert self.running.wait_running(20)
        (self.place,) = Path(found.state, "pods/run").iterdir()

    def let(self, name, how):
        """From now on the entrypoint does that; None: what it is to do."""
        file = self.place / name.replace("/", "-")
        if how is None:
            file.unlink()
        else:
            file.write_text(how)

    def do(self, verb):
        directory = self.app.directory
        if verb == "add":
            self.driver.add_app(self.app, self.running)
        elif verb == "rm":
            self.driver.remove_app(directory, self.running, "app", ())
        elif verb == "start":
            self.driver.start_app(directory, self.running, "app", 1)
        else:
            # Its own time, and some.
            self.driver.stop_app(directory, self.running, "app", None)

    def status(self):
        app = self.driver.status(self.app.directory, self.running)["app"]
        return app.started_at is not None, app.exited

    def pids(self):
        return set(self.cgroup.pids())

    def files(self):
        return {str(path.relative_to(self.place)) for path in self.place.rglob("*") if path.name == "app"}

    def end(self):
        self.driver.stop(self.app.directory, self.running, force=True)
        self.driver.cleanup(self.app.directory, self.app.cgroup)
        assert self.running.wait(20) is not None
        assert self.cgroup.pids() == []
        self.driver.discard(self.app.directory)
        self.running.close()


@pytest.fixture
def mutable(tmp_path, pod, null):
    with driven(tmp_path, SCRIPTS, config={"patience": 1}, version=5) as found:
        made = Pod(found, pod, null)
        yield made
        made.end()
        assert not mounts_at_or_below(str(tmp_path))


@pytest.mark.parametrize("how", HOWS)
def test_an_app_entrypoint_that(mutable, how):
    """Each in the life of one app; what it had started goes with it, and done again, all is well."""
    alone, bare = mutable.pids(), mutable.files()
    for verb, before in (("add", None), ("start", (False, False)), ("stop", (True, False)), ("rm", (True, True))):
        name = f"app/{verb}"
        there = mutable.pids()
        mutable.let(name, how)
        with pytest.raises(StagerError) as raised:
            mutable.do(verb)
        assert raised.value.message == f"stage1 image example.com/stage1: entrypoint {name} {HOWS[how]}"
        assert mutable.running.alive()
        assert mutable.pids() == there, name
        if before is None:
            # Undone by whoever has asked for it.
            mutable.do("rm")
            assert mutable.files() == bare
        else:
            assert mutable.status() == before, name
        mutable.let(name, None)
        mutable.do(verb)
    assert (mutable.pids(), mutable.files()) == (alone, bare)
    assert not CgroupTree(f"{mutable.app.cgroup}/apps").exists()


@pytest.mark.parametrize("verb", ["add", "rm"])
def test_whose_caller_is_killed_while_it_hangs(mutable, tmp_path, verb):
    """Whoever comes by takes the app away, and what hangs still."""
    alone, bare = mutable.pids(), mutable.files()
    if verb == "rm":
        mutable.do("add")
    mutable.let(f"app/{verb}", "hangs")
    caller = os.fork()
    if not caller:
        try:
            entrypoints.finish = lambda started, timeout: signal.pause()
            with driven(tmp_path, SCRIPTS, version=5) as found:
                mutable.driver = found.driver
                mutable.do(verb)
        finally:
            os._exit(1)
    until((mutable.place / "hanging").exists)
    os.kill(caller, signal.SIGKILL)
    os.waitpid(caller, 0)
    mutable.let(f"app/{verb}", None)
    mutable.do("rm")
    assert (mutable.pids(), mutable.files()) == (alone, bare)
    mutable.do("add")
    mutable.do("rm")


def attached(mutable, null, signals=-1):
    stdio = Stdio(null.stdin, null.stdout, null.stderr, signals=signals)
    return mutable.driver.call(mutable.app.directory, mutable.running, "attach", ("app",), stdio)


def test_an_attach_entrypoint(mutable, null, monkeypatch):
    """That hangs is asked to end once its caller has gone, and killed a moment later."""
    mutable.do("add")
    alone = mutable.pids()
    for how, code in (("fails", 4), ("killed", 137)):
        mutable.let("attach", how)
        assert attached(mutable, null) == code
    monkeypatch.setattr(entrypoints, "_ALONE", 0.5)
    mutable.let("attach", "hangs")
    read, write = os.pipe()

    def leave():
        until((mutable.place / "hanging").exists)
        os.close(write)

    caller = threading.Thread(target=leave)
    caller.start()
    assert attached(mutable, null, read) == 137
    caller.join()
    os.close(read)
    assert mutable.pids() == alone
    mutable.let("attach", None)
    assert attached(mutable, null) == 0
    assert mutable.running.alive()
    mutable.do("rm")
