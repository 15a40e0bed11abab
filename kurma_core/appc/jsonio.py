"""JSON, strictly read and stably written.

Strict: UTF-8 only, one value and nothing after it, no ``NaN``, no key twice in one object (T8), no lone
surrogate, no number that Python cannot hold, nesting of at most :data:`MAX_DEPTH`. Documents come from strangers.
"""

from __future__ import annotations

from kurma_core.appc.nesting import is_far
from kurma_core.appc.types import child, describe
from kurma_core.errors import ManifestError

#: Levels of objects and lists within each other.
MAX_DEPTH = 64


class Literal(float):
    """A JSON number with a fraction or an exponent, which remembers how it was written.

    It is a float to everyone, but a quantity is read from :attr:`text` (T7: never through floating point).
    """

    __slots__ = ("text",)

    text: str

    def __new__(cls, text: str) -> Literal:
        self = super().__new__(cls, text)
        self.text = text
        return self


class _Repeated(dict[str, object]):
    """An object in whose text ``key`` stood twice; :func:`_check` finds out where that was."""

    __slots__ = ("key",)

    key: str


def loads(document: str | bytes | bytearray | memoryview, what: str) -> object:
    """Read one JSON document.

    :param what: what the document is, for messages: ``the image manifest``.
    :raises ManifestError: with the JSON path for what is well-formed and refused, else with ``line`` and
        ``column`` (from 1) in its ``data``.
    """
    import json  # not everyone who imports the manifests reads JSON
    import re
    import sys

    text = document if isinstance(document, str) else _decode(bytes(document), what)
    if is_far(text):
        raise ManifestError("$", f"at most {MAX_DEPTH} levels of nesting in {what}", "far more", what=what)
    try:
        value: object = json.loads(
            text, object_pairs_hook=_object, parse_float=Literal, parse_constant=_refuse_constant
        )
    except json.JSONDecodeError as error:
        said = error.msg.removesuffix(" at")
        raise _malformed(what, said[:1].lower() + said[1:], error.lineno, error.colno) from None
    except ValueError as error:  # our own refusal of NaN, or Python's of an integer of thousands of digits
        if isinstance(error, _Constant):
            found, pattern = f"{error}, which is no JSON number,", re.escape(str(error))
        else:
            found, pattern = (
                "a number of too many digits",
                rf"\d{{{sys.get_int_max_str_digits() + 1},}}(?!\d|\.\d|[eE][+-]?\d)",
            )
        raise _malformed(what, found, *_place(text, pattern)) from None
    _check(value, what)
    return value


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


def _decode(raw: bytes, what: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        column = error.start - (before.rfind(b"\n") + 1) + 1
        found = f"byte 0x{raw[error.start]:02x}, which is not UTF-8,"
        raise _malformed(what, found, before.count(b"\n") + 1, column) from None


def _malformed(what: str, found: str, line: int, column: int) -> ManifestError:
    return ManifestError(
        "$",
        f"well-formed JSON in {what}",
        f"{found} at line {line}, column {column}",
        what=what,
        line=line,
        column=column,
    )


class _Constant(ValueError):
    pass


def _refuse_constant(name: str) -> object:
    raise _Constant(name)


def _place(text: str, pattern: str) -> tuple[int, int]:
    """Line and column of the first match outside of strings; up to it, ``text`` is JSON."""
    import re

    found = next(one for one in re.finditer(rf'"(?:[^"\\]|\\.)*"|({pattern})', text) if one[1])
    return text.count("\n", 0, found.start()) + 1, found.start() - text.rfind("\n", 0, found.start())


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            break
        seen.add(key)
    repeated = _Repeated(value)
    repeated.key = key
    return repeated


def _check(root: object, what: str) -> None:
    """Refuse what is well-formed and still not acceptable, saying where it stands. Without recursion."""
    pending: list[tuple[object, str, int]] = [(root, "$", 0)]
    while pending:
        value, path, depth = pending.pop()
        if isinstance(value, str):
            _check_string(value, path, what)
        elif isinstance(value, float):
            if value in (float("inf"), float("-inf")):
                raise ManifestError(path, "a number in the range of double precision", "a larger one", what=what)
        elif isinstance(value, (dict, list)):
            if depth == MAX_DEPTH:
                raise ManifestError(path, f"at most {MAX_DEPTH} levels of nesting", "more", what=what)
            if isinstance(value, _Repeated):
                raise ManifestError(
                    child(path, value.key), "each key once", f"key {describe(value.key)} twice", what=what
                )
            if isinstance(value, dict):
                for key, item in value.items():
                    _check_string(key, path, what)
                    pending.append((item, child(path, key), depth + 1))
            else:
                pending.extend((item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value))


def _check_string(value: str, path: str, what: str) -> None:
    if value.isascii():
        return
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ManifestError(path, "Unicode text", "a lone surrogate", what=what) from None
