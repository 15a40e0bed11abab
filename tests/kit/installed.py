"""Wheels of the checkout's distributions, installed as users install them: by plain pip, without a network.

A clean environment has what the core depends on from the environment that runs the tests: a directory of links to
everything in it that is not Kurma's, so that pip finds and checks those requirements as it always does, and
nothing of the checkout can be imported.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.kit.command import PROGRAM

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


def unpack(
    site: Path, name: str, entry_points: str, modules: Mapping[str, str] | None = None, *, version: str = "1.0"
) -> Path:
    """Writes a distribution as pip leaves it.

    :param site: a directory that Python is to search; made if it is missing.
    :param entry_points: the text of ``entry_points.txt``, without the last line's end.
    :param modules: sources by the modules' names.
    :returns: the directory of its metadata.
    """
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"{entry_points}\n")
    for module, source in (modules or {}).items():
        (site / f"{module}.py").write_text(source)
    return info


def make_clean(directory: Path) -> None:
    """Makes a virtual environment without Kurma, ``venv`` in the directory."""
    venv.create(directory / "venv", with_pip=False, symlinks=True)
    others = directory / "others"
    others.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "kurma" not in path.name and not path.name.endswith(".pth"):
            (others / path.name).symlink_to(path)
    (packages,) = (directory / "venv/lib").glob("python*/site-packages")
    (packages / "others.pth").write_text(f"{others}\n")


def make_above(directory: Path) -> tuple[Path, Path]:
    """Makes a virtual environment that has what this one has, and directories of its own for more.

    :returns: its ``kurma``, and its ``site-packages``.
    """
    venv.create(directory, with_pip=False, symlinks=True)
    (packages,) = (directory / "lib").glob("python*/site-packages")
    (packages / "below.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    program = directory / "bin/kurma"
    program.write_text(Path(PROGRAM).read_text().replace(sys.executable, f"{directory}/bin/python", 1))
    program.chmod(0o755)
    return program, packages


def install(clean: Path, wheels: Path, *what: object) -> None:
    """Installs distributions in such an environment, from a directory of wheels."""
    pip("--python", clean / "venv/bin/python", "install", "--no-index", "--find-links", wheels, *what)


def uninstall(clean: Path, *what: object) -> None:
    pip("--python", clean / "venv/bin/python", "uninstall", "--yes", *what)


class Example:
    """An entry point of one of ``examples/plugins``, as its ``pyproject.toml`` declares it."""

    def __init__(self, directory: Path, distribution: str, group: str, name: str, module: str) -> None:
        self.directory = directory
        self.distribution = distribution
        self.group = group
        self.name = name
        self.module = module

    @property
    def kind(self) -> str:
        """As listings have it: ``fetchers``."""
        return self.group.removeprefix("kurma.")

    def __str__(self) -> str:
        return f"{self.kind}-{self.name}"


def examples() -> list[Example]:
    found = []
    for file in sorted(EXAMPLES.glob("*/pyproject.toml")):
        project: dict[str, Any] = tomllib.loads(file.read_text())["project"]
        for group, entries in project["entry-points"].items():
            found += [Example(file.parent, project["name"], group, *entry) for entry in entries.items()]
    return found


def build_examples(wheels: Path) -> None:
    build(wheels, *sorted({one.directory for one in examples()}))
