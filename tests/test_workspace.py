"""Every plugin of the workspace is a distribution of its own, whole and listed."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = sorted(path for path in (ROOT / "plugins").iterdir() if path.is_dir() and path.name != "__pycache__")
WORKSPACE = tomllib.loads((ROOT / "pyproject.toml").read_text())

pytestmark = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


def project(folder):
    return tomllib.loads((folder / "pyproject.toml").read_text())


def test_its_names_agree(folder):
    """Folder ``net_lo``, module ``kurma_net_lo``, distribution ``kurma-net-lo``."""
    module = f"kurma_{folder.name}"
    assert (folder / module).is_dir()
    assert project(folder)["project"]["name"] == module.replace("_", "-")
    groups = project(folder)["project"]["entry-points"]
    for group, entries in groups.items():
        assert group.startswith("kurma.")
        for value in entries.values():
            assert value.split(".")[0].split(":")[0] == module


def test_it_is_listed(folder):
    name = project(folder)["project"]["name"]
    groups = WORKSPACE["dependency-groups"]
    assert (name in groups["plugins"]) != (name in groups["services"])
    assert WORKSPACE["tool"]["uv"]["sources"][name] == {"workspace": True}


def test_it_builds_on_the_core(folder):
    dependencies = project(folder)["project"]["dependencies"]
    assert any(text.startswith("kurma-core") for text in dependencies)
    sources = project(folder)["tool"]["uv"]["sources"]
    for text in dependencies:
        name = text.split(">")[0].split("=")[0].split(";")[0].strip()
        if name.startswith("kurma-"):
            assert sources[name] == {"workspace": True}


def test_it_is_whole(folder):
    module = folder / f"kurma_{folder.name}"
    assert (folder / "README.md").read_text().startswith(f"# kurma-{folder.name.replace('_', '-')}\n")
    assert len((folder / "README.md").read_text().splitlines()) > 5, (
        "a README says what it is and how to configure it"
    )
    assert (module / "py.typed").exists()
    assert list((folder / "tests").glob("test_*.py"))


def test_it_has_the_workspaces_version_and_license(folder):
    ours, theirs = WORKSPACE["project"], project(folder)["project"]
    for key in ("version", "license", "requires-python"):
        assert theirs[key] == ours[key]
