"""Entrypoints of running pods that hang, fail, or are killed: each is given up after its time, with all that it
has started, in one clear line; its pod goes on, and can be used (Z4, Z6)."""

import os
import re
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from kurma_stager_rkt import entrypoints
from kurma_stager_rkt.records import NOTE, Note

from kurma_core.errors import StagerError
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.linux.mounts import mounts_at_or_below
from kurma_core.models.streams import Stdio
from kurma_core.value import replace
from tests.integration.stage1 import test_root_stage1_mutable
from tests.integration.stage1.conftest import OF_APPS
from tests.integration.stage1.driven import driven
from tests.kit.command import KURMA
from tests.kit.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.full]

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
#: Seconds that no entrypoint needs which ends.
PLENTY = 300
SCRIPTS = {
    "run": LONG,
    "gc": "exit 0\n",
    "enter": 'shift 3; exec "$@"\n',
    **{name: OBEY.format(name=name.replace("/", "-")) + WELL.get(name, "") for name in OF_APPS},
}
HOWS = {
    # Where much is done, it may not have come to saying anything.
    "hangs": "did not end within 1 s(: half)?",
    "fails": "ended with status 4: no / luck",
    "killed": "ended with status 137: half",
}


def give_time(directory, how):
    """Of the pod in that directory of Kurma's: a second for entrypoints that hang, and plenty for all others."""
    replace(Note.read(directory), patience=1 if how == "hangs" else PLENTY).write(f"{directory}/{NOTE}")


class Pod:
    """A mutable pod that runs; :attr:`app` is one that it may be given."""

    def __init__(self, found, pod, null):
        self.driver, self.cgroup = found.driver, CgroupTree(pod.cgroup)
        self.app = replace(pod, keep=True)
        self.empty = replace(self.app, apps=(), manifest=replace(pod.manifest, apps=()))
        self.how = None
        self.driver.prepare(self.empty)
        self.running = self.driver.start(self.empty, null)
        assert self.running.wait_running(20)
        (self.place,) = Path(found.state, "pods/run").iterdir()

    def let(self, name, how):
        """From now on the entrypoint does that; None: what it is to do."""
        self.how = how
        give_time(self.app.directory, how)
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
            self.driver.start_app(directory, self.running, "app", 1 if self.how == "hangs" else PLENTY)
        else:
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
    with driven(tmp_path, SCRIPTS, version=5) as found:
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
        told = f"stage1 image example.com/stage1: entrypoint {name} {HOWS[how]}"
        assert re.fullmatch(told, raised.value.message)
        assert mutable.running.alive()
        assert mutable.pids() == there, name
        if before is not None:
            assert mutable.status() == before, name
        mutable.let(name, None)
        if before is None:
            # Undone by whoever has asked for it.
            mutable.do("rm")
            assert mutable.files() == bare
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
            finish = entrypoints.finish
            entrypoints.finish = lambda started, timeout: finish(started, PLENTY)
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


@pytest.fixture(scope="module")
def hanging(stage1s):
    """The name of a stager's image, and the two directories of its mutable pod."""
    scripts = {name: script for name, script in SCRIPTS.items() if name != "run"}
    stage1 = stage1s.stage1(5, test_root_stage1_mutable.LONG, ("run", "enter", "gc", *OF_APPS), scripts=scripts)
    stage1s.configure(stagers={"slow": {"driver": "rkt", "image": stage1.path, "config": {"patience": PLENTY}}})
    with test_root_stage1_mutable.empty_pod(stage1s, "slow", "hangs") as pod:
        name = f"stage1 image example.com/{Path(stage1.path).stem}"
        yield name, stage1s.pods / "run" / pod["uuid"], stage1s.directory / "state/pods" / pod["uuid"]


def test_what_is_said_of_one_that_hangs(stage1s, hanging):
    """One line, exit code 125; afterwards, everything goes as ever."""
    image, place, directory = hanging

    def given_up(verb, *words):
        name = f"app/{verb}"
        (place / f"app-{verb}").write_text("hangs")
        give_time(directory, "hangs")
        done = stage1s("app", verb, "hangs", *words)
        (place / f"app-{verb}").unlink()
        give_time(directory, None)
        if verb == "add":  # its undoing has hardly had time
            stage1s.out("gc")
        why = f"kurma: {image}: entrypoint {name} {HOWS['hangs']}\n"
        assert (done.returncode, done.stdout) == (125, "")
        assert re.search(f"^{why}", done.stderr, re.MULTILINE), done.stderr

    given_up("add", "--name", "one", stage1s.image)
    assert stage1s.show("hangs")["apps"] == {}
    assert stage1s("app", "add", "hangs", "--name", "one", stage1s.image).returncode == 0
    given_up("rm", "one")
    assert list(stage1s.show("hangs")["apps"]) == ["one"]
    assert stage1s("app", "start", "hangs", "one").returncode == 0
    given_up("stop", "one")
    app = stage1s.show("hangs")["apps"]["one"]
    assert (app["exited"], app["startedAt"] is not None) == (False, True)
    assert stage1s("enter", "hangs/one", "--", "/bin/true").returncode == 0
    assert stage1s("app", "stop", "hangs", "one").returncode == 0
    assert stage1s("app", "rm", "hangs", "one").returncode == 0


def test_who_is_attached_goes_away(stage1s, hanging):
    """Of whom kurmad has heard; an entrypoint that hangs goes, too."""
    _, place, _ = hanging
    assert stage1s("app", "add", "hangs", "--start", "--name", "two", stage1s.image).returncode == 0
    (place / "attach").write_text("hangs")
    null = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    tree = CgroupTree(f"kurma/{place.name}/attached")

    def attach():
        (place / "hanging").unlink(missing_ok=True)
        found = subprocess.Popen([*KURMA, "attach", "hangs/two"], env=stage1s.environment, **null)
        until((place / "hanging").exists)
        return found

    with open(stage1s.directory / "kurmad.log", "ab") as stream:
        daemon = subprocess.Popen([*KURMA, "daemon", "run"], env=stage1s.environment, stderr=stream)
    try:
        until((stage1s.directory / "state/run/kurmad.sock").exists)
        command = attach()
        assert tree.pids() != []
        command.kill()
        command.wait()
        until(lambda: not tree.pids(), "the end of what it had attached")
    finally:
        daemon.terminate()
        assert daemon.wait(20) == 0
    (place / "attach").unlink()
    assert stage1s("attach", "hangs/two").returncode == 0
    assert stage1s("app", "rm", "--force", "hangs", "two").returncode == 0
