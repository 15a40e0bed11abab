"""Reads JSON text strictly, and writes it with sorted keys.

:func:`loads` accepts UTF-8 alone, one value and nothing after it, no ``NaN``, no number that Python cannot hold,
no key twice in one object, and bounded nesting. Kurma's own programs read each other's messages by
:mod:`kurma_core.formats.small_json`, which this module uses, too: ``json`` is imported only to tell where a
text is wrong.
"""

from __future__ import annotations

from kurma_core.formats.small_json import decode
from kurma_core.schema import SchemaError, child, describe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = Any

#: Levels of objects and lists within each other.
MAX_DEPTH = 64
#: The same of Kurma's own formats, in which such documents stand.
MAX_DEPTH_OWN = 128
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_ROUND = bytes.maketrans(b"{}", b"[]")


class JsonError(SchemaError):
    """A text is not JSON, or holds what no document may hold.

    :param path: of the value, as in :class:`.schema.SchemaError`. :param expected: as there. :param found: as
        there.
    :param line: from 1: where the text stops being JSON; None: it is JSON. :param column: from 1, in that line.
    """

    def __init__(
        self, path: str, expected: str, found: str, line: int | None = None, column: int | None = None
    ) -> None:
        super().__init__(path, expected, found)
        self.line = line
        self.column = column

    def __str__(self) -> str:
        return super().__str__() if self.line is None else f"not JSON: {self.found}"


class Literal(float):
    """A JSON number with a fraction or an exponent, which remembers how it was written.

    It is a float to everyone, but a quantity is read from :attr:`text` (never through floating point).

    :param text: the number as it was written.
    """

    __slots__ = ("text",)

    text: str

    def __new__(cls, text: str) -> Literal:
        self = super().__new__(cls, text)
        self.text = text
        return self


class _Repeated(dict[str, object]):
    """An object in whose text ``key`` stood twice; :func:`_refuse_odd` finds its path."""

    __slots__ = ("key",)

    key: str


def loads(document: str | bytes | bytearray | memoryview, *, own: bool = False) -> Json:
    """Reads one JSON document.

    :param own: the format is Kurma's own: bytes of file names stand in it as lone surrogates, and other documents
        within it, so that it may be deeper.
    :raises JsonError: the document cannot be accepted.
    """
    text = document if isinstance(document, str) else _utf8(bytes(document))
    most = MAX_DEPTH_OWN if own else MAX_DEPTH
    if is_deeper(text, most):
        raise JsonError("$", f"at most {most} levels of nesting", "more")
    odd = False

    def pairs(items: list[tuple[str, Json]]) -> dict[str, Json]:
        nonlocal odd
        value = dict(items)
        if len(value) < len(items):
            odd = True
            names = [name for name, _ in items]
            value = _Repeated(value)
            value.key = next(name for name in names if names.count(name) > 1)
        return value

    def number(written: str) -> Literal:
        nonlocal odd
        value = Literal(written)
        odd = odd or not -_INFINITE < value < _INFINITE
        return value

    try:
        found = decode(text, pairs, number)
    except ValueError:
        raise _malformed(text) from None
    surrogates = not own and ("\\u" in text or (text is document and not text.isascii()))
    if odd or surrogates:
        _refuse_odd(found, own)
    return found


def read_document(document: str | bytes | bytearray | memoryview, what: str) -> Json:
    """As :func:`loads`, of a document that its reader calls a manifest.

    :param what: the document, for messages: ``the image manifest``.
    :raises ManifestError: with the JSON path of what is well-formed and refused, else with ``line`` and ``column``
        in its ``data``.
    """
    try:
        return loads(document)
    except JsonError as error:
        from kurma_core.errors import ManifestError

        if error.line is None:
            raise ManifestError(error.path, error.expected, error.found, what=what) from None
        raise ManifestError(
            error.path,
            f"{error.expected} in {what}",
            error.found,
            what=what,
            line=error.line,
            column=error.column,
        ) from None


