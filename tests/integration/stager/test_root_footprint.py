"""What stands for an idle pod: how much memory it keeps, that it sleeps, that nothing of the stager is copied."""

import os
import time

import pytest

pytestmark = [pytest.mark.root, pytest.mark.full]

#: Bytes of private memory of all that stands for an idle pod of one app, the app aside. 2.5 MB are files of the
#: interpreter, which no other process has mapped here: beside other pods, a pod keeps 4 MB.
MOST = 6_800_000


def sleeper():
    return {"exec": ["/bin/sleep", "1000"], "user": "0", "group": "0"}


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


def standing(pod):
    """The stager and all below it, but the apps."""
    found = [pod.process.pid]
    for one in found:
        found += children(one)
    apps = {app["pid"] for app in pod.document()["apps"].values()}
    return [pid for pid in found if pid not in apps]


def private(pid):
    """Bytes that are this process's alone, pages of files included."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(int(line.split()[1]) << 10 for line in file if line.startswith("Private_"))


def of_program(pid, field):
    """Bytes of the interpreter's own file in this process."""
    total, counts = 0, False
    with open(f"/proc/{pid}/smaps") as file:
        for line in file:
            words = line.split()
            if "-" in words[0]:
                counts = words[-1].endswith("/bin/python3")
            elif counts and words[0] == f"{field}:":
                total += int(words[1]) << 10
    return total


def shared(pid):
    """Those of it that others have mapped as well; the disk may not have all of them yet, which is "dirty"."""
    return of_program(pid, "Shared_Clean") + of_program(pid, "Shared_Dirty")


def times_run(pid):
    """How often it was given a processor, and how often it went to sleep by itself."""
    with open(f"/proc/{pid}/schedstat") as file, open(f"/proc/{pid}/status") as status:
        slept = [int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt_switches")]
        return int(file.read().split()[2]), *slept


def still(pids):
    """Waits until all is set up, and none of them has run for a while."""
    deadline = time.monotonic() + 20
    while True:
        before = [times_run(pid) for pid in pids]
        time.sleep(0.2)
        if before == [times_run(pid) for pid in pids]:
            return before
        assert time.monotonic() < deadline, "they do not come to rest"


def test_an_idle_pod_keeps_little_memory(pods):
    """Of a pod that is alone on its machine: what others share with it is counted as its own."""
    pod = pods({"main": sleeper()}).started()
    pids = standing(pod)
    still(pids)
    assert len(pids) == 2, "the stager, and PID 1: what else stands for a pod counts as well"
    kept = {pid: private(pid) for pid in pids}
    assert min(kept.values()) <= 16 << 10, "PID 1 is a page of machine code"
    assert sum(kept.values()) <= MOST, f"{kept}: see `./dev bench memory` and what the supervisor imports"


def test_an_idle_pod_sleeps(pods):
    """Three seconds without one wake-up of anything that stands for it, nor of the app."""
    pod = pods({"main": sleeper()}).started()
    pids = [*standing(pod), pod.app()["pid"]]
    before = still(pids)
    time.sleep(3)
    assert [times_run(pid) for pid in pids] == before


def test_nothing_of_the_stager_is_copied(pods, stager_tree):
    """Neither on the disk, nor in memory: two pods run from the same pages of the same stored files."""
    first = pods({"main": sleeper()}).started()
    still(standing(first))
    second = pods({"main": sleeper()}).started()
    still(standing(second))
    # What the interpreter's own file takes of memory more is what it has written to: its data.
    assert shared(second.process.pid) > of_program(second.process.pid, "Rss") / 2
    for pod in (first, second):
        pid = pod.process.pid
        alone = of_program(pid, "Rss") - of_program(pid, "Anonymous") - shared(pid)
        assert alone < shared(pid) / 4
    for pod in (first, second):
        root = os.statvfs(f"/proc/{pod.process.pid}/root/")
        assert (root.f_blocks - root.f_bfree) * root.f_frsize < 128 << 10  # what is written to the root, in memory
        size = 0
        for directory, _, names in os.walk(pod.directory):
            size += sum(os.lstat(f"{directory}/{name}").st_blocks << 9 for name in names)
        assert size < 128 << 10
    with open(f"{stager_tree.path}/opt/stager/bin/python3", "rb") as stored:
        for pod in (first, second):
            inside = os.stat(f"/proc/{pod.process.pid}/root/opt/stager/bin/python3")
            assert inside.st_ino == os.fstat(stored.fileno()).st_ino
