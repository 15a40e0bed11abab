"""JSON without the ``json`` package, which brings ``re`` and ``enum`` along: its accelerator is enough."""

from __future__ import annotations

import _json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SPACE = " \t\r\n"


class _Reading:
    """The settings that the scanner asks for."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int

    def __init__(self) -> None:
        self.memo: dict[str, str] = {}

    @staticmethod
    def parse_constant(name: str) -> object:
        raise ValueError(f"{name} is no JSON")


def decode(text: str) -> Any:
    """One JSON value.

    :raises ValueError: it is none; the accelerator cannot say where without the package, so nor does this.
    """
    start = len(text) - len(text.lstrip(_SPACE))
    try:
        value, end = _json.make_scanner(_Reading())(text, start)  # type: ignore[arg-type]
    except (ValueError, StopIteration, ImportError, SystemError, RecursionError):
        # ImportError, SystemError: the accelerator looked for the package's exception, which the image leaves out.
        raise ValueError("not a JSON document") from None
    if text[end:].strip(_SPACE):
        raise ValueError(f"something follows the JSON value at character {end}")
    return value


def encode(value: Any) -> str:
    """:raises TypeError: the value is none of JSON's."""
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, str):
        # A value of the system may hold undecodable bytes; a lone surrogate would be no valid text for others.
        return _json.encode_basestring_ascii(value.encode(errors="surrogateescape").decode(errors="replace"))
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return float.__repr__(value)  # a document read here has none that JSON cannot say
    if isinstance(value, dict):
        return "{" + ",".join([f"{encode(key)}:{encode(item)}" for key, item in value.items()]) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join([encode(item) for item in value]) + "]"
    raise TypeError(f"{type(value).__name__} has no JSON form")
