"""Letting go of what was executed: nothing is lost by it."""

import ctypes
import mmap
import os
import subprocess
import sys

import kurma_stager_default
from kurma_stager_default.inside.pod.memory_trimming import program_pages

import kurma_core
from kurma_core.linux.libc import call

_SCRIPT = """
import sys
sys.path[:0] = sys.argv[1:]
from kurma_stager_default.inside.pod.memory_trimming import drop_pages, program_pages

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
drop_pages(program_pages())
after = mapped()
import json
assert json.loads(json.dumps(kept)) == {str(key): value for key, value in kept.items()}
print(before, after)
"""


def test_code_comes_back_when_it_is_executed():
    """Some of it is gone at once; the interpreter, libraries that are loaded later and all data work as before."""
    packages = [os.path.dirname(module.__path__[0]) for module in (kurma_core, kurma_stager_default)]
    argv = [sys._base_executable, "-IS", "-c", _SCRIPT, *packages]
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
    found = program_pages()
    assert any(start <= firsts[0] < start + size for start, size in found)
    assert not any(start <= firsts[1] < start + size for start, size in found)
