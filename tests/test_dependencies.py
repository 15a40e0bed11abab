"""Each distribution of the workspace names what its modules import: it may be installed without the others."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: The standard library's, in later Pythons.
LATER = {"compression"}
PACKAGES = [ROOT / "kurma_core", *sorted(ROOT.glob("plugins/*/kurma_*/")), ROOT / "libs/testing/kurma_testing"]
#: Distributions that know the standard library alone; the pytest plugin is for plugin authors.
LIBRARIES = sorted(set(ROOT.glob("libs/*/kurma_*/")) - {ROOT / "libs/testing/kurma_testing"})


def imported(package):
    """Top-level modules that a package's modules import, wherever they do; what is for type checkers aside."""
    found = set()
    for path in package.rglob("*.py"):
        waiting = [ast.parse(path.read_text())]
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                waiting += node.orelse
                continue
            if isinstance(node, ast.Import):
                found |= {name.name.split(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(node.module.split(".")[0])
            waiting += ast.iter_child_nodes(node)
    return found


@pytest.mark.parametrize("package", LIBRARIES, ids=lambda package: package.name)
def test_libraries_know_the_standard_library_alone(package):
    """They also ship inside stagers' images, and are told what they need of Kurma by their callers."""
    assert imported(package) - sys.stdlib_module_names - {package.name} == set()
    assert tomllib.loads((package.parent / "pyproject.toml").read_text())["project"]["dependencies"] == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_what_is_imported_is_named(package):
    told = tomllib.loads((package.parent / "pyproject.toml").read_text())["project"]
    extras = [text for texts in told.get("optional-dependencies", {}).values() for text in texts]
    named = {re.match("[A-Za-z0-9._-]+", text)[0] for text in [*told["dependencies"], *extras]}
    distributions = packages_distributions()
    foreign = imported(package) - sys.stdlib_module_names - LATER - {package.name}
    assert {"kurma_core", "pluggy"} & foreign, "this looks at nothing"
    unnamed = {
        module
        for module in foreign
        if not named & {module.replace("_", "-"), *map(str.lower, distributions.get(module, ()))}
    }
    assert unnamed == set()
