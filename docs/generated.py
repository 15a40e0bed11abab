"""Writes the parts of pages that are made from the code: ``./dev docs``.

A part stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``. The text around the parts is written by
hand. ``docs/tables.py`` writes the tables of JSON, ``docs/reference.py`` the reference of the plugin contract.

- ``cli``: the help of every command
- ``configuration``: the keys of ``kurma.yml``
- ``api``: the operations of kurmad
- ``pod_file TABLE``: the keys of a pod file, from ``docs/pod_keys.py``
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from docs import pod_keys
from docs.tables import type_in_words
from kurma_core import schema
from kurma_core.api.describe import parameter_help
from kurma_core.api.operations import OPERATIONS, Operation, Parameter
from kurma_core.cli.commands import TABLE, Alias, Entry, Group
from kurma_core.cli.main import main
from kurma_core.cli.suggestions import ELSEWHERE
from kurma_core.config.schema import KINDS, SCHEMA, Key
from kurma_core.schema import Shape

_PLACE = Path(__file__).parent / "reference"
PAGES = [_PLACE / name for name in ("api.md", "cli.md", "configuration.md", "pod_file.md")]
_PART = re.compile(r"(<!-- generated: (\w+)((?: \w+)*) -->\n).*?(<!-- end -->)", re.DOTALL)


def page(text: str) -> str:
    """The text of a page with its parts written anew."""

    def written(found: re.Match[str]) -> str:
        begin, name, arguments, end = found.groups()
        return f"{begin}\n{PARTS[name](*arguments.split()).strip()}\n\n{end}"

    return _PART.sub(written, text)


def table(head: str, rows: Iterable[Iterable[str]]) -> str:
    """A table. :param head: the titles of its columns, with ``|`` between them."""
    cells = [["\\|".join(cell.split("|")) for cell in row] for row in rows]
    return "\n".join(
        [f"| {head} |", "|---" * (head.count("|") + 1) + "|", *(f"| {' | '.join(row)} |" for row in cells)]
    )


# --- the command line ------------------------------------------------------------------------------------------


def cli() -> str:
    """Other words, words with a hint, and what ``--help`` prints of every command, in the order of the table."""
    entries: dict[tuple[str, ...], Entry | Alias | Group] = {}
    for name, entry in TABLE.items():
        entries[(name,)] = entry
        if isinstance(entry, Group):
            entries.update({(name, word): below for word, below in entry.entries.items()})
    aliases = [
        (f"`{' '.join(path)}`", f"`kurma {' '.join((*entry.path, *_preset(entry)))}`")
        for path, entry in entries.items()
        if isinstance(entry, Alias)
    ]
    parts = [
        "## Other words for commands\n",
        table("word | command", aliases),
        "\n## Words of other engines\n",
        "Kurma has none of these commands; the error's hint says what to type instead.\n",
        table("word | hint", [(f"`{word}`", hint) for word, hint in ELSEWHERE.items()]),
        "",
    ]
    for path in [(), *(path for path, entry in entries.items() if not isinstance(entry, Alias))]:
        title = " ".join(("kurma", *path))
        parts.append(f"{'##' if len(path) < 2 else '###'} {title}\n\n```text\n{help_of(*path)}```\n")
    return "\n".join(parts)


def _preset(alias: Alias) -> list[str]:
    """The options that the alias stands for, with an argument."""
    return [f"--{name} {value} NAME" for name, value in alias.preset.items()]


def help_of(*words: str) -> str:
    """What ``kurma WORDS --help`` prints on a terminal of 80 columns."""
    columns = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "80"
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            assert main([*words, "--help"]) == 0
    finally:
        if columns is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = columns
    return out.getvalue().rstrip() + "\n"


# --- the configuration -----------------------------------------------------------------------------------------


def configuration_rows(keys: tuple[Key, ...], prefix: str = "") -> Iterator[tuple[str, str, object, str]]:
    """Dotted path, value, default and meaning of every key, in the schema's order."""
    for key in keys:
        path = prefix + key.name
        if key.shape == "section":
            yield from configuration_rows(key.keys, f"{path}.")
        elif key.shape == "named":
            yield path, "mapping by name", key.default, key.help
            yield from configuration_rows(key.keys, f"{path}.NAME.")
        elif key.shape == "list of named":
            yield path, "list", key.default, key.help
            yield from configuration_rows(key.keys, f"{path}[].")
        else:
            words = ", ".join(f"`{word}`" for word in key.words)
            yield path, words or key.shape, key.default, key.help


