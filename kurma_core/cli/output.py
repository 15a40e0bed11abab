"""Prints tables, JSON, YAML and templates; filters listings; formats sizes and ages for people."""

from __future__ import annotations

from _operator import attrgetter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any, Literal

    from kurma_core.schema import JsonValue, Shape

    #: A number that says when the column gives way on a narrow terminal, the lowest first; and the width that it
    #: keeps. 0: it is left out; negative: its cells lose their beginning, not their end; ``wraps``: its cells
    #: continue on further lines, and lose nothing.
    Gives = tuple[int, int] | tuple[int, int, Literal["wraps"]]
    #: A heading, and an item's attribute or a function of the item. A name alone is attribute and heading. A third
    #: member: the column may give way.
    Column = (
        str | tuple[str, str | Callable[[Any], object]] | tuple[str, str | Callable[[Any], object], Gives | None]
    )
    #: By the key of a filter: whether an item, as JSON, has the value.
    Filters = Mapping[str, Callable[[Any, str], bool]]

_GAP = "  "
_CUT = "\u2026"


def table(
    items: Iterable[Any], columns: Sequence[Column], *, legend: bool = True, width: int = 0
) -> Iterator[str]:
    """Lines of a table with columns as wide as needed. An empty cell is printed as a dash, so that every line has
    the same number of words for tools that count them, unless a cell contains spaces.

    :param width: columns of the terminal: table columns that may give way do, until the table fits. 0: no limit.
    """
    headings, values, gives = zip(*map(_column, columns), strict=True)
    rows = [[_cell(value(item)) for value in values] for item in items]
    if legend:
        rows.insert(0, list(headings))
    return _aligned(rows, gives, width)


def _aligned(rows: list[list[str]], gives: Sequence[Gives | None], width: int) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    kept = dict(enumerate(widths))
    for at in sorted((at for at, one in enumerate(gives) if one is not None), key=lambda at: gives[at] or ()):
        too_wide = sum(kept.values()) + len(_GAP) * (len(kept) - 1) - width
        if not width or too_wide <= 0:
            break
        least = (gives[at] or (0, 0))[1]
        if not least:
            kept.pop(at, None)
        else:
            kept[at] = max(kept[at] - too_wide, min(abs(least), kept[at]))
    for at in kept if width else ():  # a column that was left out may have been wider than was needed
        free = width - sum(kept.values()) - len(_GAP) * (len(kept) - 1)
        kept[at] += max(0, min(free, widths[at] - kept[at]))
    for row in rows:
        cells = [_lines(row[at], room, gives[at]) for at, room in kept.items()]
        for line in range(max(map(len, cells))):
            parts = [cell[line] if line < len(cell) else "" for cell in cells]
            yield _GAP.join(map(str.ljust, parts, kept.values())).rstrip()


def _lines(text: str, room: int, gives: Gives | None) -> list[str]:
    """A cell in a column of that width."""
    if gives is not None and "wraps" in gives:
        return wrapped(text, room)
    return [cut(text, room, head=gives is not None and gives[1] < 0)]


def wrapped(text: str, room: int) -> list[str]:
    """The text in lines of at most that width, broken between words. :param room: 0: no limit."""
    if not room or len(text) <= room:
        return [text]
    from textwrap import wrap

    return wrap(text, room, break_on_hyphens=False)


def cut(text: str, room: int, *, head: bool = False) -> str:
    """The text in at most that width; a mark stands for what it loses. :param head: it loses its beginning."""
    if len(text) <= room:
        return text
    return _CUT + text[len(text) - room + 1 :] if head else text[: room - 1] + _CUT


def _column(column: Column) -> tuple[str, Callable[[Any], object], Gives | None]:
    heading, value, *gives = (column.upper(), column) if isinstance(column, str) else column
    return heading, attrgetter(value) if isinstance(value, str) else value, gives[0] if gives else None


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


