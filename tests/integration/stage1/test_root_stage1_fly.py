"""Pods under a stage1 that behaves as the unmodified stage1-fly of rkt 1.30 does, on a host whose mounts are
shared and lie upon each other, as a usual host's do (Z4 to Z8)."""

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from kurma_core.linux import mounts
from tests.integration.stage1.conftest import PREFIX
from tests.integration.stage1.test_root_stage1_far import listens
from tests.kit.command import KURMA
from tests.kit.images import archive, busybox_root
from tests.kit.waiting import until

pytestmark = pytest.mark.root

#: Of a usual host: all is shared, and /dev/shm and /dev/pts are mounted twice.
HOST = """mount --make-rshared /
for place in /dev/shm /dev/pts; do mount -t tmpfs tmpfs $place; mount -t tmpfs tmpfs $place; done
echo made; exec sleep 1000000
"""


class FlyHost:
    """``kurma`` in a mount namespace that stands for a host's."""

    def __init__(self, kurma, stager):
        self.kurma, self.stager = kurma, stager
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", HOST], stdout=subprocess.PIPE, text=True
        )
        assert self._holder.stdout.readline() == "made\n"
        self._whole = self._mounts()

    def close(self):
        self._holder.kill()
        self._holder.communicate()

    def _mounts(self):
        return [(one.id, one.target) for one in mounts.mountinfo(self._holder.pid)]

    def __call__(self, *words):
        return subprocess.run(self._command(words), capture_output=True, text=True, **self._more())

    def popen(self, *words):
        return subprocess.Popen(
            self._command(words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, **self._more()
        )

    def _command(self, words):
        return ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", "--wdns=/", *KURMA, *words]

    def _more(self):
        return {"env": self.kurma.environment, "stdin": subprocess.DEVNULL}

    def whole(self):
        """Whether the host has the mounts that it had, and no other."""
        return self._mounts() == self._whole

    @contextlib.contextmanager
    def serving(self):
        daemon = self.popen("daemon", "run")
        try:
            until(lambda: listens(str(self.kurma.directory / "state/run/kurmad.sock")), "kurmad")
            yield
        finally:
            daemon.terminate()
            daemon.communicate(timeout=20)


@pytest.fixture(scope="module")
def bare(stage1s):
    """An image that has no /etc."""
    root = busybox_root(str(stage1s.directory / "bare"))
    shutil.rmtree(f"{root}/etc")
    command = ["/bin/sh", "-c", "echo of the pod > /written; pwd; test -c /dev/null && exit 7"]
    app = {"exec": command, "user": "0", "group": "0"}
    path = archive(root, str(stage1s.directory / "bare.aci"), "example.com/bare", app=app)
    stage1s.out("image", "fetch", path)
    return path


@pytest.fixture
def fly(stage1s):
    path = str(stage1s.directory / "fly.aci")
    if not os.path.exists(path):
        names = ("run", "enter", "gc", "stop")
        annotations = [{"name": PREFIX + name, "value": f"/{name}"} for name in names]
        annotations.append({"name": PREFIX + "interface-version", "value": "5"})
        archive(str(Path(__file__).parent / "fly"), path, "coreos.com/rkt/stage1-fly", annotations=annotations)
    stage1s.pin(path)
    host = FlyHost(stage1s, f"rkt:{path}")
    yield host
    host.close()


def test_a_pod_of_stage1_fly(fly, bare):
    """Run, shown, and removed, with the host's mounts as they were; its one app ends as the pod does."""
    words = ("run", "--stager", fly.stager, "--net", "host")
    done = fly(*words, "--name", "ends", bare)
    assert (done.returncode, done.stdout) == (7, "/\n"), done.stderr
    assert fly.whole()
    app = fly.kurma.show("ends")["apps"]["bare"]
    assert (app["exited"], app["exitReason"], app["exitCode"]) == (True, "exited", 7)
    assert app["startedAt"] is not None
    assert "exited" in fly("status", "ends").stdout
    assert "stopped" in fly("list").stdout
    removed = fly("rm", "ends")
    # It was called as rkt does, and found what the app had written.
    assert removed.returncode == 0
    assert "its gc entrypoint ended with status 5: of the pod / told" in removed.stderr
    assert fly.whole()
    # What it cannot do fails the start, in its own words.
    failed = fly(*words, "--name", "asks", "--dns", "192.0.2.1", bare)
    assert failed.returncode == 254
    assert "run: can't copy: " in failed.stderr
    assert fly.whole()
    assert fly("rm", "asks").returncode == 0
    assert fly.whole()


@pytest.mark.full
def test_one_that_runs(fly, bare):
    """In front and in the background: it is entered, and stopped; what its entrypoints print is seen."""
    words = ("run", "--stager", fly.stager, "--net", "host", "--exec", "/bin/sh")
    script = (bare, "--", "-c", "trap 'exit 3' TERM; echo ready > /ready; while :; do sleep 0.1; done")
    with fly.serving():
        for name, front in (("front", True), ("behind", False)):
            if front:
                command = fly.popen(*words, "--name", name, *script)
            else:
                done = fly(*words, "-d", "--name", name, *script)
                assert done.returncode == 0, done.stderr
            until(lambda name=name: fly("enter", name, "--", "/bin/test", "-e", "/ready").returncode == 0)
            assert "running" in fly("status", name).stdout
            entered = fly(
                "enter", name, "--", "/bin/sh", "-c", "ls /written /dev/null; echo $AC_APP_NAME $HOME; exit 9"
            )
            assert (entered.returncode, entered.stdout) == (9, "/dev/null\nbare /root\n"), entered.stderr
            stopped = fly("stop", name)
            assert stopped.returncode == 0
            assert "its stop entrypoint said: stopping process " in stopped.stderr
            if front:
                assert command.wait(20) == 3
                command.communicate()
            app = fly.kurma.show(name)["apps"]["bare"]
            assert (app["exited"], app["exitReason"], app["exitCode"]) == (True, "exited", 3)
            assert fly("rm", name).returncode == 0
            assert fly.whole()
