"""The reference of the plugin contract is what ``./dev docs`` makes of the code, and lacks nothing (issue 18,
section 4)."""

from __future__ import annotations

import ast
import re
import textwrap

import pytest

from docs import reference
from kurma_core.hookspecs import SPECS
from tests.docs.pages import find_page
from tests.test_floors import LINUX, PUBLIC, PUBLIC_PACKAGES

#: Arguments that a specification describes for all of its hooks.
SHARED = {"config", "directory", "running"}
#: Beginnings of texts that say what the answer is.
ANSWERS = ("Whether", "A descriptor")


PARTS = [(of, names) for _, of, names in reference.parts()]
DOCUMENTED = {(of.name, name) for of, names in PARTS for name in names}
#: Classes of signatures that other pages describe.
ELSEWHERE = {"Api", "HealthWord", "ImageManifest", "PodManifest", "Progress"}
#: Modules of which every public name is documented.
WHOLE = {
    *("kurma_core.errors", "kurma_core.schema", "kurma_core.json_text", "kurma_core.cancellation"),
    *(f"kurma_core.linux.{name}" for name in LINUX),
    *(f"kurma_core.hookspecs.{names[0]}" for names in SPECS.values()),
    *("kurma_core.hookspecs.driver", "kurma_core.hookspecs.pod_setup"),
}


def definitions():
    for of, names in PARTS:
        for name in names:
            yield of, name, of.names[name]


def faults(of, name, node):
    """What the code lacks for the reference of a public name."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        if not of.comment(node):
            yield f"{name}: no comment that begins with #:"
        return
    shared, text = set(reference.Text(of.doc).parameters), reference.text_of(node)
    if isinstance(node, ast.FunctionDef):
        yield from faults_of_call(name, node, shared)
        return
    if not text.prose:
        yield f"{name}: no docstring"
    shared |= set(text.parameters)
    made = reference.maker(node)
    if made is not None:
        yield from undescribed(name, made, shared, " ".join(text.prose))
    if not reference.is_error(of, node):
        for attribute, one in reference.attributes(node).items():
            if attribute not in text.parameters and not of.comment(one):
                yield f"{name}: no :param {attribute}:"
    if reference.is_specification(node):
        for hook, one in reference.hooks(node).items():
            yield from faults_of_hook(node, hook, one, text)
    else:
        for method, one in reference.methods(node).items():
            yield from faults_of_call(f"{name}.{method}", one, shared)


def faults_of_hook(node, hook, function, spec):
    name, text = f"{node.name}.{hook}", reference.text_of(function)
    yield from faults_of_call(name, function, SHARED)
    if not text.called:
        yield f"{name}: no :called:"
    if not (text.returns or ast.unparse(function.returns) == "None" or " ".join(text.prose).startswith(ANSWERS)):
        yield f"{name}: no :returns:"
    if not (text.raises or spec.raises):
        yield f"{name}: no :raises:, nor one of the specification"
    if reference.example(node, hook) is None:
        yield f"{name}: no example"


def faults_of_call(name, node, shared):
    """An argument is described by a field, of the module or the class, too, or named in the text."""
    text = reference.text_of(node)
    if not text.prose:
        yield f"{name}: no docstring"
    yield from undescribed(name, node, shared | set(text.parameters), " ".join(text.prose))


def undescribed(name, node, described, prose):
    for each in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
        argument = each.arg
        if argument in {"self", "cls"} | described:
            continue
        if not re.search(rf"\b{argument}\b", prose):
            yield f"{name}: no :param {argument}:"


@pytest.mark.parametrize("page", reference.PAGES, ids=lambda page: page.name)
def test_the_page_is_current(page):
    assert page.read_text(encoding="utf-8") == reference.page(page), "run ./dev docs"


def test_every_public_name_is_documented():
    assert {of.name for of, names in PARTS if names == list(of.names)} >= WHOLE
    assert len(DOCUMENTED) == sum(len(names) for _, names in PARTS), "a name is documented twice"


def test_public_modules_are_listed():
    text = find_page("public_modules.md").read_text(encoding="utf-8")
    table = text[text.index("## Public modules") : text.index("## Values that hooks pass")]
    listed = [
        name for line in table.splitlines() if line[:1] == "|" for name in line.split("|")[1].split("`")[1::2]
    ]
    assert sorted(listed[1:]) == sorted(PUBLIC | PUBLIC_PACKAGES)


@pytest.mark.parametrize("of", {of.name: of for of, _ in PARTS}.values(), ids=lambda of: of.name)
def test_every_public_name_has_each_part(of):
    found = [
        fault
        for each, names in PARTS
        if each is of
        for name in names
        for fault in faults(of, name, of.names[name])
    ]
    assert not found, "\n".join(found)


def test_classes_of_signatures_are_documented():
    documented = {name for _, name in DOCUMENTED}
    core = {name for of, _ in PARTS for name in classes_imported(of)}
    used = {name for of, names in PARTS for name in names for name in reference.words_of(of.names[name])}
    assert used & core - documented == ELSEWHERE


def classes_imported(of):
    """Names that a module imports from the core, for type checkers, too."""
    for node in ast.walk(ast.parse(of.text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kurma_core"):
            yield from (each.name for each in node.names if each.name[0].isupper())


BROKEN = textwrap.dedent(
    '''
    class BrokenHooks(Hooks):
        """A specification."""

        speed: int

        @hookspec
        def stop_at_once(self, force: bool) -> int:
            """Stops it."""
    '''
)


def test_faults_are_found(monkeypatch, tmp_path):
    (tmp_path / "broken.py").write_text(BROKEN)
    monkeypatch.setattr(reference, "ROOT", tmp_path)
    of = reference.Module("broken")
    assert list(faults(of, "BrokenHooks", of.names["BrokenHooks"])) == [
        "BrokenHooks: no :param speed:",
        "BrokenHooks.stop_at_once: no :param force:",
        "BrokenHooks.stop_at_once: no :called:",
        "BrokenHooks.stop_at_once: no :returns:",
        "BrokenHooks.stop_at_once: no :raises:, nor one of the specification",
        "BrokenHooks.stop_at_once: no example",
    ]
