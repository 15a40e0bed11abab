"""The core calls drivers by their hooks: it asks none whether it has a method, and casts none (18)."""

import ast
import re
from pathlib import Path

import pytest

from kurma_core.hookspecs import SPECS
from kurma_core.plugins import contract

ROOT = Path(__file__).parents[1]
#: Names of variables that hold drivers, and objects that drivers return.
DRIVERS = {"driver", "stager", "fetcher", "renderer", "running", "collector", "network", "isolator", "observer"}
#: Protocols of ``kurma_core/hookspecs``: objects that the core passes to a plugin.
PROTOCOLS = {"CommandSession", "ImageFiles", "RenderCache", "Started", "StoredLayer"}


def subject(node):
    """The expression that a call of ``hasattr``, of ``getattr`` with a default, or of ``cast`` is about; None:
    another node."""
    if not isinstance(node, ast.Call):
        return None
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if called == "hasattr" or (called == "getattr" and len(node.args) == 3):
        return node.args[0]
    return node.args[1] if called == "cast" and len(node.args) == 2 else None


def names(node):
    """The names in an expression: of variables, attributes and functions."""
    return {getattr(one, "id", None) or getattr(one, "attr", None) for one in ast.walk(node)}


def drivers_that_are_asked(text):
    """The places in a module's text that look at a driver, or at what a registry returned."""
    return [
        (node.lineno, ast.unparse(node))
        for node in ast.walk(ast.parse(text))
        if (about := subject(node)) is not None and (DRIVERS | {"registry"}) & names(about)
    ]


@pytest.mark.parametrize(
    "text",
    [
        "hasattr(self._drivers[0].driver, 'limits')",
        "getattr(registry.driver('kurma.networks', 'x'), 'limits', None)",
        "typing.cast('NetworkHooks', self._registry.registry.driver(name))",
        "cast('StagerHooks', stager)",
        "getattr(running, 'has_come_up', lambda: False)",
    ],
)
def test_the_scan_finds(text):
    assert drivers_that_are_asked(text)


def test_no_driver_is_asked_for_a_method_or_cast():
    found = [
        f"{file.relative_to(ROOT)}:{line} {text}"
        for file in sorted((ROOT / "kurma_core").rglob("*.py"))
        if file.parent != ROOT / "kurma_core/plugins"  # which checks drivers
        for line, text in drivers_that_are_asked(file.read_text())
    ]
    assert not found, "use implements(driver, Hooks.method), or the hook's answer for drivers without it"


def test_a_plugin_gets_protocols_and_returns_hooks():
    found = {
        node.name
        for file in (ROOT / "kurma_core/hookspecs").glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in node.bases)
    }
    assert found == PROTOCOLS
    kinds = [kind for group in SPECS for kind in contract.kinds(group)]
    for hook in (hook for kind in kinds for hook in kind.HOOKS.values()):
        assert not PROTOCOLS & set(re.findall(r"\w+", hook.answer.text)), hook.name
