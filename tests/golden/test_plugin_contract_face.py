"""18: the face of the plugin contract: each hook, signature and field of a value that passes between the core and
plugins. It is in ``tests/golden/plugin_contract.json``, and changes only with the version of the contract.

After a change that is meant, raise ``CONTRACT`` (and ``OLDEST``, as ``plugin_contract.md`` says), add a row
to that page, and then:

    KURMA_GOLDEN=write ./dev test tests/golden/test_plugin_contract_face.py
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kurma_core import VERSION, hookspecs
from kurma_core.hookspecs import CONTRACT, GROUPS, NEEDED, OLDEST
from tests.docs.pages import find_page

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests/golden/plugin_contract.json"
PAGE = find_page("plugin_contract.md").read_text()
#: What specifications are made of, and no part of the contract.
MACHINERY = {"Answer", "Hook", "Hooks"}
#: The client's API, which services and commands get, has rules and a golden file of its own (``api.md``).
API = "kurma_core.api"


# --- the face --------------------------------------------------------------------------------------------------


@cache
def classes(module: str) -> dict[str, ast.ClassDef]:
    """The public classes of a module of the core."""
    return {
        node.name: node for node in tree(module).body if isinstance(node, ast.ClassDef) and node.name[0] != "_"
    }


@cache
def tree(module: str) -> ast.Module:
    path = ROOT / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text())


@cache
def imported(module: str) -> dict[str, str]:
    """The names that a module imports from the core, also for type checkers alone, and the module of each."""
    return {
        alias.asname or alias.name: node.module
        for node in ast.walk(tree(module))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kurma_core")
        for alias in node.names
        if node.module is not None
    }


def found_in(module: str, text: str) -> Iterator[tuple[str, str]]:
    """The classes of the core that an annotation names: module and name."""
    for name in re.findall(r"\w+", text):
        where = module if name in classes(module) else imported(module).get(name)
        if where is not None and not where.startswith(API) and name in classes(where):
            yield where, name


def members(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """A line for each part of a class that plugins rely on, and the annotation in it."""
    for base in node.bases:
        yield f"is {ast.unparse(base)}", ast.unparse(base)
    for item in node.body:
        if isinstance(item, ast.AnnAssign):
            name, kind = ast.unparse(item.target), ast.unparse(item.annotation)
            if name[0] != "_" and "ClassVar" not in kind:
                yield f"{name}: {kind}" + (f" = {ast.unparse(item.value)}" if item.value else ""), kind
        elif isinstance(item, ast.FunctionDef) and item.name[0] != "_":
            marks = [mark for mark in map(ast.unparse, item.decorator_list) if mark != "hookspec"]
            if any("required=True" in mark for mark in marks):
                yield f"{item.name} is required", ""
            answer = ast.unparse(item.returns) if item.returns else "None"
            yield f"{item.name}() -> {answer}", answer
            arguments = [*item.args.posonlyargs, *item.args.args, *item.args.kwonlyargs]
            for argument in arguments:
                if argument.annotation is not None:
                    kind = ast.unparse(argument.annotation)
                    yield f"{item.name}({argument.arg}: {kind})", kind


def face() -> dict[str, list[str]]:
    """By class, its lines: of specifications, of all values that these name, directly or not, and of errors."""
    package = hookspecs.__name__
    modules = [f"{package}.{file.stem}" for file in (ROOT / "kurma_core/hookspecs").glob("[!_]*.py")]
    modules += [package, "kurma_core.errors"]
    waiting = [(module, name) for module in modules for name in classes(module) if name not in MACHINERY]
    found: dict[str, list[str]] = {"groups": [f"{group}: {hook}" for group, hook in GROUPS.items()] + [NEEDED]}
    while waiting:
        module, name = waiting.pop()
        if f"{module}.{name}" in found:
            continue
        lines = found[f"{module}.{name}"] = []
        for line, annotation in members(classes(module)[name]):
            lines.append(line)
            waiting += [one for one in found_in(module, annotation) if one[1] not in MACHINERY]
    return {name: sorted(lines) for name, lines in sorted(found.items())}


# --- its changes -----------------------------------------------------------------------------------------------


def flat(lines_by_class: dict[str, Collection[str]]) -> set[str]:
    return {f"{name}: {line}" for name, lines in lines_by_class.items() for line in lines}


def breaking(before: dict[str, Collection[str]], after: dict[str, Collection[str]]) -> set[str]:
    """The lines of changes with which a plugin of the version before would not go on working."""
    added = {line for line in flat(after) - flat(before) if line.partition(": ")[0] in before}
    asked = {line for line in added if line.endswith(" is required")}
    fields = {line for line in added if re.fullmatch(r"[\w.]+: \w+: [^=]+", line)}
    return (flat(before) - flat(after)) | asked | fields


def refusal(golden: dict[str, Any], found: dict[str, Any]) -> str:
    """What is wrong with a change from one face to another; empty: it may be written down.

    A version of the contract is open until the release of Kurma that brings it.
    """
    if golden["face"] == found["face"] or golden["since"] == found["since"]:
        return ""
    if found["contract"] <= golden["contract"]:
        return "the contract has changed: raise CONTRACT of kurma_core/hookspecs/__init__.py"
    gone = breaking(golden["face"], found["face"])
    if gone and found["oldest"] <= golden["contract"]:
        return f"plugins of the version before would fail ({min(gone)}): raise OLDEST to {found['contract']}, too"
    return ""


def test_the_face_of_the_contract_changes_with_its_version() -> None:
    found = {"contract": CONTRACT, "oldest": OLDEST, "since": VERSION, "face": face()}
    golden = json.loads(FILE.read_text())
    if os.environ.get("KURMA_GOLDEN") == "write" and golden["face"] != found["face"]:
        assert not refusal(golden, found), refusal(golden, found)
        FILE.write_text(json.dumps(found, indent=1) + "\n")
        golden = found
    gone, new = flat(golden["face"]) - flat(found["face"]), flat(found["face"]) - flat(golden["face"])
    changes = [*(f"- {line}" for line in sorted(gone)), *(f"+ {line}" for line in sorted(new))]
    assert not changes, "\n".join([refusal(golden, found) or "write it down: KURMA_GOLDEN=write", *changes])
    assert (golden["contract"], golden["oldest"]) == (CONTRACT, OLDEST)


def test_the_page_says_which_release_brings_the_version() -> None:
    rows = re.findall(r"^\| (\d+) \| ([\d.]+) \| .+ \|$", PAGE, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, CONTRACT + 1))
    said = f"This Kurma has version {CONTRACT}, and loads plugins that need version {OLDEST}."
    assert said in " ".join(PAGE.split())


def test_the_face_has_all_kinds_and_the_values_that_they_pass() -> None:
    names = {name.rpartition(".")[2] for name in face()}
    assert {"IsolatorHooks", "RunningStagerHooks", "ModuleHooks", "Driver", "DriverContext", "Option"} <= names
    assert {"IsolatorPlan", "NetworkResult", "RenderedLayer", "PodSetup", "PodEvent", "AppStatus"} <= names
    assert {"KurmaError", "NetworkError", "PluginSkipped"} <= names
    assert NEEDED in face()["groups"]
    lines = face()["kurma_core.hookspecs.isolator.IsolatorHooks"]
    assert {"compile is required", "compile(host: IsolatorHost)", "compile() -> Compiled"} <= set(lines)
    assert "note: str = ''" in face()["kurma_core.hookspecs.isolator.Compiled"]


HOOK, VALUE = "hooks.Hooks", "hooks.Value"
OLD = {HOOK: ["add() -> int", "add(one: str)"], VALUE: ["size: int"]}


@pytest.mark.parametrize(
    ("change", "contract", "oldest", "said"),
    [
        ({}, 1, 1, ""),
        ({HOOK: [*OLD[HOOK], "add(two: str)"]}, 1, 1, "raise CONTRACT"),
        ({HOOK: [*OLD[HOOK], "add(two: str)"]}, 2, 1, ""),
        ({HOOK: [*OLD[HOOK], "drop() -> int"]}, 2, 1, ""),
        ({HOOK: [*OLD[HOOK], "drop() -> int", "drop is required"]}, 2, 1, "drop is required): raise OLDEST to 2"),
        ({HOOK: ["add() -> int"]}, 2, 1, "raise OLDEST to 2"),
        ({HOOK: ["add() -> int"]}, 2, 2, ""),
        ({HOOK: ["add() -> str", "add(one: str)"]}, 2, 1, "raise OLDEST to 2"),
        ({VALUE: ["size: int", "more: int = 0"]}, 2, 1, ""),
        ({VALUE: ["size: int", "more: int"]}, 2, 1, "raise OLDEST to 2"),
        ({VALUE: ["size: str"]}, 1, 1, "raise CONTRACT"),
        ({"hooks.New": ["field: int"]}, 2, 1, ""),
    ],
)
def test_a_change_needs_the_version_that_it_needs(change: Any, contract: int, oldest: int, said: str) -> None:
    golden = {"contract": 1, "oldest": 1, "since": "0.1.0", "face": OLD}
    found = {"contract": contract, "oldest": oldest, "since": "0.2.0", "face": {**OLD, **change}}
    assert said in refusal(golden, found)
    assert bool(said) == bool(refusal(golden, found))
    assert not refusal(golden, {**found, "since": "0.1.0"}), "the version is open until its release"
