import _thread
import os
import signal
import subprocess
import sys

import pytest

from kurma_core.linux import process


def test_identity_survives_json_and_tells_the_dead():
    child = subprocess.Popen(["sleep", "60"])
    identity = process.ProcessIdentity.current(child.pid)
    again = process.ProcessIdentity.from_json(identity.to_json())
    assert again == identity
    assert again.alive()
    assert not process.ProcessIdentity(child.pid, identity.start_time + 1, identity.boot_id).alive()
    assert not process.ProcessIdentity(child.pid, identity.start_time, "another boot").alive()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not again.alive(), "a zombie is dead"
    child.wait()
    assert not again.alive()
    assert again.open() is None


@pytest.mark.parametrize("value", [{}, {"pid": "1", "startTime": 1, "bootId": ""}, {"pid": 1, "startTime": 1}])
def test_identity_of_another_shape(value):
    with pytest.raises(ValueError, match="not a process identity"):
        process.ProcessIdentity.from_json(value)


@pytest.mark.parametrize(("script", "expected"), [("exit 42", 42), ("kill -TERM $$", -signal.SIGTERM)])
def test_exit_status_of_a_child(script, expected):
    child = subprocess.Popen(["sh", "-c", script])
    pidfd = process.pidfd_open(child.pid)
    try:
        assert process.wait_pidfd(pidfd, 10)
        assert process.exit_status(pidfd) == expected
    finally:
        os.close(pidfd)
        child.returncode = expected  # it was waited for behind its back


def test_a_wait_may_be_for_years():
    """More than poll(2) can count."""
    with subprocess.Popen(["sleep", "0.1"]) as child:
        pidfd = process.pidfd_open(child.pid)
        try:
            assert process.wait_pidfd(pidfd, 1e9)
        finally:
            os.close(pidfd)


def test_wait_has_an_end():
    child = subprocess.Popen(["sleep", "60"])
    pidfd = process.pidfd_open(child.pid)
    try:
        assert not process.wait_pidfd(pidfd, 0.01)
        assert process.exit_status(pidfd) is None
        process.pidfd_send_signal(pidfd, signal.SIGKILL)
        assert process.wait_pidfd(pidfd, 10)
    finally:
        os.close(pidfd)
        child.wait()


LATE = """
import os, sys, time
pid = os.fork()
if not pid:
    os._exit(7)
print(pid, flush=True)
sys.stdin.readline()
time.sleep(0.2)
os.waitpid(pid, 0)
sys.stdin.readline()
"""


def test_exit_status_of_a_stranger_whose_parent_hears_of_it_late():
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", LATE], stdin=pipe, stdout=pipe, text=True, bufsize=1) as parent:
        pidfd = process.pidfd_open(int(parent.stdout.readline()))
        try:
            assert process.wait_pidfd(pidfd, 10)
            assert process.exit_status(pidfd) is None, "its parent has yet to hear of it"
            parent.stdin.write("now\n")
            process.wait_reaped(pidfd, 5)
            release = tuple(map(int, os.uname().release.split(".")[:2]))
            assert process.exit_status(pidfd) == (7 if release >= (6, 15) else None)
        finally:
            os.close(pidfd)


CLONE = """
import os
from kurma_core.linux import clone, process
pid, pidfd = clone.clone()
if not pid:
    os._exit(5)
process.wait_pidfd(pidfd, 10)
print(process.exit_status(pidfd))
pid, pidfd = clone.clone()
keep = os.dup(1)
if not pid:
    process.close_others({1, keep})
    os.write(1, ",".join(sorted(os.listdir("/proc/self/fd"))).encode())
    os._exit(0)
process.wait_pidfd(pidfd, 10)
"""


def test_clone_and_close_others():
    # In a program of its own: a bare clone is for processes with one thread.
    done = subprocess.run([sys.executable, "-c", CLONE], capture_output=True, text=True, check=True, timeout=60)
    code, left = done.stdout.splitlines()
    assert code == "5"
    # 1, the copy of it, and the descriptor by which the directory is read
    assert len(left.split(",")) == 3


def test_a_thread_runs_once_it_is_started():
    before, end = set(sys._current_frames()), _thread.allocate_lock()
    with end:
        process.start_thread(end.acquire)
        assert len(set(sys._current_frames()) - before) == 1
