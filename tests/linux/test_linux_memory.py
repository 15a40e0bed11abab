"""Letting go of what was executed: nothing is lost by it."""

import ctypes
import mmap
import subprocess
import sys

from kurma_core.linux import memory
from kurma_core.linux.libc import call

_SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from kurma_core.linux import memory

def mapped():
    total = counts = 0
    with open("/proc/self/smaps") as file:
        for line in file:
            words = line.split()
            if "-" in words[0]:
                counts = words[1] in ("r-xp", "r--p") and words[4] != "0"
            elif counts and words[0] == "Rss:":
                total += int(words[1])
    return total

kept = {number: str(number) for number in range(10000)}
before = mapped()
memory.unmap(memory.programs())
after = mapped()
import json
assert json.loads(json.dumps(kept)) == {str(key): value for key, value in kept.items()}
print(before, after)
"""


def test_code_comes_back_when_it_is_executed():
    """Some of it is gone at once; the interpreter, libraries that are loaded later and all data work as before."""
    root = __file__.rpartition("/tests/")[0]
    argv = [sys._base_executable, "-IS", "-c", _SCRIPT, root]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    before, after = map(int, done.stdout.split())
    assert after < before * 0.8


def test_what_was_written_to_is_kept(tmp_path):
    """As the loader writes to what it then makes read-only: to let go of that would undo it."""
    path = tmp_path / "file"
    path.write_bytes(b"a" * 2 * mmap.PAGESIZE)
    with open(path, "r+b") as file:
        places = [mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE) for _ in range(2)]
    firsts = [ctypes.addressof(ctypes.c_char.from_buffer(place)) for place in places]
    assert places[0][:1] == b"a"
    places[1][:1] = b"b"
    for first in firsts:
        assert call("mprotect", first, 2 * mmap.PAGESIZE, mmap.PROT_READ) == 0
    found = memory.programs()
    assert any(start <= firsts[0] < start + size for start, size in found)
    assert not any(start <= firsts[1] < start + size for start, size in found)


def test_a_function_that_libc_does_not_have():
    assert call("kurma_has_no_such") is None
    memory.trim()


_THREADS = """
import os, sys, threading
sys.path.insert(0, sys.argv[1])
from kurma_core.linux import memory

if sys.argv[2] == "one":
    memory.one_heap()
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
