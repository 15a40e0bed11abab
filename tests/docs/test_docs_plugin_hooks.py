"""``docs/reference/plugin_hooks.md`` and ``hooks`` introduce every kind of plugin; what they show is in the code.

``test_docs_reference.py`` looks at the parts of these pages that are made from the code."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from docs import reference
from kurma_core.hookspecs import GROUPS
from kurma_core.plugins.contract import CHECKS
from tests.docs.pages import DOCS, find_page

ROOT = Path(__file__).parents[2]
SHARED = find_page("plugin_hooks.md").read_text()
#: The page of each kind, by its hook: ``# Fetchers: `kurma_fetcher```.
PAGES = {
    page.split("`")[1]: page
    for page in (file.read_text() for file in sorted((DOCS / "reference/hooks").glob("*.md")))
}
#: The texts that are written by hand.
TEXT = reference.MARKER.sub("", "\n".join((SHARED, *PAGES.values())))
HOOKS = reference.hooks(reference.module("kurma_core.hookspecs").names["ModuleHooks"])

BLOCKS = [match for match in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL) if match[0] != "#"]
EXAMPLES = re.findall(r"```python\n# (examples/\S+)\n(.*?)```", TEXT, re.DOTALL)


def signature(function):
    """The signature as one line, without ``self``."""
    decorators = [ast.unparse(node) for node in function.decorator_list]
    decorators = [text for text in decorators if not text.startswith("hookspec")]
    arguments = ast.unparse(function.args).removeprefix("self, ").removeprefix("self")
    return " ".join([*decorators, f"{function.name}({arguments}) -> {ast.unparse(function.returns)}"])


#: Functions and classes that are shown.
SHOWN = {
    node.name: node
    for block in BLOCKS
    for node in ast.parse(block).body
    if isinstance(node, ast.FunctionDef | ast.ClassDef)
}


def test_hooks_and_groups_agree():
    assert sorted([*GROUPS.values(), CHECKS]) == sorted(HOOKS)
    assert sorted(GROUPS.values()) == sorted(PAGES)


@pytest.mark.parametrize("name", sorted(HOOKS))
def test_every_hook_has_its_signature(name):
    assert signature(SHOWN[name]) == signature(HOOKS[name])


@pytest.mark.parametrize("name", sorted(HOOKS))
def test_every_hook_is_told_whole(name):
    if name == CHECKS:
        text = SHARED[SHARED.index(f"## `{CHECKS}`") :]
    else:
        text = PAGES[name]
        assert "**Example**" in text
        assert "## Reference\n" in text
        assert "**Used by**" in text
    for word in ("**Called**",):
        assert word in text, word
    assert re.search(r"\*\*Returns?\*\*", text)


def test_nothing_of_the_reference_is_copied_by_hand():
    assert set(SHOWN) == set(HOOKS)


@pytest.mark.parametrize(("path", "text"), EXAMPLES)
def test_examples_are_taken_from_what_is_tested(path, text):
    assert text.strip("\n") in (ROOT / path).read_text()


def test_real_plugins_are_named():
    for file in sorted(ROOT.glob("plugins/*/pyproject.toml")):
        project = tomllib.loads(file.read_text())["project"]
        for group, entries in project["entry-points"].items():
            used = PAGES[GROUPS[group]].split("**Used by**")[1]
            assert project["name"] in used
            for entry in entries:
                assert f"`{entry}`" in used
