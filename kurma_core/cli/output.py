"""Prints tables, JSON and YAML; formats sizes and ages for people; escapes control characters."""

from __future__ import annotations

from _operator import attrgetter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any

    #: A heading, and an item's attribute or a function of the item. A name alone is attribute and heading.
    Column = str | tuple[str, str | Callable[[Any], object]]

_GAP = "  "


def table(items: Iterable[Any], columns: Sequence[Column], *, legend: bool = True) -> Iterator[str]:
    """Lines of a table with columns as wide as needed. An empty cell is printed as a dash, so that every line has
    the same number of words for tools that count them, unless a cell contains spaces."""
    headings, values = zip(*map(_column, columns), strict=True)
    rows = [[_cell(value(item)) for value in values] for item in items]
    if legend:
        rows.insert(0, list(headings))
    widths = [max(len(row[at]) for row in rows) for at in range(len(columns))] if rows else []
    for row in rows:
        yield _GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _column(column: Column) -> tuple[str, Callable[[Any], object]]:
    heading, value = (column.upper(), column) if isinstance(column, str) else column
    return heading, attrgetter(value) if isinstance(value, str) else value


def fields(item: object, *names: str) -> list[tuple[str, object]]:
    """Attributes of an item for :func:`facts`, called as they are."""
    return [(name.replace("_", " "), getattr(item, name)) for name in names]


def facts(pairs: Iterable[tuple[str, object]]) -> str:
    """Lines ``NAME  VALUE``, aligned, a value's further lines below its first; those without one are left out."""
    kept = [(name, _words(value)) for name, value in pairs if value not in (None, "")]
    width = max((len(name) for name, _ in kept), default=0)
    below = "\n" + " " * (width + len(_GAP))
    return "\n".join(name.ljust(width) + _GAP + printable(value).replace("\n", below) for name, value in kept)


def _words(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _cell(value: object) -> str:
    return printable("" if value is None or value is False else _words(value)).replace("\n", "\\n") or "-"


def printable(text: str) -> str:
    """The text without characters that could control a terminal: much of the output comes from untrusted
    sources."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter == "\n" else letter.encode("unicode_escape").decode()
        for letter in text
    )


def for_terminal(text: str) -> str:
    """As :func:`printable`, for a document, in which tabs are kept."""
    return text if text.isprintable() else "\t".join(map(printable, text.split("\t")))


def one_line(text: str) -> str:
    """The text of an error or a note in one printable line."""
    return printable(" ".join(text.splitlines()))


def plain(item: Any) -> Any:
    """An item as a JSON value."""
    return item.to_json() if hasattr(item, "to_json") else item


def formatted(format: str, value: object) -> str:
    """:param format: ``json`` or ``yaml``."""
    if format == "json":
        return json_text(value)
    import yaml

    text: str = yaml.safe_dump(_simple(value), sort_keys=False, allow_unicode=True, default_flow_style=False)
    return text.rstrip("\n")


def _simple(value: Any) -> Any:
    """For yaml, which writes neither subclasses nor tuples."""
    if isinstance(value, dict):
        return {str(key): _simple(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_simple(item) for item in value]
    if isinstance(value, float) and type(value) is not float:
        return float(value)
    return value


def json_text(value: object) -> str:
    import json

    return json.dumps(value, indent=2, ensure_ascii=False, default=_mapping)


def _mapping(value: Any) -> Any:
    """Read-only views are mappings, too."""
    if hasattr(value, "keys"):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be encoded as JSON")


def size(count: int) -> str:
    """Bytes: ``512 B``, ``12.3 MB``."""
    if count < 1000:
        return f"{count} B"
    amount = float(count)
    for unit in ("kB", "MB", "GB"):
        amount /= 1000
        if amount < 999.95:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1000:.1f} TB"


def ago(at: str | None, now: float | None = None) -> str:
    """``3 minutes ago``.

    :param at: RFC 3339; any other text is returned as it is.
    """
    if not at:
        return ""
    import time
    from datetime import datetime

    try:
        then = datetime.fromisoformat(at).timestamp()
    except ValueError:
        return at
    seconds = int((time.time() if now is None else now) - then)
    if seconds < 1:
        return "just now"
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length * 2 or (unit == "day" and seconds >= length):
            count = seconds // length
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return f"{seconds} second{'s' if seconds > 1 else ''} ago"


def to_second(at: str) -> str:
    """An RFC 3339 time of ours as people are shown it: without the fraction."""
    whole, point, _ = at.partition(".")
    return f"{whole}Z" if point and at.endswith("Z") else at


def moment(at: str) -> str:
    """``2026-01-31T12:00:00Z (3 minutes ago)``."""
    said = ago(at)
    return f"{to_second(at)} ({said})" if said != at else at


def pairs(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())
