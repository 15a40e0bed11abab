"""Work of kurmad where no thread can be started."""

import subprocess
import sys

import pytest

from kurma_core.daemon.process.threads import Workers

#: As a user without processes to spare: threads count.
PROGRAM = """
import os, resource, threading
from kurma_core.daemon.process.threads import Timetable, Workers
some, none = Workers(2, "some"), Workers(2, "none")
gate, begun, done = threading.Event(), threading.Event(), []
some.submit(lambda: (begun.set(), gate.wait(), done.append("first")))
begun.wait()
os.setuid(54321)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
later = some.submit(done.append, "later")
now = none.submit(done.append, "now")
assert now.done() and not later.done() and done == ["now"]
gate.set()
later.result(20)
assert done == ["now", "first", "later"]
some.shutdown(), none.shutdown()
times = Timetable("times", 1)
times.at("x", 0, print)
try:
    times.start()
except RuntimeError as error:
    assert str(error) == "can't start new thread"
else:
    raise AssertionError
times.close()
"""


@pytest.mark.root
def test_without_threads():
    """A thread that is there does it later; where there is none, the caller does it."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "Traceback" not in done.stderr


def test_errors_and_the_end():
    workers = Workers(1, "some")
    with pytest.raises(ZeroDivisionError):
        workers.submit(lambda: 1 / 0).result(20)
    workers.shutdown()
    with pytest.raises(RuntimeError):
        workers.submit(print)
