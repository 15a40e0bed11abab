"""Counts how often a warm ``kurma run`` reads and writes the records of its pod, by strace."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.kit.command import KURMA, Kurma

pytestmark = pytest.mark.root

_OPENED = re.compile(r'openat\([^"]*"(?P<path>[^"]+)", (?P<flags>[A-Z_|0-9]+)')
_RENAMED = re.compile(r'rename(?:at2?)?\(.*"(?P<path>[^"]+)"(?:, \w+)?\) = 0')


def files(log: Path) -> Counter[tuple[str, str]]:
    """How often each record was read, and how often it was replaced."""
    found: Counter[tuple[str, str]] = Counter()
    for line in log.read_text(errors="replace").splitlines():
        opened, renamed = _OPENED.search(line), _RENAMED.search(line)
        if opened is not None and "O_PATH" not in opened["flags"] and " = -1 " not in line:
            if "O_RDONLY" in opened["flags"]:
                found["read", Path(opened["path"]).name] += 1
        elif renamed is not None:
            found["write", Path(renamed["path"]).name] += 1
    return found


@pytest.mark.parametrize("more", [(), ("--rm",)], ids=["kept", "removed"])
def test_records_of_a_warm_run(kurma: Kurma, tmp_path: Path, more: tuple[str, ...]) -> None:
    words = ("run", "--net", "none", *more, kurma.image, "--exec", "/bin/true")
    kurma.out(*words)
    log = tmp_path / "strace"
    strace = ("strace", "-f", "-qq", "-s", "4096", "-o", str(log), "-e", "trace=openat,rename,renameat,renameat2")
    done = subprocess.run(
        [*strace, *KURMA, *words], capture_output=True, text=True, check=False, env=kurma.environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found = files(log)
    # A text that has not changed is read, and not parsed again.
    assert found["read", "state.json"] <= 16
    assert found["write", "state.json"] <= 6
    assert found["read", "pod.json"] <= 5
    assert found["write", "pod.json"] == 1