def dumps(value: object, *, indent: int | None = None) -> str:
    """``value`` as JSON text: the same value gives the same text (keys are sorted).

    :param indent: None for one line; 2 where people read it.
    :raises ValueError: ``value`` holds NaN or an infinity.
    """
    import json

    separators = (",", ":") if indent is None else (",", ": ")
    return json.dumps(
        value, sort_keys=True, ensure_ascii=False, allow_nan=False, indent=indent, separators=separators
    )


def is_deeper(text: str, most: int) -> bool:
    """Whether JSON text has more than ``most`` levels of lists and objects, in time that grows as the text does.

    To be known before a parser recurses: Python 3.11 collects garbage in the middle of that, and at the
    interpreter's limit finalizers fail, so that what they were to close stays open.
    """
    if text.count("[") + text.count("{") <= most:
        return False
    data = text.encode(errors="surrogatepass")
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = b"".join(data.split(b'"')[::2]).translate(_ROUND, _NOT_BRACKETS)
    left = brackets
    for _ in range(most):
        shorter = left.replace(b"[]", b"")  # the innermost level
        if len(shorter) == len(left):
            break
        left = shorter
    depth = 0
    for bracket in brackets if left else b"":  # deeper, or malformed
        depth += 1 if bracket == 0x5B else -1
        if depth > most:
            return True
    return False


_INFINITE = float("inf")


def _utf8(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        column = error.start - (before.rfind(b"\n") + 1) + 1
        found = f"byte 0x{raw[error.start]:02x}, which is not UTF-8,"
        raise _not_json(found, before.count(b"\n") + 1, column) from None


def _not_json(found: str, line: int, column: int) -> JsonError:
    found = f"{found} at line {line}, column {column}"
    return JsonError("$", "well-formed JSON", found, line, column)


class _Constant(ValueError):
    pass


def _malformed(text: str) -> JsonError:
    """The error that tells where a text stops being JSON."""
    import json
    import re
    import sys

    def constant(name: str) -> Json:
        raise _Constant(name)

    try:
        json.loads(text, parse_constant=constant)
    except json.JSONDecodeError as error:
        said = error.msg.removesuffix(" at")
        return _not_json(said[:1].lower() + said[1:], error.lineno, error.colno)
    except _Constant as error:
        return _not_json(f"{error}, which is no JSON number,", *_place(text, re.escape(str(error))))
    except ValueError:  # Python refuses integers of thousands of digits
        most = sys.get_int_max_str_digits()
        place = _place(text, rf"\d{{{most + 1},}}(?!\d|\.\d|[eE][+-]?\d)")
        return _not_json("a number of too many digits", *place)
    return _not_json("what Python cannot read", 1, 1)


def _place(text: str, pattern: str) -> tuple[int, int]:
    """Line and column of the first match outside of strings; up to it, ``text`` is JSON."""
    import re

    found = next(one for one in re.finditer(rf'"(?:[^"\\]|\\.)*"|({pattern})', text) if one[1])
    return text.count("\n", 0, found.start()) + 1, found.start() - text.rfind("\n", 0, found.start())


def _refuse_odd(root: Json, own: bool) -> None:
    """Refuses what is well-formed and still not acceptable, with its path. Without recursion."""
    pending: list[tuple[Json, str]] = [(root, "$")]
    while pending:
        value, path = pending.pop()
        if isinstance(value, str):
            _refuse_surrogates(value, path, own)
        elif isinstance(value, float):
            if not -_INFINITE < value < _INFINITE:
                raise JsonError(path, "a number in the range of double precision", "a larger one")
        elif isinstance(value, _Repeated):
            raise JsonError(child(path, value.key), "each key once", f"key {describe(value.key)} twice")
        elif isinstance(value, dict):
            for key, item in value.items():
                _refuse_surrogates(key, path, own)
                pending.append((item, child(path, key)))
        elif isinstance(value, list):
            pending.extend((item, f"{path}[{index}]") for index, item in enumerate(value))


def _refuse_surrogates(value: str, path: str, own: bool) -> None:
    if own or value.isascii():
        return
    try:
        value.encode()
    except UnicodeEncodeError:
        raise JsonError(path, "Unicode text", "a lone surrogate") from None
