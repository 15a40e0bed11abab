"""Compiles Python modules, and bundles several of them into one program file. The interpreter that will run the
programs runs this script, with the standard library alone: ``python3 -ISB compiling.py``, a :func:`job <main>` as
JSON on standard input.

A program is one file with all modules that it needs at start, each executed once and after its own imports: to
find, open and read thirty files takes longer than to execute them. Modules that may be imported later are usual
``.pyc`` files beside it.
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

# The start of each program. MODULES stands for the list of modules. The loop empties that list, so that the code
# objects of executed modules are freed.
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
    """Removes annotations, ``TYPE_CHECKING`` blocks and ``__future__`` imports, which would cost memory in every
    pod's supervisor."""

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
    """Parses a module of Kurma and removes what the interpreter does not need."""
    with open(source, "rb") as file:
        tree: ast.Module = _Lean().visit(ast.parse(file.read(), source))
    return ast.fix_missing_locations(tree)


def write(target: str, code: CodeType) -> None:
    """Writes the code as a ``.pyc`` file."""
    from importlib.util import MAGIC_NUMBER

    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as file:
        # flags 1: hash-based and never checked, so that the file holds no date and needs no source
        file.write(MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + marshal.dumps(code))


class Modules:
    """Kurma's own modules and the imports between them.

    :param sources: the source file of every module, by module name; None: an empty package.
    """

    def __init__(self, sources: dict[str, str | None]) -> None:
        self._sources = sources
        self._trees: dict[str, ast.Module] = {}

    def first(self, main: str) -> list[str]:
        """The modules that an import of ``main`` executes, in order: each after its parent and its imports."""
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
        """The modules that those of ``first`` may import later, in their functions for example."""
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
        """:param nodes: the nodes to search; None: all nodes of the module."""
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
        """The module's file below the library, without its suffix."""
        return name.replace(".", "/") + ("/__init__" if self.is_package(name) else "")

    def code(self, name: str) -> CodeType:
        return compile(self._tree(name), f"{self.path(name)}.py", "exec", dont_inherit=True, optimize=2)

    def program(self, main: str, library: str) -> CodeType:
        """The code that runs ``main()`` of that module. :param library: the directory of modules that are imported
        later, below the interpreter's prefix."""
        modules = [(name, self.is_package(name), self.code(name)) for name in reversed(self.first(main))]
        begin = compile(_BEGIN.replace("MAIN", main), "start", "exec", dont_inherit=True, optimize=2)
        filled = {"MODULES": modules, "LIBRARY": f"{library}/"}
        constants = [filled.get(one, one) if isinstance(one, str) else one for one in begin.co_consts]
        return begin.replace(co_consts=tuple(constants))


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def main(job: dict[str, Any]) -> None:
    """Compiles modules and programs.

    :param job: ``standard``: ``[source, target, shown]`` of each module of the standard library; ``sources``: see
        :class:`Modules`; ``programs``: ``[module, target]`` each; ``library``: the modules' directory below the
        interpreter's prefix; ``directory``: the path of that directory on the host.
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
