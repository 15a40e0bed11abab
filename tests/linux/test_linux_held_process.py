import os
import subprocess
import sys

import pytest

from kurma_core.linux.process import ProcessIdentity, pidfd_open
from kurma_core.linux.programs import HeldProcess, exit_code, put_to_death


@pytest.mark.parametrize(("script", "code"), [("exit 42", 42), ("kill -TERM $$", 143)])
def test_it_is_waited_for(script, code):
    """Its exit code is known as often as it is asked for; and then nothing can be sent to it."""
    child = subprocess.Popen(["sh", "-c", f"read _; {script}"], stdin=subprocess.PIPE)
    held = HeldProcess(ProcessIdentity.current(child.pid), pidfd_open(child.pid))
    assert (held.pid, held.alive(), held.wait(0)) == (child.pid, True, None)
    child.stdin.close()
    assert [held.wait(10), held.wait_reaped(), held.alive()] == [code, code, False]
    held.signal(9)
    held.close()
    held.close()
    child.returncode = code  # it was reaped


def test_one_of_another_parent():
    """It is signalled as well; how it ended is what the kernel tells, or nothing."""
    script = "import os, time; pid = os.fork(); print(pid, flush=True) if pid else time.sleep(100); os._exit(0)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        pid = int(parent.stdout.readline())
    held = HeldProcess(ProcessIdentity.current(pid), pidfd_open(pid))
    held.signal(15)
    assert held.wait(10) in (143, None)
    assert held.wait_reaped() in (143, None)
    assert not held.alive()
    held.close()


def test_put_to_death():
    """A child is reaped; it may have ended before."""
    child = subprocess.Popen(["sleep", "100"])
    pidfd = pidfd_open(child.pid)
    for _ in range(2):
        put_to_death(pidfd)
        assert not os.path.exists(f"/proc/{child.pid}")
    os.close(pidfd)
    child.returncode = -9


def test_exit_code():
    assert [exit_code(status) for status in (0, 7, 255, -9)] == [0, 7, 255, 137]
