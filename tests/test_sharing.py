"""The suite shared by several runs: every test is run by one of them, and by no other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]


def begun(directory: Path, paths: Iterable[Path]) -> subprocess.Popen[str]:
    """A run of these files of tests that names each of them."""
    options = [
        "-v",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.sharing",
        "-c",
        os.devnull,
        "--rootdir",
        directory.parent,
    ]
    # What whoever runs the suite wants of its output is none of this one's.
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # plugins that are installed take a second
    command = [
        sys.executable,
        "-m",
        "pytest",
        *options,
        "--rootdir",
        directory.parent,
        "--shared",
        directory,
        *paths,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=PROJECT, env=environment)


def passed(run: subprocess.Popen[str]) -> list[str]:
    said, _ = run.communicate(timeout=60)
    assert run.returncode == 0, said
    return re.findall(r"^\S*?(test_\w+\.py::\w+) PASSED", said, re.MULTILINE)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Six, of three tests each; one of them holds its run up until the others have been run."""
    found = []
    for number in range(6):
        path = tmp_path / f"test_shared_{number}.py"
        path.write_text("".join(f"def test_{letter}():\n    assert True\n" for letter in "abc"))
        found.append(path)
    found[0].write_text(
        "import os, time\n"
        "def test_a():\n"
        "    end = time.monotonic() + 30\n"
        f"    while len(os.listdir({str(tmp_path / 'shared')!r})) < 6 and time.monotonic() < end:\n"
        "        time.sleep(0.01)\n"
        "def test_b():\n    assert True\n"
        "def test_c():\n    assert True\n"
    )
    return found


def test_each_test_is_run_once(tmp_path: Path, files: list[Path]) -> None:
    """And who has a long one leaves the rest to the other."""
    shared = tmp_path / "shared"
    shared.mkdir()
    ran = [passed(run) for run in [begun(shared, files) for _ in range(2)]]
    everything = [f"{path.name}::test_{letter}" for path in files for letter in "abc"]
    assert Counter(ran[0] + ran[1]) == Counter(everything)
    held_up, other = sorted(ran, key=len)
    assert f"{files[0].name}::test_a" in held_up
    assert len(held_up) == 3
    assert len(other) == 15


def test_who_is_alone_runs_all_in_order(tmp_path: Path, files: list[Path]) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    ran = passed(begun(shared, files[1:]))
    assert ran == [f"{path.name}::test_{letter}" for path in files[1:] for letter in "abc"]


def test_a_failure_is_of_who_ran_it(tmp_path: Path, files: list[Path]) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    files[1].write_text("def test_a():\n    assert False\n")
    run = begun(shared, files[1:])
    said, _ = run.communicate(timeout=60)
    assert run.returncode == 1
    assert "1 failed, 12 passed" in said
