"""The core calls drivers by their hooks: it asks none whether it has a method, and casts none."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Names of variables that hold drivers, and objects that drivers return.
DRIVERS = {"driver", "stager", "fetcher", "renderer", "running", "collector", "network", "isolator", "observer"}
#: Protocols of ``kurma_core/hookspecs``: objects that the core passes to a plugin; and the reason for another.
PROTOCOLS = {
    "CommandSession": "of the core",
    "ImageFiles": "of the core",
    "RenderCache": "of the core",
    "Started": "of the core",
}


def asked(node):
    """What a call of ``hasattr``, or of ``getattr`` with a default, looks at; None: another node."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return None
    if node.func.id == "hasattr" or (node.func.id == "getattr" and len(node.args) == 3):
        return ast.unparse(node.args[0])
    return None


def test_no_driver_is_asked_for_a_method():
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)}"
        for file in sorted((ROOT / "kurma_core").rglob("*.py"))
        if file.parent != ROOT / "kurma_core/plugins"  # which checks drivers
        for node in ast.walk(ast.parse(file.read_text()))
        if (subject := asked(node)) is not None and DRIVERS & set(subject.replace("(", ".").split("."))
    ]
    assert not found, "use implements(driver, Hooks.method), or the hook's answer for drivers without it"


def test_a_plugin_gets_protocols_and_returns_hooks():
    found = {
        node.name
        for file in (ROOT / "kurma_core/hookspecs").glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in node.bases)
    }
    assert found == set(PROTOCOLS)
