"""Compiles modules, and makes programs of several of them. Run by the interpreter that will run those, on the
standard library alone: ``python3 -ISB compiling.py``, a :func:`job <main>` as JSON on standard input.

A program is one file with all the modules that it starts with, each executed once, its own imports before it. To
look for thirty files, open and read them takes longer than what is in them. What may be imported later is found
beside it as a usual ``.pyc``.
"""

from __future__ import annotations

import ast
import json
import marshal
import os
import sys
from collections.abc import Iterable
from types import CodeType
from typing import Any

#: Bytes of a ``.pyc`` before the code.
HEADER = 16

# How a program begins. MODULES is put in as a list that is emptied on the way: what a module's own code was needed
# for is done then.
_BEGIN = """
import gc, sys
gc.disable()  # what is loaded stays: to look through it again and again is for nothing
def load(todo, library):
    modules, kind = sys.modules, type(sys)
    while todo:
        name, package, code = todo.pop()
        module = modules[name] = kind(name)
        if package:
            module.__path__ = [library + name.replace(".", "/")]
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(modules[parent], last, module)
        exec(code, module.__dict__)
load("MODULES", sys.prefix + "LIBRARY")
from MAIN import main
code = main()
sys.stdout.flush()
import os
os._exit(code)
"""


class _Lean(ast.NodeTransformer):
    """Without what only people and type checkers read: every pod's supervisor would hold it."""

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return node.orelse
        self.generic_visit(node)
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        return None if node.module == "__future__" else node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return ast.copy_location(ast.Assign([node.target], node.value), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.returns = None
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node


def lean(source: str) -> ast.Module:
    """A module of ours, parsed; without what is not for the interpreter."""
    with open(source, "rb") as file:
        tree: ast.Module = _Lean().visit(ast.parse(file.read(), source))
    return ast.fix_missing_locations(tree)


def write(target: str, code: CodeType) -> None:
    """As a ``.pyc`` file."""
    from importlib.util import MAGIC_NUMBER

    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as file:
        # "hash-based, never checked": no date in it, and no source to look for
        file.write(MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + marshal.dumps(code))


class Modules:
    """Those of ours, and what they import of each other.

    :param sources: of every module, by name; None: an empty package.
    """

    def __init__(self, sources: dict[str, str | None]) -> None:
        self._sources = sources
        self._trees: dict[str, ast.Module] = {}

    def first(self, main: str) -> list[str]:
        """What is executed as ``main`` is imported, in that order: a module after its parent and its imports."""
        ordered: list[str] = []
        self._visit(main, ordered, set())
        return ordered

    def _visit(self, name: str, ordered: list[str], seen: set[str]) -> None:
        if name in seen:
            return
        seen.add(name)
        for needed in (*_parents(name), *self._imports(name, self._tree(name).body)):
            self._visit(needed, ordered, seen)
        ordered.append(name)

    def late(self, first: Iterable[str]) -> set[str]:
        """What modules may import besides, at any time: in their functions, and so on."""
        had = set(first)
        found: set[str] = set()
        waiting = list(had)
        while waiting:
            imported = self._imports(waiting.pop(), None)
            new = {one for name in imported for one in (*_parents(name), name)} - had - found
            found |= new
            waiting += new
        return found

    def _imports(self, name: str, nodes: Iterable[ast.AST] | None) -> list[str]:
        """:param nodes: to look at; None: all of the module's."""
        found = []
        for node in ast.walk(self._tree(name)) if nodes is None else nodes:
            if isinstance(node, ast.Import):
                found += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                found.append(node.module)
                found += [f"{node.module}.{alias.name}" for alias in node.names]
        return [one for one in found if one in self._sources]

    def _tree(self, name: str) -> ast.Module:
        if name not in self._trees:
            source = self._sources[name]
            self._trees[name] = ast.Module([], []) if source is None else lean(source)
        return self._trees[name]

    def is_package(self, name: str) -> bool:
        source = self._sources[name]
        return source is None or source.endswith("/__init__.py")

    def path(self, name: str) -> str:
        """Below the library, without what comes after the last dot."""
        return name.replace(".", "/") + ("/__init__" if self.is_package(name) else "")

    def code(self, name: str) -> CodeType:
        return compile(self._tree(name), f"{self.path(name)}.py", "exec", dont_inherit=True, optimize=2)

    def program(self, main: str, library: str) -> CodeType:
        """What runs ``main()`` of that module. :param library: where what is imported late will be, below the
        interpreter's prefix."""
        modules = [(name, self.is_package(name), self.code(name)) for name in reversed(self.first(main))]
        begin = compile(_BEGIN.replace("MAIN", main), "start", "exec", dont_inherit=True, optimize=2)
        filled = {"MODULES": modules, "LIBRARY": f"{library}/"}
        constants = [filled.get(one, one) if isinstance(one, str) else one for one in begin.co_consts]
        return begin.replace(co_consts=tuple(constants))


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def main(job: dict[str, Any]) -> None:
    """:param job: ``standard``: ``[source, target, shown]`` of each module that is not ours; ``sources``: see
    :class:`Modules`; ``programs``: ``[module, target]`` each; ``library``: the modules' directory below the
    interpreter's prefix; ``directory``: as we know it.
    """
    for source, target, shown in job["standard"]:
        with open(source, "rb") as file:
            code = compile(file.read(), shown, "exec", dont_inherit=True, optimize=2)
        write(target, code)
    modules = Modules(job["sources"])
    late = set()
    for module, target in job["programs"]:
        write(target, modules.program(module, job["library"]))
        late |= modules.late(modules.first(module))
    for name in sorted(late):
        write(f"{job['directory']}/{modules.path(name)}.pyc", modules.code(name))


if __name__ == "__main__":
    main(json.load(sys.stdin))