def kept(items: Sequence[Any], wanted: Sequence[str], filters: Filters) -> Sequence[Any]:
    """The items that ``--filter KEY=VALUE`` keeps: those that have one of the values of each key, and all of its
    values if the key is ``label``.

    :param filters: the keys of this listing.
    :raises UsageError: it has no such key.
    """
    if not wanted:
        return items
    by_key: dict[str, list[str]] = {}
    for text in wanted:
        key, equals, value = text.partition("=")
        if key not in filters or not equals:
            from kurma_core.errors import UsageError

            known = f"write KEY=VALUE; the keys are {', '.join(filters)}"
            raise UsageError(
                f"--filter: no key {key!r}" if equals else f"--filter: malformed {text!r}", hint=known
            )
        by_key.setdefault(key, []).append(value)

    def fits(item: Any) -> bool:
        return all(
            (all if key == "label" else any)([filters[key](item, value) for value in values])
            for key, values in by_key.items()
        )

    return [item for item in items if fits(plain(item))]


def has_label(labels: Mapping[str, str], wanted: str) -> bool:
    """:param wanted: ``NAME`` or ``NAME=VALUE``."""
    name, equals, value = wanted.partition("=")
    return name in labels and (not equals or labels[name] == value)


class Template:
    """A template of ``--format``: text with ``{{.key}}`` and ``{{json .key}}`` in it. ``.`` is the whole item,
    ``.key.key`` a value in a value; a number is the index of a list, and any other key of a list is that key of
    all its items. After ``table`` it prints headings, and aligns what tabs separate.

    :raises UsageError: it cannot be parsed.
    """

    def __init__(self, text: str) -> None:
        self._table = text.startswith("table ")
        text = text.removeprefix("table ").strip(" ") if self._table else text
        first, *others = text.replace("\\t", "\t").replace("\\n", "\n").split("{{")
        #: Each a text that is printed before a value, whether the value is printed as JSON, and the keys.
        self._parts: list[tuple[str, bool, tuple[str, ...]]] = []
        for other in others:
            inside, end, after = other.partition("}}")
            word, _, path = inside.strip().rpartition(" ")
            if not end or word.strip() not in ("", "json") or not path.startswith("."):
                raise _template_error(f"malformed {'{{' + inside + end!r}")
            self._parts.append((first, bool(word), tuple(path[1:].split(".")) if path != "." else ()))
            first = after
        if not self._parts:
            raise _template_error(f"no format {text!r}")
        self._last = first

    def lines(self, items: Sequence[Any], kind: type[JsonValue] | None, *, legend: bool = True) -> Iterator[str]:
        """:param kind: of the items, if they are JSON already; None: of the first item.
        :raises UsageError: the items have no such key.
        """
        self._check(items, kind)
        rows = [self._text(plain(item)) for item in items]
        if not self._table:
            yield from rows
            return
        if legend:
            names = [keys[-1] if keys else "" for _, _, keys in self._parts]
            words = ["".join(f" {one}" if one.isupper() else one for one in name).upper() for name in names]
            heads = [text for text, _, _ in self._parts]
            rows.insert(0, "".join(map(str.__add__, heads, words)) + self._last)
        cells = [[printable(cell) for cell in row.split("\t")] for row in rows]
        most = max(map(len, cells), default=0)
        yield from _aligned([row + [""] * (most - len(row)) for row in cells], [None] * most, 0)

    def _text(self, item: Any) -> str:
        texts = []
        for before, as_json, keys in self._parts:
            value = item
            for key in keys:
                value = _value_of(value, key)
            texts += [before, _compact(value) if as_json else _shown(value)]
        return "".join(texts) + self._last

    def _check(self, items: Sequence[Any], kind: type[JsonValue] | None) -> None:
        from kurma_core.schema import JsonValue, Object

        first = next(iter(items), None)
        if kind is None and isinstance(first, JsonValue):
            kind = type(first)
        found = plain(first)
        for _, _, keys in self._parts:
            if kind is not None:
                _check_keys(keys, Object(kind))
            elif keys and isinstance(found, dict) and keys[0] not in found:
                raise _unknown_key(keys[0], list(found))


