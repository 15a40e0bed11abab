"""``docs/plugin_hooks.md`` and ``docs/hooks`` introduce every kind of plugin; what they show is in the code.

``test_docs_reference.py`` looks at the parts of these pages that are made from the code."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from docs import reference
from kurma_core.hookspecs import GROUPS
from kurma_core.plugins.contract import CHECKS

ROOT = Path(__file__).parents[2]
SHARED = (ROOT / "docs/plugin_hooks.md").read_text()
#: The page of each kind, by its hook: ``# Fetchers: `kurma_fetcher```.
PAGES = {
    page.split("`")[1]: page for page in (file.read_text() for file in sorted((ROOT / "docs/hooks").glob("*.md")))
}
#: The texts that are written by hand.
TEXT = reference.MARKER.sub("", "\n".join((SHARED, *PAGES.values())))
#: Contracts, and what stands in ``kurma_core/models`` but is an argument of theirs.
SOURCES = [
    *sorted((ROOT / "kurma_core/hookspecs").glob("*.py")),
    *(ROOT / "kurma_core/models" / name for name in ("image.py", "pod.py", "streams.py")),
]
CLASSES = {
    node.name: node
    for file in SOURCES
    for node in ast.parse(file.read_text()).body
    if isinstance(node, ast.ClassDef)
}
HOOKS = {node.name: node for node in CLASSES.pop("ModuleHooks").body if isinstance(node, ast.FunctionDef)}

BLOCKS = [match for match in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL) if match[0] != "#"]
EXAMPLES = re.findall(r"```python\n# (examples/\S+)\n(.*?)```", TEXT, re.DOTALL)


def signature(function):
    """The signature as one line, without ``self``."""
    decorators = [ast.unparse(node) for node in function.decorator_list]
    decorators = [text for text in decorators if not text.startswith("hookspec")]
    arguments = ast.unparse(function.args).removeprefix("self, ").removeprefix("self")
    return " ".join([*decorators, f"{function.name}({arguments}) -> {ast.unparse(function.returns)}"])


def members(node):
    """Fields and methods of a class, in order."""
    lines = [f"class ({', '.join(map(ast.unparse, node.bases))})"]
    for item in node.body:
        if isinstance(item, ast.AnnAssign):
            lines.append(ast.unparse(item))
        elif isinstance(item, ast.FunctionDef):
            lines.append(signature(item))
    return lines


def documented(kind):
    return {node.name: node for block in BLOCKS for node in ast.parse(block).body if isinstance(node, kind)}


def test_hooks_and_groups_agree():
    assert sorted([*GROUPS.values(), CHECKS]) == sorted(HOOKS)
    assert sorted(GROUPS.values()) == sorted(PAGES)


@pytest.mark.parametrize("name", sorted(HOOKS))
def test_every_hook_has_its_signature(name):
    assert signature(documented(ast.FunctionDef)[name]) == signature(HOOKS[name])


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


@pytest.mark.parametrize("name", sorted(documented(ast.ClassDef)))
def test_a_class_that_is_shown_is_as_it_is(name):
    assert members(documented(ast.ClassDef)[name]) == members(CLASSES[name])


def test_nothing_else_is_shown():
    assert set(documented(ast.FunctionDef)) == set(HOOKS)


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
