"""``docs/howto/plugin_packages.md``: what it shows is in the examples, what it names is there."""

import ast
import importlib
import re
from pathlib import Path

import pytest

from tests.docs.pages import find_page

ROOT = Path(__file__).parents[2]
TEXT = find_page("plugin_packages.md").read_text()
EXCERPTS = re.findall(r"```\w+\n# (examples/\S+)\n(.*?)```", TEXT, re.DOTALL)
SUITES = re.findall(r"`(kurma_testing\.\w+)\.(\w+)`", TEXT)


@pytest.mark.parametrize(("path", "text"), EXCERPTS)
def test_excerpts_are_taken_from_what_is_tested(path, text):
    assert text.strip("\n") in (ROOT / path).read_text()


@pytest.mark.parametrize(("module", "name"), SUITES)
def test_suites_are_there(module, name):
    suite = getattr(importlib.import_module(module), name)
    assert any(member.startswith("test_") for member in dir(suite))


def test_no_suite_is_left_out():
    found = set()
    for file in (ROOT / "libs/testing/kurma_testing").glob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name.endswith("Contract"):
                found.add((f"kurma_testing.{file.stem}", node.name))
    found.remove(("kurma_testing.contract", "DriverContract"))  # the base of all
    assert set(SUITES) == found


def test_every_kind_has_an_example():
    kinds = {path.parent.name for path in (ROOT / "examples/plugins").glob("*/pyproject.toml")}
    assert kinds == {"fetcher", "renderer", "stager", "network", "isolator", "observer", "service", "command"}
    for kind in kinds:
        folder = ROOT / "examples/plugins" / kind
        assert list(folder.glob("test_*.py"))
        assert (folder / "README.md").exists()
