"""Writes the reference of the plugin contract from the code: ``./dev docs``.

A part stands between two markers. ``<!-- reference: kurma_core.hookspecs.network -->`` and ``<!-- end -->`` hold
all public names of a module, ``<!-- reference: kurma_core.models.network NetworkResult -->`` some of them. The
texts are the docstrings, and ``#:`` comments of constants and attributes; a docstring has these fields:

- ``:param x:`` an argument, or a field of a value; with units and shape
- ``:returns:`` the answer
- ``:raises SomeError:`` when; in the docstring of a specification, of all hooks that say nothing else
- ``:called:`` when Kurma calls the hook

The example of a hook is the code of a plugin: of ``examples/plugins``, else of ``plugins``, else the core's own.
The text around the parts is written by hand.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from kurma_core.api.describe import documentation_parts
from kurma_core.hookspecs import SPECS

ROOT = Path(__file__).parents[1]
_PLACE = ROOT / "docs/reference"
PAGES = [_PLACE / "plugin_hooks.md", _PLACE / "public_modules.md", *sorted((_PLACE / "hooks").glob("*.md"))]
MARKER = re.compile(r"(<!-- reference: (\S+)((?: \w+)*) -->\n).*?(<!-- end -->)", re.DOTALL)
#: The module whose classes are one table.
ERRORS = "kurma_core.errors"
#: Where examples are looked for, in this order.
_EXAMPLES = ("examples/plugins/*", "plugins/*/kurma_*", "kurma_core")
Definition = ast.ClassDef | ast.FunctionDef | ast.Assign | ast.AnnAssign


# --- the code ----------------------------------------------------------------------------------------------------


class Module:
    """The public names of a module, in the order of its source."""

    def __init__(self, name: str) -> None:
        path = ROOT / name.replace(".", "/")
        self.name = name
        self.file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        self.text = self.file.read_text(encoding="utf-8")
        self.lines = self.text.splitlines()
        tree = ast.parse(self.text)
        self.doc = ast.get_docstring(tree) or ""
        #: Shapes that are declared as plain types for type checkers, by name.
        self.aliases: dict[str, str] = {}
        self.names: dict[str, Definition] = {}
        for node in tree.body:
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                for one in node.body:
                    if isinstance(one, ast.Assign) and isinstance(one.value, ast.Name):
                        self.aliases |= dict.fromkeys(_defined(one), one.value.id)
        for node in _statements(tree.body):
            for name_ in _defined(node):
                # For type checkers, some names are declared in another way before.
                if not name_.startswith("_") and not _is_overload(node):
                    self.names[name_] = node

    def source(self, node: ast.AST) -> str:
        return ast.get_source_segment(self.text, node) or ""

    def comment(self, node: ast.stmt) -> str:
        """The ``#:`` comment above a constant or an attribute, or above the lines that it stands among."""
        found: list[str] = []
        for line in reversed(self.lines[: node.lineno - 1]):
            line = line.strip()
            if line.startswith("#:"):
                found.insert(0, line[2:].strip())
            elif found or not line or line.startswith(("#", "class ", "@", '"""')):
                break
        return " ".join(found)


def _statements(body: Sequence[ast.stmt]) -> Iterator[Definition]:
    """Definitions of a module, those for the interpreter after those for type checkers."""
    for node in body:
        if isinstance(node, ast.If):
            if "TYPE_CHECKING" not in ast.unparse(node.test):
                yield from _statements(node.body)
            yield from _statements(node.orelse)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.Assign | ast.AnnAssign):
            yield node


