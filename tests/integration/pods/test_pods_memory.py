"""What stands for an idle pod keeps little memory, whatever the pod has and whatever it has done before.

Measured as in ``./dev bench memory``, beside another idle pod: the pages of the interpreter's own files, which the
kernel counts as private while one process alone has them mapped, are the image's, and not a cost of each pod.
"""

import contextlib
import os
import signal
import time

import pytest

from kurma_core.linux.cgroups import CgroupTree
from kurma_core.models.streams import Stdio
from tests.kit.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.full]

#: Bytes of private memory of all that stands for an idle pod of one app, the app aside.
MOST = 5_000_000
#: Seconds until a supervisor that did something lets go of what it took.
PATIENCE = 15


@pytest.fixture(autouse=True)
def neighbour(house):
    """Another pod; it is idle."""
    with house.running("echo up; exec sleep 1000") as pod:
        until(lambda: "up" in house.log(pod), "the neighbour's app")
        yield pod


def below(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


def standing(pod, app="main"):
    """The stager and all below it, but the app: nobody is asked, for that would be work."""
    found = [pod.stager.pid]
    for one in found:
        found += below(one)
    apps = CgroupTree(f"kurma/{pod.uuid}/app-{app}").pids()
    return [pid for pid in found if pid not in apps]


def private(pid):
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(int(line.split()[1]) << 10 for line in file if line.startswith("Private_"))


def assert_small(pod, app="main"):
    # Also what an app has just ended is seen below the stager for a moment.
    pids = until(lambda: len(found := standing(pod, app)) == 2 and found, "the stager and PID 1 alone")
    kept = {}

    def small():
        kept.update({pid: private(pid) for pid in pids})
        return sum(kept.values()) <= MOST

    try:
        until(small, "little memory", PATIENCE)
    except AssertionError:
        pytest.fail(f"{kept}: see what the supervisor imports, and when it rests")


@contextlib.contextmanager
def running(house, script, stdin=None, **options):
    """A pod with one app, which gets a standard input or a terminal."""
    record = house.client.prepare(house.request(script, **options))
    null = os.open("/dev/null", os.O_RDWR)
    try:
        pod = house.client.here.pods.start(record.uuid, Stdio(null if stdin is None else stdin, null, null))
    finally:
        os.close(null)
    try:
        yield pod
    finally:
        pod.stop(force=True)
        pod.finish()
        pod.close()


def test_with_a_terminal(house):
    with running(house, "echo up; exec sleep 1000", terminal="main") as pod:
        until(lambda: "up" in house.log(pod), "the app")
        assert_small(pod)


def test_with_a_standard_input(house):
    """A megabyte has gone through it, and through the log."""
    read, write = os.pipe()
    with running(house, "cat; exec sleep 1000", stdin=read, interactive="main") as pod:
        os.close(read)
        for _ in range(16):
            os.write(write, b"x" * 65535 + b"\n")
        os.close(write)
        until(lambda: os.path.getsize(house.path(pod, "pod/logs/main.log")) > 1 << 20, "the log")
        assert_small(pod)


def test_after_many_lines_and_somebody_attached(house):
    """40 MB in short lines."""
    script = (
        "yes a line of no great length, as there are many | head -c 1000000 > /tmp/lines; i=0; "
        "while [ $i -lt 40 ]; do cat /tmp/lines; i=$((i+1)); done; echo over; exec sleep 1000"
    )
    with house.running(script) as pod:
        log = house.path(pod, "pod/logs/main.log")
        until(lambda: b" over" in _tail(log), "the log", 60)
        for _ in range(3):
            _attach_and_leave(house, pod)
        assert_small(pod)


def test_after_an_app_was_added(house):
    """To a pod without apps; it was stopped and started again, entered, and asked about."""
    with house.running({}) as pod, house.connect() as client:
        client.app_add(pod.uuid, house.request({"one": "echo up; exec sleep 1000"}), start=True)
        for _ in range(3):
            client.app_stop(pod.uuid, "one")
            client.app_start(pod.uuid, "one")
        assert house.enter(pod.uuid, "true", app="one")[0] == 0
        client.pod(pod.uuid)
        assert_small(pod, "one")


def _tail(path):
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:  # it may just be turned
        file.seek(max(0, os.fstat(file.fileno()).st_size - 200))
        return file.read()
    return b""


def _attach_and_leave(house, pod):
    """By a process of its own, killed once its call-in is there."""
    leaver = os.fork()
    if leaver == 0:
        try:
            null = os.open("/dev/null", os.O_RDWR)
            with house.connect() as client:
                client.attach(pod.uuid, "main", Stdio(null, null, null))
        finally:
            os._exit(0)
    tree = CgroupTree(f"kurma/{pod.uuid}/callins")
    until(lambda: tree.exists() and tree.pids(), "who is attached")
    time.sleep(0.2)
    os.kill(leaver, signal.SIGKILL)
    os.waitpid(leaver, 0)
    until(lambda: not tree.pids(), "the end of the call-in")
