"""Writes the tables of ``docs/reference/json.md`` from the classes of the values: ``./dev docs``.

A table stands between two markers: ``<!-- table: PodRecord -->`` and ``<!-- end -->``. ``<!-- table: ImagePage
without ListedImage -->`` leaves out the keys that the second class has, too. A row has a key, its type, and its
meaning, from ``:param x:`` in the docstring of the class. The text around the tables is written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from kurma_core import schema
from kurma_core.api.describe import class_help
from kurma_core.api.operations import resolve
from kurma_core.schema import JsonValue, Shape, members

PAGE = Path(__file__).parent / "reference/json.md"
_TABLE = re.compile(r"(<!-- table: (\w+)(?: without (\w+))? -->\n).*?(<!-- end -->)", re.DOTALL)
_HEAD = "| key | type | meaning |\n|---|---|---|\n"
#: Of the words for types, those whose plural is not the same.
_PLURALS = {
    "any value": "values",
    "number": "numbers",
    "object": "objects",
    "time": "times",
    "true or false": "true and false",
}
Row = tuple[str, str, str]


def page(text: str) -> str:
    """The text of a page with the tables written anew."""

    def written(found: re.Match[str]) -> str:
        begin, name, other, end = found.groups()
        without = () if other is None else [key for key, _, _ in rows(_class(other))]
        return begin + table(_class(name), without) + end

    return _TABLE.sub(written, text)


def table(kind: type[JsonValue], without: Iterator[str] | list[str] | tuple[str, ...] = ()) -> str:
    """The table of a class. :param without: keys that are left out."""
    found = [row for row in rows(kind) if row[0] not in without]
    return _HEAD + "".join([f"| `{key}` | {type_} | {meaning} |\n" for key, type_, meaning in found])


def rows(kind: type[JsonValue]) -> list[Row]:
    """Key, type and meaning of each key of a class; if two of its base classes have a key, the last one counts."""
    return list({row[0]: row for row in _of_class(kind, "")}.values())


def _class(name: str) -> type[JsonValue]:
    shape = resolve(name)
    assert isinstance(shape, schema.Object), name
    return shape.kind


def _of_class(kind: type[JsonValue], prefix: str) -> Iterator[Row]:
    meanings = class_help(kind)
    for one in members(kind):
        if one.key is None:
            assert isinstance(one.written, schema.Object)
            yield from _of_class(one.written.kind, prefix)
            continue
        key = prefix + one.key
        yield key, type_in_words(one.written), meanings.get(one.name, "").replace("|", "\\|")
        yield from _of_parts(one.written, key)


def _of_parts(shape: Shape, key: str) -> Iterator[Row]:
    """The rows of the keys of the objects in a value."""
    match shape:
        case schema.Maybe():
            yield from _of_parts(shape.inner, key)
        case schema.List():
            yield from _of_parts(shape.inner, f"{key}[]")
        case schema.Map():
            yield from _of_parts(shape.inner, f"{key}.*")
        case schema.Object():
            yield from _of_class(shape.kind, f"{key}." if shape.by is None else f"{key}.*.")


def type_in_words(shape: Shape) -> str:
    """Describes the JSON type of a shape in words: ``list of text``."""
    match shape:
        case schema.Maybe():
            return f"{type_in_words(shape.inner)}, or null"
        case schema.Text() if shape.title.startswith("RFC 3339"):
            return "time"
        case schema.Text():
            return "text"
        case schema.Flag():
            return "true or false"
        case schema.Whole() | schema.Number():
            return "number"
        case schema.Words():
            words = ", ".join([f"`{word}`" for word in shape.words if word])
            return f"one of {words}" + (", or empty" if "" in shape.words else "")
        case schema.List():
            return "list" + _several(shape.inner)
        case schema.Pairs():
            return "list of objects with `{}` and `{}`".format(*shape.keys)
        case schema.Map() if not isinstance(shape.inner, schema.Any_):
            return "object" + _several(shape.inner)
        case schema.Object() if shape.by is not None:
            return "object of objects"
        case schema.Any_():
            return "any value"
        case schema.Object() | schema.Map() | schema.Parsed():
            return "object"
    raise TypeError(f"{type(shape).__name__} has no word")


def _several(shape: Shape) -> str:
    """Describes the elements of a list or an object: `` of numbers``."""
    found = type_in_words(shape)
    if isinstance(shape, schema.Words):
        return f", each {found}"
    if isinstance(shape, schema.List):
        return f" of lists{found.removeprefix('list')}"
    return f" of {_PLURALS.get(found, found)}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
