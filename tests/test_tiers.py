"""``./dev test`` keeps a test of each folder of scenarios and of each requirement that a test names."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.tiers import VARIANTS

PROJECT = Path(__file__).parents[1]
#: Codes of requirements: X6.
CODE = re.compile(r"\b[A-Z]\d{1,2}\b")


def is_full(node: ast.AST) -> bool:
    return "pytest.mark.full" in ast.unparse(node)


def functions_of(
    node: ast.Module | ast.ClassDef, codes: frozenset[str], full: bool
) -> Iterator[tuple[frozenset[str], bool]]:
    """Each test function: the codes that it, its class or its module names; whether it is marked ``full``."""
    codes = codes | set(CODE.findall(ast.get_docstring(node) or ""))
    for child in node.body:
        if isinstance(child, ast.Assign) and ast.unparse(child.targets[0]) == "pytestmark":
            full = full or is_full(child.value)
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.ClassDef) and child.name.startswith(("test_", "Test")):
            # A mark within parametrize leaves the test's other parameters.
            marked = full or any(
                map(is_full, (one for one in child.decorator_list if isinstance(one, ast.Attribute)))
            )
            if isinstance(child, ast.ClassDef):
                yield from functions_of(child, codes, marked)
            else:
                yield codes | set(CODE.findall(ast.get_docstring(child) or "")), marked


@cache
def suite() -> dict[Path, list[tuple[frozenset[str], bool]]]:
    places = ("tests", "libs", "plugins", "examples")
    files = [path for place in places for path in (PROJECT / place).rglob("test_*.py")]
    return {path: list(functions_of(ast.parse(path.read_text()), frozenset(), False)) for path in files}


def test_each_requirement_keeps_a_test() -> None:
    named = {code for tests in suite().values() for codes, _ in tests for code in codes}
    kept = {code for tests in suite().values() for codes, full in tests if not full for code in codes}
    assert named == kept, f"only tests marked full name these: {sorted(named - kept)}"


def test_each_folder_of_scenarios_keeps_a_test() -> None:
    scenarios = PROJECT / "tests" / "integration"
    of_folder: dict[str, bool] = {}
    for path, tests in suite().items():
        if scenarios in path.parents and path.parent != scenarios:
            folder = path.relative_to(scenarios).parts[0]
            of_folder[folder] = of_folder.get(folder, False) or not all(full for _, full in tests)
    assert of_folder
    assert all(of_folder.values()), of_folder


def test_variants_are_parameters() -> None:
    """A parameter that was renamed would put its repetitions back into ``./dev test``."""
    text = "\n".join(path.read_text() for path in (PROJECT / "tests").rglob("*.py"))
    for name in VARIANTS:
        assert re.search(rf'parametrize\(\(?"(\w+", ?")*{name}"|params=.*\ndef {name}\(', text), name


def test_repetitions_under_a_variant_are_full(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.fixture(params=['here', 'kurmad'])\n"
        "def way(request):\n    return request.param\n"
        "@pytest.mark.root\n"
        "@pytest.mark.parametrize('storage', ['overlay', 'copy'])\n"
        "@pytest.mark.parametrize('case', [1, 2])\n"
        "def test_scenario(way, storage, case):\n    pass\n"
        "@pytest.mark.root\n"
        "@pytest.mark.parametrize('way', ['kurmad'], indirect=True)\n"
        "def test_one_way(way):\n    pass\n"
        "def test_fast(way):\n    pass\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--collect-only",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.tiers",
    ]
    command += ["-c", os.devnull, "--rootdir", tmp_path, "-m", "not full", tmp_path]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=PROJECT, env=environment, check=True)
    assert re.findall(r"::(\S+)", done.stdout) == [
        "test_scenario[here-1-overlay]",
        "test_scenario[here-2-overlay]",
        "test_one_way[kurmad]",
        "test_fast[here]",
        "test_fast[kurmad]",
    ]
