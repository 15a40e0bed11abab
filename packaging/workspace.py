"""Lists the distributions of this checkout, and reads and writes their version.

``VERSION`` of ``kurma_core/__init__.py`` is the version of all of them. ``./dev version NEW`` writes a new one
there, into each ``pyproject.toml`` and ``uv.lock``, and into the requirements that the distributions have of
each other.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_SOURCE = "kurma_core/__init__.py"
_IN_SOURCE = re.compile(r'(?m)^(VERSION = ")([^"]+)(")$')
_IN_PROJECT = re.compile(r'(?m)^(version = ")([^"]+)(")$')
_IN_LOCK = re.compile(r'(?m)^(name = "kurma(?:-[a-z-]+)?"\nversion = ")([^"]+)(")$')
_REQUIREMENT = re.compile(r'("kurma-[a-z-]+(?:\[[a-z]+\])?(?:>=|==))([^",]+)(")')


class Wrong(Exception):
    """A build or a release cannot go on. :param hint: what to do, if there is something."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def folders(root: Path = ROOT) -> list[Path]:
    """The folder of each distribution, the core's first."""
    members = project(root, "tool")["uv"]["workspace"]["members"]
    return [root, *(file.parent for pattern in members for file in sorted(root.glob(f"{pattern}/pyproject.toml")))]


def project(folder: Path, table: str = "project") -> dict[str, Any]:
    """A table of a folder's ``pyproject.toml``."""
    found: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())[table]
    return found


def names(root: Path = ROOT) -> list[str]:
    """The names of the distributions."""
    return [project(folder)["name"] for folder in folders(root)]


def version(root: Path = ROOT) -> str:
    found = _IN_SOURCE.search((root / _SOURCE).read_text())
    assert found, f"{_SOURCE} has a line VERSION"
    return found[2]


def order(text: str) -> tuple[int, ...]:
    """A version as numbers that compare as versions do. :raises Wrong: it is not ``N.N.N`` or ``N.N.NrcN``."""
    found = re.fullmatch(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:rc([1-9]\d*))?", text)
    if not found:
        raise Wrong(f"{text!r} is not a version", "write three numbers, such as 1.2.3, or 1.2.3rc1")
    *release, candidate = found.groups()
    return (*map(int, release), *((0, int(candidate)) if candidate else (1, 0)))


def write_version(new: str, root: Path = ROOT) -> None:
    """Writes the version of every distribution. :raises Wrong: it is not a version."""
    order(new)

    def put(file: Path, *patterns: re.Pattern[str]) -> None:
        text = file.read_text()
        for pattern in patterns:
            text = pattern.sub(rf"\g<1>{new}\g<3>", text)
        file.write_text(text)

    put(root / _SOURCE, _IN_SOURCE)
    for folder in folders(root):
        put(folder / "pyproject.toml", _IN_PROJECT, _REQUIREMENT)
    # Edited as text: `uv lock` would resolve every requirement anew, and need an index for it.
    put(root / "uv.lock", _IN_LOCK)


def uv() -> str:
    """The program uv; ``./dev`` names it."""
    return os.environ.get("UV", "uv")


def run(*arguments: object, cwd: Path | None = None, codes: tuple[int, ...] = (0,), **more: Any) -> str:
    """Runs a program to its end.

    :param codes: the exit codes that are no failure.
    :returns: its output.
    :raises Wrong: it failed; the error has its output.
    """
    text = [str(argument) for argument in arguments]
    done: subprocess.CompletedProcess[str] = subprocess.run(
        text, cwd=cwd, capture_output=True, text=True, check=False, **more
    )
    if done.returncode not in codes:
        raise Wrong(f"exit code {done.returncode} of {' '.join(text)}\n{done.stdout}{done.stderr}".rstrip())
    return done.stdout


def main(what: Any) -> None:
    """Runs a command of ``./dev``, and prints its error as Kurma prints errors."""
    try:
        what()
    except Wrong as error:
        print(f"dev: {error}", file=sys.stderr)
        if error.hint:
            print(f"  hint: {error.hint}", file=sys.stderr)
        sys.exit(1)


def _command() -> None:
    if len(sys.argv) > 1:
        write_version(sys.argv[1])
    print(version())


if __name__ == "__main__":
    main(_command)
