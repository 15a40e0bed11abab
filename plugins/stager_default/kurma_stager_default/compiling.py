"""Compiles modules, and makes programs of several of them. Run by the interpreter that will run those, on the
standard library alone: ``python3 -ISB compiling.py``, a :func:`job <main>` as JSON on standard input.

A program is one file with all the modules that it starts with, each executed once, its own imports before it. To
look for thirty files, open and read them takes longer than what is in them. What is imported later, or by other
programs, is found beside it as a usual ``.pyc``.
"""

from __future__ import annotations

import ast
import json
import marshal
import sys
from importlib.util import MAGIC_NUMBER
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
load("MODULES", "LIBRARY")
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


def compiled(source: str, shown: str, *, lean: bool = True) -> CodeType:
    """:param source: a file; ``shown``: the name that it has in tracebacks.
    :param lean: for ours; the standard library is left as it is.
    """
    with open(source, "rb") as file:
        tree = ast.parse(file.read(), shown)
    if lean:
        tree = ast.fix_missing_locations(_Lean().visit(tree))
    return compile(tree, shown, "exec", dont_inherit=True, optimize=2)


def pyc(code: CodeType) -> bytes:
    # "hash-based, never checked": no date in it, and no source to look for
    return MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + marshal.dumps(code)


class Program:
    """:param sources: of every module of ours, by name; None: an empty package."""

    def __init__(self, sources: dict[str, str | None], library: str) -> None:
        self._sources = sources
        self._library = library

    def code(self, main: str) -> CodeType:
        """What runs ``main()`` of that module."""
        ordered: list[str] = []
        self._visit(main, ordered, set())
        modules = [(name, self._is_package(name), self._compiled(name)) for name in reversed(ordered)]
        begin = compile(_BEGIN.replace("MAIN", main), "start", "exec", dont_inherit=True, optimize=2)
        filled = {"MODULES": modules, "LIBRARY": f"{self._library}/"}
        constants = [filled.get(one, one) if isinstance(one, str) else one for one in begin.co_consts]
        return begin.replace(co_consts=tuple(constants))

    def _visit(self, name: str, ordered: list[str], seen: set[str]) -> None:
        """Adds a module after its parent and all that it imports as it is loaded."""
        if name in seen:
            return
        seen.add(name)
        parent = name.rpartition(".")[0]
        if parent:
            self._visit(parent, ordered, seen)
        for imported in self._imports(name):
            self._visit(imported, ordered, seen)
        ordered.append(name)

    def _imports(self, name: str) -> list[str]:
        source = self._sources[name]
        if source is None:
            return []
        with open(source, "rb") as file:
            tree = ast.parse(file.read(), source)
        found = []
        for node in tree.body:  # what stands in a function, or under TYPE_CHECKING, is not imported at once
            if isinstance(node, ast.Import):
                found += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                found.append(node.module)
                found += [f"{node.module}.{alias.name}" for alias in node.names]
        return [one for one in found if one in self._sources]

    def _is_package(self, name: str) -> bool:
        source = self._sources[name]
        return source is None or source.endswith("/__init__.py")

    def _compiled(self, name: str) -> CodeType:
        source = self._sources[name]
        shown = name.replace(".", "/") + ("/__init__.py" if self._is_package(name) else ".py")
        return compile("", shown, "exec", dont_inherit=True) if source is None else compiled(source, shown)


def main(job: dict[str, Any]) -> None:
    """:param job: ``modules``: ``[source, target, shown, lean]`` each; ``programs``: ``[module, target]`` each;
    all become ``.pyc`` files. ``sources``: see :class:`Program`; ``library``: the directory where modules will be.
    """
    for source, target, shown, lean in job["modules"]:
        with open(target, "wb") as file:
            file.write(pyc(compiled(source, shown, lean=lean)))
    programs = Program(job["sources"], job["library"])
    for module, target in job["programs"]:
        with open(target, "wb") as file:
            file.write(pyc(programs.code(module)))


if __name__ == "__main__":
    main(json.load(sys.stdin))