def _check_keys(keys: tuple[str, ...], shape: Shape | None) -> None:
    """Checks keys by the declaration of the value, so that the order and the number of items do not matter.

    :raises UsageError: the value never has such a key.
    """
    from kurma_core import schema

    for at, key in enumerate(keys):
        while isinstance(shape, schema.Maybe | schema.List):
            if isinstance(shape, schema.List) and key.isdecimal():
                break
            shape = shape.inner
        if isinstance(shape, schema.List | schema.Map):
            shape = shape.inner
        elif isinstance(shape, schema.Object) and shape.by is not None:
            shape = schema.Object(shape.kind)
        elif isinstance(shape, schema.Object):
            known = dict(_members_of(shape.kind))
            if key not in known:
                raise _unknown_key(".".join(keys[: at + 1]), [".".join((*keys[:at], one)) for one in known])
            shape = known[key]
        else:
            return


def _members_of(kind: type[JsonValue]) -> Iterator[tuple[str, Shape]]:
    from kurma_core import schema

    for one in schema.members(kind):
        if one.key is not None:
            yield one.key, one.written
        elif isinstance(one.written, schema.Object):
            yield from _members_of(one.written.kind)


def _unknown_key(key: str, known: list[str]) -> Exception:
    from kurma_core.schema import nearest

    before, dot, last = key.rpartition(".")
    near = nearest(last.lower(), [one.rpartition(".")[2] for one in known], 0.65)
    meant = "" if near is None else f"; did you mean {{{{.{before}{dot}{near}}}}}?"
    return _template_error(f"no key {key!r}{meant}", f"the keys are {', '.join(known)}")


def _template_error(what: str, hint: str = "") -> Exception:
    from kurma_core.errors import UsageError

    ways = "write table, json, yaml, or a template such as '{{.name}}' or '{{json .}}'"
    return UsageError(f"--format: {what}", hint=hint or ways)


def _value_of(value: Any, key: str) -> Any:
    if isinstance(value, list | tuple):
        if not key.isdecimal():
            return [_value_of(item, key) for item in value]
        return value[int(key)] if int(key) < len(value) else None
    return value.get(key) if hasattr(value, "get") else None


def _shown(value: Any) -> str:
    if isinstance(value, bool) or (isinstance(value, list | tuple) and any(hasattr(one, "keys") for one in value)):
        return _compact(value)
    if isinstance(value, list | tuple):
        return ",".join(map(_shown, value))
    if hasattr(value, "items"):
        texts = all(isinstance(one, str) for one in value.values())
        return ",".join(f"{key}={one}" for key, one in value.items()) if texts else _compact(value)
    return "" if value is None else str(value)


def _compact(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False, default=_mapping)


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
    seconds = _seconds_since(at, now)
    if seconds is None:
        return at
    if seconds < 1:
        return "just now"
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length * 2 or (unit == "day" and seconds >= length):
            count = seconds // length
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return f"{seconds} second{'s' if seconds > 1 else ''} ago"


def age(at: str | None, now: float | None = None) -> str:
    """``12s``, ``3m``, ``2h``, ``9d``: in one word. :param at: as for :func:`ago`."""
    seconds = _seconds_since(at, now) if at else None
    if seconds is None:
        return at or ""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit}"
    return f"{max(seconds, 0)}s"


def _seconds_since(at: str, now: float | None) -> int | None:
    """:param at: RFC 3339. :returns: None: it is not a time."""
    import time
    from datetime import datetime

    try:
        then = datetime.fromisoformat(at).timestamp()
    except ValueError:
        return None
    return int((time.time() if now is None else now) - then)


def to_second(at: str) -> str:
    """An RFC 3339 time of ours as people are shown it: without the fraction."""
    whole, point, _ = at.partition(".")
    return f"{whole}Z" if point and at.endswith("Z") else at


def moment(at: str) -> str:
    """``2026-01-31T12:00:00Z (3 minutes ago)``."""
    said = ago(at)
    return f"{to_second(at)} ({said})" if said != at else at


def without_directory(image: str) -> str:
    """An image as the caller named it; of a path only the file's name."""
    return image.rpartition("/")[2] or image if image.startswith(("/", "file:/")) else image


def pairs(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())