def configuration() -> str:
    """The table of keys. The kinds of plugins have the same keys: one stands for all."""
    rows = []
    for path, shape, default, text in configuration_rows(SCHEMA):
        if path.startswith("plugins.") and path not in ("plugins.enable", "plugins.packages"):
            kind = path.split(".")[1]
            if kind != KINDS[0]:
                continue
            path, text = path.replace(kind, "KIND", 1), text.replace(f"kurma.{kind}", "kurma.KIND")
        shown = "" if default is None else f"`{default if isinstance(default, str) else json.dumps(default)}`"
        if path == "plugins.packages":
            shown = "those of the default plugins"
        rows.append((f"`{path}`", shape, shown, text))
    return table("key | value | default | meaning", rows)


# --- the API ---------------------------------------------------------------------------------------------------


def api() -> str:
    """A table of the operations, and a section with the parameters of each."""
    found = sorted(OPERATIONS.values(), key=lambda one: (one.path, one.verb))
    rows = [(f"[`{one.verb} {one.path}`](#{anchor(one)})", one.summary, one.rights) for one in found]
    return "\n\n".join([table("operation | what it does | rights", rows), *map(_of_operation, found)])


def anchor(operation: Operation) -> str:
    """The anchor of an operation's section."""
    return operation.name.replace("_", "-")


def _of_operation(operation: Operation) -> str:
    parts = [f"### {operation.name.replace('_', ' ')}", f"`{operation.verb} {operation.path}`", operation.summary]
    meanings = parameter_help(operation.documentation)
    rows = [_of_parameter(one, meanings.get(one.name, one.help)) for one in operation.parameters]
    if rows:
        parts.append(table("parameter | in | default | meaning", rows))
    if operation.result is not None:
        parts.append(f"Answer: {_named(operation.result)}.")
    return "\n\n".join(parts)


def _of_parameter(one: Parameter, meaning: str) -> tuple[str, str, str, str]:
    default = "required" if one.required else "" if one.default is None else f"`{json.dumps(one.default)}`"
    return f"`{one.key}`", one.place, default, meaning


def _named(shape: Shape) -> str:
    """The type of an answer, with the names of its classes in the OpenAPI document."""
    if isinstance(shape, schema.Object):
        return f"`{shape.kind.__name__}`"
    if isinstance(shape, schema.List):
        return f"list of {_named(shape.inner)}"
    if isinstance(shape, schema.Maybe):
        return f"{_named(shape.inner)}, or null"
    return type_in_words(shape)


# --- the pod file ----------------------------------------------------------------------------------------------


def pod_file(name: str) -> str:
    """A table of keys, or of annotations."""
    if name == "annotations":
        return table(
            "annotation | of | values | meaning", [(f"`{one[0]}`", *one[1:]) for one in pod_keys.ANNOTATIONS]
        )
    rows = [(f"`{key.path}`", key.type, key.default, key.help) for key in pod_keys.TABLES[name]]
    return table("key | type | default | meaning", rows)


PARTS: dict[str, Callable[..., str]] = {
    "cli": cli,
    "configuration": configuration,
    "api": api,
    "pod_file": pod_file,
}


if __name__ == "__main__":
    for file in PAGES:
        file.write_text(page(file.read_text(encoding="utf-8")), encoding="utf-8")
