"""All distributions of the workspace have one version, and ``kurma`` requires the core and the default plugins."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kurma_core import VERSION
from kurma_core.config import load

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "packaging/workspace.py"
PATTERNS = ("pyproject.toml", "libs/*/pyproject.toml", "packaging/*/pyproject.toml", "plugins/*/pyproject.toml")


def projects(root):
    found = (tomllib.loads(file.read_text()) for pattern in PATTERNS for file in root.glob(pattern))
    return {one["project"]["name"]: one for one in found}


def own_requirements(described):
    extras = [text for texts in described["project"].get("optional-dependencies", {}).values() for text in texts]
    texts = [*described["project"]["dependencies"], *extras]
    return {text for text in texts if text.startswith("kurma-")}


def test_kurma_requires_the_core_and_each_default_plugin_of_its_version():
    described = projects(ROOT)
    plugins = described["kurma-core"]["dependency-groups"]["plugins"]
    brought = {"kurma-core", "kurma-cni", *plugins}
    assert sorted(described["kurma"]["project"]["dependencies"]) == sorted(
        f"{name}=={VERSION}" for name in brought
    )
    services = set(described["kurma-core"]["dependency-groups"]["services"])
    assert brought | services | {"kurma", "kurma-testing"} == set(described)
    assert set(described["kurma"]["tool"]["uv"]["sources"]) == set(described) - services - {"kurma"}


def test_kurma_has_the_programs_of_the_core():
    """Installers such as pipx install only the programs of the distribution that they are asked for."""
    described = projects(ROOT)
    assert described["kurma"]["project"]["scripts"] == described["kurma-core"]["project"]["scripts"]


def versions(root):
    """Each version of a distribution of ours that is written down, with its place."""
    for name, described in projects(root).items():
        yield name, described["project"]["version"]
        for text in own_requirements(described):
            yield f"{name} requires {text}", re.split(">=|==", text)[1]
    for package in tomllib.loads((root / "uv.lock").read_text())["package"]:
        if package["name"] == "kurma" or package["name"].startswith("kurma-"):
            yield f"uv.lock: {package['name']}", package["version"]


def test_there_is_one_version():
    found = dict(versions(ROOT))
    assert len(found) > 40
    assert set(found.values()) == {VERSION}, found


@pytest.fixture
def copy(tmp_path):
    """The files of the workspace that hold its version."""
    for file in (
        path for pattern in (*PATTERNS, "uv.lock", "kurma_core/__init__.py") for path in ROOT.glob(pattern)
    ):
        to = tmp_path / file.relative_to(ROOT)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, to)
    (tmp_path / "packaging/workspace.py").write_text(PROGRAM.read_text())
    return tmp_path


def version(root, *words):
    program = [sys.executable, root / "packaging/workspace.py", *words]
    return subprocess.run(
        program, capture_output=True, text=True, check=False, env={**os.environ, "UV_OFFLINE": "1"}
    )


def test_a_version_is_written_everywhere(copy):
    assert version(copy).stdout == f"{VERSION}\n"
    done = version(copy, "7.8.9")
    assert (done.returncode, done.stdout) == (0, "7.8.9\n"), done.stderr
    assert {*dict(versions(copy)).values()} == {"7.8.9"}
    assert 'VERSION = "7.8.9"' in (copy / "kurma_core/__init__.py").read_text()


@pytest.mark.parametrize("wrong", ["1.2", "v1.2.3", "1.2.3-beta", "01.2.3", ""])
def test_another_text_is_refused(copy, wrong):
    done = version(copy, wrong)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"dev: {wrong!r} is not a version",
        "  hint: write three numbers, such as 1.2.3, or 1.2.3rc1",
    ]
    assert set(dict(versions(copy)).values()) == {VERSION}


def test_each_example_of_the_packaged_configuration_loads(tmp_path):
    """Lines of comment that do not begin with one space are keys to uncomment."""
    text = (ROOT / "packaging/debian/kurma.yml").read_text()
    packaged, empty = tmp_path / "packaged.yml", tmp_path / "empty.yml"
    packaged.write_text(text)
    empty.write_text("")
    assert load(str(packaged)).values == load(str(empty)).values
    (tmp_path / "kurma.yml").write_text(re.sub(r"(?m)^#(?! \S)", "", text))
    config = load(str(tmp_path))
    assert config.registries.mirrors
    assert config.initial_pods
    assert config.container_networks[0].name == "mine"
