"""Whoever makes, starts, ends or removes a pod under a stage1 is killed (SIGKILL) before each change; what
that leaves, whoever comes by takes away, in rkt's directories and among the mounts (Z2, Z6)."""

import json
import os
import shutil
import signal
import sys

import pytest
from kurma_stager_rkt import entrypoints
from kurma_stager_rkt.driver import Stage1Stager
from kurma_stager_rkt.pod_directories import Places
from kurma_testing.stagers import pod_setup

from kurma_core.linux import mounts
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.linux.mounts import mounts_at_or_below
from kurma_core.models.streams import Stdio
from tests.integration.stage1.driven import driven
from tests.kit.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.full]

#: A tree of mounts is left behind by stage1, one of the host's, and another by its gc entrypoint.
RUN = """mkdir stage1/rootfs/dev; mount --rbind {host} stage1/rootfs/dev
mkdir made; mount -t tmpfs tmpfs made; mkdir made/below; mount -t tmpfs tmpfs made/below
echo $$ > pid; echo 7 > stage1/rootfs/rkt/status/app; exit 7
"""
GC = "mkdir -p late; mount -t tmpfs tmpfs late; test -e stage1/rootfs/rkt/status/app || exit 9\n"
#: By these, Python says that something on disk is about to be changed.
CHANGES = {f"os.{name}" for name in ("rename", "mkdir", "remove", "rmdir", "link", "chmod", "chown")}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
UUID = "146d7cef-fbf6-41da-a2f8-eba218597f9c"
MOUNTING = ("mount", "umount2", "move_mount", "fsmount", "mount_setattr")


class Striking:
    """Counts what this process changes while it is in the driver, and kills it before the step of that number.
    Changes of one kind, one after the other, are one step; ``inside`` of it, it is killed before the third."""

    def __init__(self, number=0, inside=False):
        self.steps = []
        self._number = number
        self._wanted = 3 if inside else 1
        self._within = None

    def install(self):
        for name in ("prepare", "start", "cleanup", "discard"):
            setattr(Stage1Stager, name, self._watched(getattr(Stage1Stager, name), name))
        for name in ("create", "kill", "remove"):
            # Whatever it does there is one step: other tests strike that.
            setattr(CgroupTree, name, self._watched(getattr(CgroupTree, name), None))
        mounts.syscall = self._mounting(mounts.syscall)
        entrypoints.begin = self._called(entrypoints.begin)
        sys.addaudithook(self._hear)

    def _hear(self, event, args):
        if event in CHANGES or (event == "open" and isinstance(args[2], int) and args[2] & WRITING):
            self._step(event)

    def _step(self, what):
        if self._within is None:
            return
        if self.steps and self.steps[-1][0] == f"{self._within} {what}":
            self.steps[-1][1] += 1
        else:
            self.steps.append([f"{self._within} {what}", 1])
        if (len(self.steps), self.steps[-1][1]) == (self._number, self._wanted):
            os.kill(os.getpid(), signal.SIGKILL)

    def _watched(self, function, name):
        def watched(*args, **kwargs):
            if name is None:
                self._step(f"cgroup {function.__name__}")
            before, self._within = self._within, name
            try:
                return function(*args, **kwargs)
            finally:
                self._within = before

        return watched

    def _mounting(self, function):
        def counted(name, *args, **kwargs):
            if name in MOUNTING:
                self._step(name)
            return function(name, *args, **kwargs)

        return counted

    def _called(self, function):
        def called(*args, **kwargs):
            self._step("entrypoint")
            found = function(*args, **kwargs)
            self._step("entrypoint runs")
            return found

        return called


def life(driver, pod):
    """All of a pod's, from its making to its removal."""
    null = os.open("/dev/null", os.O_RDWR)
    CgroupTree(pod.cgroup).create()
    driver.prepare(pod)
    running = driver.start(pod, Stdio(null, null, null))
    assert running.wait(20) == 7
    driver.cleanup(pod.directory, pod.cgroup)
    assert driver.status(pod.directory, None)["app"].exit_code == 7
    assert driver.discard(pod.directory) == ()


def in_a_fork(function):
    """:returns: how that ended."""
    pid = os.fork()
    if not pid:
        code = 70
        try:
            function()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def struck(place, pod, run, number, inside=False):
    """Whether somebody who does all of it was killed at that step. If not, he has told which ones there are."""
    told = place / "steps"

    def do():
        with driven(place, {"run": run, "gc": GC}, config={"storage": "overlay"}) as made:
            striking = Striking(number, inside)
            striking.install()
            life(made.driver, pod)
            told.write_text(json.dumps(striking.steps))

    code = in_a_fork(do)
    assert code in (0, -signal.SIGKILL)
    return code != 0


def all_freed(found, pod):
    """What comes by next: the pod's own removal, or, its directory gone, a collection of garbage."""
    uuid = os.path.basename(pod.directory)
    if os.path.exists(pod.directory):
        found.driver.cleanup(pod.directory, pod.cgroup)
        return found.driver.discard(pod.directory)
    if uuid not in found.images.remains():
        return ()
    # Its stage1 may just have been started.
    until(lambda: not Places.of(found.context).held(uuid), "the end of its stage1")
    return found.images.discard_gone(uuid)


#: Told of a pod whose stage1 was not wholly there yet, or not any more; or did not get to its end.
NOT_RUN = ("its gc entrypoint was not run: ", "its gc entrypoint ended with status 9")


def test_killed_before_each_step(tmp_path, stacked):
    run = RUN.format(host=stacked.path)
    (tmp_path / "app/bin").mkdir(parents=True)
    pod = pod_setup(tmp_path / UUID, tmp_path / "app", ("/bin/true",))
    assert not struck(tmp_path, pod, run, 0)
    done = json.loads((tmp_path / "steps").read_text())
    steps = [name for name, _ in done]
    for name in (
        "prepare os.rename",
        "start move_mount",
        "cleanup mount_setattr",
        "cleanup umount2",
        "discard umount2",
        "discard os.rmdir",
    ):
        assert name in steps, "it does what is to be struck"
    places = [(number, False) for number in range(1, len(done) + 1)]
    places += [(number, True) for number, (_, many) in enumerate(done, 1) if many > 2]
    with driven(tmp_path, {"run": run, "gc": GC}) as found:
        for turn, (number, inside) in enumerate(places):
            os.makedirs(f"{pod.directory}/pod", exist_ok=True)
            was = steps[number - 1]
            if not struck(tmp_path, pod, run, number, inside):
                assert was.startswith("discard os.r"), f"{was} is done each time"
                continue
            if turn % 2:
                shutil.rmtree(pod.directory)
            # From its end until it is removed, it is whole.
            whole = steps.index("start entrypoint runs") + 1 < number <= steps.index("discard umount2") + 1
            for told in all_freed(found, pod):
                assert not whole, (was, told)
                assert told.startswith(NOT_RUN), (was, told)
            assert found.images.remains() == set(), was
            assert not mounts_at_or_below(str(tmp_path)), was
            assert stacked.whole(), was
            for name in (pod.cgroup, f"{pod.cgroup}-gc"):
                assert CgroupTree(name).pids() == [], was
            assert not CgroupTree(f"{pod.cgroup}-gc").exists(), was
            shutil.rmtree(pod.directory, ignore_errors=True)
    CgroupTree(pod.cgroup).remove()
