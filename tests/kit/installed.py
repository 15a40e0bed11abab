"""Wheels of the checkout's distributions, installed as users install them: by plain pip, without a network."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples/plugins"


def pip(*arguments: object) -> str:
    run = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir", *map(str, arguments)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(wheels: Path, *sources: Path) -> None:
    """Builds a wheel of each source directory."""
    pip("wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, *sources)


class Example:
    """One of ``examples/plugins``, as its ``pyproject.toml`` declares it.

    :attr:`group` and :attr:`name` are those of its entry point.
    """

    def __init__(self, directory: Path) -> None:
        project: dict[str, Any] = tomllib.loads((directory / "pyproject.toml").read_text())["project"]
        self.directory = directory
        self.distribution: str = project["name"]
        ((self.group, entries),) = project["entry-points"].items()
        ((self.name, self.module),) = entries.items()

    @property
    def kind(self) -> str:
        """As listings have it: ``fetchers``."""
        return self.group.removeprefix("kurma.")


def examples() -> list[Example]:
    return [Example(file.parent) for file in sorted(EXAMPLES.glob("*/pyproject.toml"))]