def _defined(node: Definition) -> Iterator[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        yield node.name
    else:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            for each in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(each, ast.Name) and each.id != "TYPE_CHECKING":
                    yield each.id


def _is_overload(node: Definition) -> bool:
    return isinstance(node, ast.FunctionDef) and "overload" in map(ast.unparse, node.decorator_list)


@cache
def module(name: str) -> Module:
    return Module(name)


def is_specification(node: Definition) -> bool:
    return isinstance(node, ast.ClassDef) and node.name.endswith("Hooks") and node.name != "Hooks"


def is_error(of: Module, node: Definition) -> bool:
    return of.name == ERRORS and isinstance(node, ast.ClassDef)


def hooks(node: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    """The hooks that a specification declares itself."""
    return {one.name: one for one in node.body if isinstance(one, ast.FunctionDef) and _mark(one, "hookspec")}


def methods(node: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    """The public methods of a class; without those that only fill in methods of a base class."""
    return {
        one.name: one
        for one in node.body
        if isinstance(one, ast.FunctionDef)
        and not one.name.startswith("_")
        and (ast.get_docstring(one) or not (node.bases and _bases(node) != ["Protocol"]))
    }


def maker(node: ast.ClassDef) -> ast.FunctionDef | None:
    """The ``__init__`` or ``__new__`` of a class, if callers pass it arguments; values have fields instead."""
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and one.name in ("__init__", "__new__") and len(_arguments(one)) > 1:
            return one
    return None


def _arguments(node: ast.FunctionDef) -> list[ast.arg]:
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]


def attributes(node: ast.ClassDef) -> dict[str, ast.AnnAssign]:
    """The annotated attributes of a class: fields of a value."""
    return {
        one.target.id: one
        for one in node.body
        if isinstance(one, ast.AnnAssign)
        and isinstance(one.target, ast.Name)
        and "ClassVar" not in ast.unparse(one.annotation)
        and not one.target.id.startswith("_")
    }


def _bases(node: ast.ClassDef) -> list[str]:
    return [ast.unparse(base).rpartition(".")[2] for base in node.bases]


def _mark(node: ast.FunctionDef, name: str) -> str:
    """The text of the mark, ``hookimpl`` or ``hookspec``; "": the function has none."""
    return next((text for text in map(ast.unparse, node.decorator_list) if text.startswith(name)), "")


def is_required(hook: ast.FunctionDef) -> bool:
    return "required=True" in _mark(hook, "hookspec")


# --- docstrings --------------------------------------------------------------------------------------------------


class Text:
    """The parts of a docstring."""

    def __init__(self, documentation: str) -> None:
        self.prose: list[str] = []
        self.parameters: dict[str, str] = {}
        self.returns = self.called = ""
        self.raises: list[tuple[str, str]] = []
        for paragraph in inspect.cleandoc(documentation).split("\n\n"):
            if paragraph.startswith("    "):
                self.prose.append(_code(textwrap.dedent(paragraph)))
            elif paragraph.startswith("- "):
                self.prose.append("\n".join([inline(f"{line}.") for line in paragraph.splitlines()]))
            else:
                self._add(paragraph)

    def _add(self, paragraph: str) -> None:
        for word, name, text in documentation_parts(paragraph):
            match word:
                case "param":
                    self.parameters[name] = text
                case "raises":
                    self.raises.append((name, text))
                case "returns":
                    self.returns = text
                case "called":
                    self.called = text
                case _:
                    self.prose.append(text.removesuffix(":") if text.endswith("::") else text)


def text_of(node: ast.ClassDef | ast.FunctionDef) -> Text:
    return Text(ast.get_docstring(node) or "")


# --- the page ----------------------------------------------------------------------------------------------------


def page(file: Path) -> str:
    """The text of a page with its parts written anew."""

    def written(found: re.Match[str]) -> str:
        begin, name, names, end = found.groups()
        return f"{begin}\n{part(module(name), names.split(), file)}\n{end}"

    return MARKER.sub(written, file.read_text(encoding="utf-8"))


def parts() -> Iterator[tuple[Path, Module, list[str]]]:
    """Page, module and names of each part."""
    for file in PAGES:
        for found in MARKER.finditer(file.read_text(encoding="utf-8")):
            of = module(found[2])
            yield file, of, found[3].split() or list(of.names)


@cache
def pages_of_classes() -> dict[str, Path]:
    """The page that describes a class, by the class's name."""
    return {
        name: file for file, of, names in parts() for name in names if isinstance(of.names[name], ast.ClassDef)
    }


def words_of(node: Definition) -> Iterator[str]:
    """Names in the annotations of the public parts of a class."""
    if not isinstance(node, ast.ClassDef):
        return
    annotations = [one.annotation for one in attributes(node).values()]
    for call in (*hooks(node).values(), *methods(node).values()):
        annotations += [each.annotation for each in _arguments(call) if each.annotation]
        annotations += [call.returns] if call.returns else []
    for annotation in annotations:
        yield from (one.id for one in ast.walk(annotation) if isinstance(one, ast.Name))


def part(of: Module, names: Sequence[str], file: Path) -> str:
    """The reference of a module. :param names: only these; empty: all. :param file: the page that it is for."""
    wanted = {name: of.names[name] for name in names or of.names}
    constants = {name: node for name, node in wanted.items() if isinstance(node, ast.Assign | ast.AnnAssign)}
    others = [node for name, node in wanted.items() if name not in constants]
    # First the hooks of drivers, then those of objects that drivers return, then arguments and answers.
    drivers = {spec for _, *specs in SPECS.values() for spec in specs}
    others.sort(key=lambda node: (not is_specification(node), getattr(node, "name", "") not in drivers))
    about = Text("" if names else of.doc)
    blocks = [*about.prose, *filter(None, [_list(about)]), f"Import these from `{of.name}`."]
    links = _links(others, file)
    if links:
        blocks.append(f"Types that other pages describe: {', '.join(links)}.")
    if constants:
        rows = [(f"`{name}`", _short(of, node), inline(of.comment(node))) for name, node in constants.items()]
        blocks.append(_table(("constant", "value", "meaning"), rows))
    if of.name == ERRORS:
        blocks.append(_errors(of))
    for node in others:
        if isinstance(node, ast.FunctionDef):
            blocks += _function(of, node, "###")
        elif isinstance(node, ast.ClassDef) and (of.name != ERRORS or methods(node) or maker(node)):
            blocks += _class(of, node)
    return "\n\n".join(blocks) + "\n"


def _links(nodes: Sequence[Definition], file: Path) -> list[str]:
    """Links to the classes of signatures that other pages describe."""
    used = {word for node in nodes for word in words_of(node)}
    others = {name: page for name, page in pages_of_classes().items() if name in used and page != file}
    return [
        f"[`{name}`]({os.path.relpath(page, file.parent)}#{name.lower()})" for name, page in sorted(others.items())
    ]


def _class(of: Module, node: ast.ClassDef) -> Iterator[str]:
    text = text_of(node)
    yield f"### `{node.name}`"
    made = maker(node)
    if made is not None:
        yield _code(_call(of, node.name, made))
    if is_specification(node) and _bases(node) != ["Hooks"]:
        yield f"These hooks, and those of `{_bases(node)[0]}`."
    yield from text.prose
    found = attributes(node)
    if found:
        meanings = {name: text.parameters.get(name) or inline(of.comment(one)) for name, one in found.items()}
        rows = [(f"`{name}`", _type(of, one), _default(of, one), meanings[name]) for name, one in found.items()]
        yield _table(("field", "type", "default", "meaning"), rows)
    elif text.parameters:
        yield _list(text)
    if is_specification(node):
        every = hooks(node).values()
        for word, those in (
            ("Required", [one.name for one in every if is_required(one)]),
            ("Optional", [one.name for one in every if not is_required(one)]),
        ):
            if those:
                yield f"{word}: " + ", ".join([f"`{name}`" for name in those]) + "."
        for hook in every:
            yield from _hook(of, node, hook, text.raises)
        return
    for method in methods(node).values():
        yield from _function(of, method, "####", f"{node.name}.")


def _function(of: Module, node: ast.FunctionDef, level: str, prefix: str = "") -> Iterator[str]:
    text = text_of(node)
    yield f"{level} `{prefix}{node.name}`"
    yield _code(signature(of, node))
    yield from text.prose
    if text.parameters or text.returns or text.raises:
        yield _list(text)


def _hook(of: Module, spec: ast.ClassDef, node: ast.FunctionDef, raises: list[tuple[str, str]]) -> Iterator[str]:
    text = text_of(node)
    text.raises = text.raises or raises
    yield f"#### `{node.name}`" + (", required" if is_required(node) else "")
    yield _code(signature(of, node))
    yield from text.prose
    yield _list(text)
    found = example(spec, node.name)
    if found is not None:
        yield _code(f"# {found[0]}\n{found[1]}")


def _list(text: Text) -> str:
    lines = [f"- **Called** {text.called}."] if text.called else []
    lines += [f"- `{name}`: {meaning}." for name, meaning in text.parameters.items()]
    if text.returns:
        lines.append(f"- **Returns** {text.returns}.")
    lines += [f"- **Raises** `{name}`" + (f": {when}." if when else ".") for name, when in text.raises]
    return "\n".join(lines)


def _errors(of: Module) -> str:
    """The table of the tree of errors."""
    codes = {"KurmaError": "125"}
    rows = []
    for name, node in of.names.items():
        assert isinstance(node, ast.ClassDef)
        base = _bases(node)[0]
        own = [ast.unparse(one.value) for one in node.body if isinstance(one, ast.Assign)]
        codes[name] = next(iter(own), codes.get(name) or codes.get(base, "–"))
        rows.append((f"`{name}`", f"`{base}`", codes[name], " ".join(text_of(node).prose)))
    return _table(("error", "is a", "exit code", "meaning"), rows)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    lines += ["| " + " | ".join([cell.replace("|", "\\|") for cell in row]) + " |" for row in rows]
    return "\n".join(lines)


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def inline(text: str) -> str:
    """A ``#:`` comment as the texts of docstrings."""
    return next((found for _, _, found in documentation_parts(text)), "").removesuffix(".")


def signature(of: Module, node: ast.FunctionDef) -> str:
    """The signature as in the source, dedented, with the decorators of properties and class methods."""
    assert node.returns is not None, f"{of.name}: {node.name} has no annotation of its answer"
    end_line, end_column = node.returns.end_lineno, node.returns.end_col_offset
    assert end_line is not None
    assert end_column is not None
    lines = [line.encode() for line in of.lines[node.lineno - 1 : end_line]]
    lines[-1] = lines[-1][:end_column]
    text = textwrap.dedent(b"\n".join(lines).decode())
    marks = [f"@{mark}\n" for mark in map(ast.unparse, node.decorator_list) if mark in _DECORATORS]
    return "".join(marks) + text


def _call(of: Module, name: str, node: ast.FunctionDef) -> str:
    """The signature of a class, from its ``__init__`` or ``__new__``."""
    text = signature(of, node)
    begin, end = text.index("(") + 1, text.rindex("->")
    inner = re.sub(r"^\s*(self|cls)\s*,\s*", "", " ".join(text[begin:end].rstrip(" )").split()))
    return f"{name}({inner.rstrip(' ,')})"


_DECORATORS = ("property", "classmethod", "staticmethod")


def _type(of: Module, node: ast.AnnAssign) -> str:
    text = " ".join(of.source(node.annotation).split())
    return "`" + re.sub(r"\w+", lambda word: of.aliases.get(word[0], word[0]), text) + "`"


def _default(of: Module, node: ast.AnnAssign) -> str:
    """The default of a field; "": the field is required."""
    value = node.value
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        given = {one.arg: one.value for one in value.keywords}
        if "default_factory" in given:
            made = ast.unparse(given["default_factory"])
            return f"`{_EMPTY.get(made, f'{made}()')}`"
        value = given.get("default")
    return "" if value is None else f"`{of.source(value)}`"


_EMPTY = {"dict": "{}", "tuple": "()", "list": "[]", "frozenset": "frozenset()"}


def _short(of: Module, node: ast.Assign | ast.AnnAssign) -> str:
    text = "" if node.value is None else " ".join(of.source(node.value).split())
    return f"`{text}`" if 0 < len(text) <= 40 else ""


# --- examples ----------------------------------------------------------------------------------------------------


class Implementation:
    """A class that implements hooks, or a plugin's module.

    :param node: the class, or the module.
    """

    def __init__(self, place: int, path: Path, text: str, node: ast.ClassDef | ast.Module) -> None:
        self.place = place
        self.path = str(path.relative_to(ROOT))
        self.bases = [] if isinstance(node, ast.Module) else _bases(node)
        self.is_module = isinstance(node, ast.Module)
        functions = [one for one in node.body if isinstance(one, ast.FunctionDef)]
        self.marked = {one.name for one in functions if _mark(one, "hookimpl")}
        self.sources = {one.name: _source(text, one) for one in functions}
        for one in node.body:
            # A method of another class: `alive = hookimpl(HeldProcess.alive)`.
            if isinstance(one, ast.Assign) and ast.unparse(one.value).startswith("hookimpl("):
                self.sources |= {name: _source(text, one) for name in _defined(one)}
                self.marked |= set(_defined(one))

    def implements(self, spec: ast.ClassDef, hook: str) -> bool:
        if hook not in self.sources:
            return False
        if spec.name == "ModuleHooks":
            return self.is_module and hook in self.marked
        required = {name for name, one in hooks(spec).items() if is_required(one)}
        return spec.name in self.bases or (hook in self.marked and required <= self.marked and not self.is_module)


def _source(text: str, node: ast.FunctionDef | ast.Assign) -> str:
    """The source of a function with its marks, and as it is indented: so it counts as formatted."""
    marks = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    first = min([node.lineno, *(mark.lineno for mark in marks)])
    return "\n".join(text.splitlines()[first - 1 : node.end_lineno])


@cache
def implementations() -> list[Implementation]:
    """Of the examples, of Kurma's plugins, and of the core."""
    found = []
    for place, pattern in enumerate(_EXAMPLES):
        for path in sorted(file for directory in ROOT.glob(pattern) for file in directory.rglob("*.py")):
            if path.name.startswith(("test_", "conftest")) or "hookspecs" in path.parts:
                continue
            text = path.read_text(encoding="utf-8")
            if "hookimpl" in text or "Hooks" in text:
                tree = ast.parse(text)
                nodes = [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]
                found += [Implementation(place, path, text, node) for node in nodes]
    return found


def example(spec: ast.ClassDef, hook: str) -> tuple[str, str] | None:
    """Path and source of the shortest implementation of a hook; an example's before a plugin's."""
    found = [
        (one.place, one.sources[hook].count("\n"), one.path, one.sources[hook])
        for one in implementations()
        if one.implements(spec, hook)
    ]
    return min(found)[2:] if found else None


if __name__ == "__main__":
    for file in PAGES:
        file.write_text(page(file), encoding="utf-8")
