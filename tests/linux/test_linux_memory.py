"""Letting go of what was executed: nothing is lost by it."""

import subprocess
import sys

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
                counts = words[1] == "r-xp" and words[4] != "0"
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
