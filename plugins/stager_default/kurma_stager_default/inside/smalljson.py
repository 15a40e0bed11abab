"""JSON of the stager's documents: as :mod:`kurma_core.formats.small_json` has it, and always valid text."""

from __future__ import annotations

import _json

from kurma_core.formats import small_json
from kurma_core.formats.small_json import decode as decode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def encode(value: Any) -> str:
    """:raises TypeError: the value is none of JSON's."""
    return small_json.encode(value, _text)


def _text(value: str) -> str:
    # A value of the system may hold undecodable bytes; a lone surrogate would be no valid text for others.
    return _json.encode_basestring_ascii(value.encode(errors="surrogateescape").decode(errors="replace"))
