"""Encodes and decodes JSON without the ``json`` package, which imports ``re`` and ``enum``: it uses only the
package's accelerator."""

from __future__ import annotations

import _json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Pairs = Callable[[list[tuple[str, Any]]], Any]

_SPACE = " \t\r\n"


class _Reading:
    """The settings of the accelerator's scanner."""

    strict = True
    object_hook = None
    parse_int = int

    def __init__(self, pairs: Pairs | None, number: Callable[[str], float]) -> None:
        self.object_pairs_hook = pairs
        self.parse_float = number
        self.memo: dict[str, str] = {}

    @staticmethod
    def parse_constant(name: str) -> object:
        raise ValueError(f"{name} is no JSON")


def decode(text: str | bytes, pairs: Pairs | None = None, number: Callable[[str], float] = float) -> Any:
    """Decodes one JSON value.

    :param text: bytes are UTF-8. :param pairs: makes an object from its keys and values; None: a dict.
    :param number: converts numbers with a fraction or an exponent.
    :raises ValueError: the text is not JSON; :mod:`kurma_core.json_text` names the position.
    """
    if not isinstance(text, str):
        text = text.decode()
    start = len(text) - len(text.lstrip(_SPACE))
    try:
        value, end = _json.make_scanner(_Reading(pairs, number))(text, start)  # type: ignore[arg-type]
    except (ValueError, StopIteration, ImportError, SystemError, RecursionError):
        # ImportError, SystemError: the accelerator could not import the package's exception, which may be missing.
        raise ValueError("not a JSON document") from None
    if text[end:].strip(_SPACE):
        raise ValueError(f"something follows the JSON value at character {end}")
    return value


def encode(value: Any, quoted: Callable[[str], str] = _json.encode_basestring_ascii) -> str:
    """Encodes a value as JSON. :param quoted: encodes strings. By default, a lone surrogate, which stands for an
    undecodable byte, is kept.

    :raises TypeError: the value cannot be encoded as JSON.
    """
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return float.__repr__(value)  # callers pass neither NaN nor infinity
    if isinstance(value, list | tuple):
        return "[" + ",".join([encode(item, quoted) for item in value]) + "]"
    if hasattr(value, "items"):  # a mapping, possibly a read-only view
        return "{" + ",".join([f"{quoted(key)}:{encode(item, quoted)}" for key, item in value.items()]) + "}"
    raise TypeError(f"{type(value).__name__} has no JSON form")


def encode_valid(value: Any) -> str:
    """As :func:`encode`, with valid Unicode only: an undecodable byte becomes U+FFFD.

    :raises TypeError: as :func:`encode`.
    """
    return encode(value, _valid)


def _valid(text: str) -> str:
    return _json.encode_basestring_ascii(text.encode(errors="surrogateescape").decode(errors="replace"))
