"""The suite in parts: every test is in one of them, and in no other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.parts import parts

FILES = some.dictionaries(some.text("ab/", min_size=1).map(Path), some.integers(1, 90), max_size=40)


@given(FILES, some.integers(1, 5))
def test_each_file_is_in_one_part(files: dict[Path, int], count: int) -> None:
    split = parts(files, count)
    assert len(split) == count
    assert sorted(path for part in split for path in part) == sorted(files)
    assert split == parts(dict(reversed(files.items())), count)
    for directory in {path.parent for path in files}:
        here = {path: size for path, size in files.items() if path.parent == directory}
        sizes = [sum(here[path] for path in part if path in here) for part in split]
        assert max(sizes) - min(sizes) <= max(here.values())


def collected(*args: str) -> list[str]:
    """The tests that pytest, with these arguments, would run of a few small files."""
    paths = [str(path) for path in sorted(Path(__file__).parent.joinpath("value").glob("test_*.py"))]
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", *args, __file__, *paths]
    # What whoever runs the suite wants of its output is none of this one's.
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[1], env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if "::" in line]


def test_pytest_runs_one_part_of_what_is_asked_for() -> None:
    everything, first, second = (
        collected("-k", "not wrong", *part) for part in ([], ["--part=1/2"], ["--part=2/2"])
    )
    assert first
    assert second
    assert sorted(first + second) == sorted(everything)
    assert [line for line in everything if line in first] == first


@pytest.mark.parametrize("wrong", ["0/2", "3/2", "2", "a/b", "1/", "-1/2", ""])
def test_a_wrong_part_is_refused(wrong: str) -> None:
    command = [sys.executable, "-m", "pytest", f"--part={wrong}", "--collect-only", __file__]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[1])
    assert done.returncode == 4
    assert "--part" in done.stderr
