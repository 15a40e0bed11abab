"""Functions of libc for memory: threads that share a heap."""

import subprocess
import sys

from kurma_core.linux.libc import call, trim_heap


def test_a_function_that_libc_does_not_have():
    assert call("kurma_has_no_such") is None
    trim_heap()


_THREADS = """
import os, sys, threading
sys.path.insert(0, sys.argv[1])
from kurma_core.linux import libc

if sys.argv[2] == "one":
    libc.one_heap()
there, over = threading.Barrier(5), threading.Event()

def work():
    # More than Python's own allocator takes care of, and less than what is mapped by itself.
    kept = [bytes(2000) for _ in range(20)]
    there.wait()
    over.wait()

threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
there.wait()
with open("/proc/self/maps") as file:
    sys.stdout.write(file.read())
over.set()
"""


def heaps(maps):
    """How many threads have one of their own, as glibc makes them: so much, beginning at a multiple of that."""
    size, found, before = 64 << 20, 0, None
    for line in maps.splitlines():
        where, rights = line.split()[:2]
        first, end = (int(one, 16) for one in where.split("-"))
        if rights == "---p" and before is not None:
            start, used = before
            found += start % size == 0 and used == first and end == start + size
        before = (first, end) if rights == "rw-p" else None
    return found


def test_threads_allocate_from_one_heap():
    root = __file__.rpartition("/tests/")[0]
    found = {}
    for how in ("several", "one"):
        argv = [sys._base_executable, "-IS", "-c", _THREADS, root, how]
        found[how] = heaps(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    # As many as threads, unless there are few processors.
    assert found["several"] > 0
    assert found["one"] == 0
