"""``docs/json.md`` as values: the keys that each command is documented to print."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).parents[2] / "docs" / "json.md"
_ALSO = {  # "the same object, and": what the page says in words
    "image show": "image list",
    "image verify": "image sign",
    "plugins show": "plugins list",
    "list": "show",
    "network list": "network show",
}


def sections() -> dict[str, str]:
    """Text by command."""
    parts = re.split(r"^## kurma (.+)$", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def documented(command: str) -> set[str]:
    """Its keys, as the tables write them."""
    rows = re.findall(r"^\| (`.+?) \|", sections()[command], re.MULTILINE)
    own = {key for row in rows for key in re.findall(r"`([^`]+)`", row)}
    return own | (documented(_ALSO[command]) if command in _ALSO else set())


def check(command: str, value: Any) -> None:
    """:raises AssertionError: ``value``, as the command printed it, has a key too many, or lacks one."""
    known = documented(command)
    for item in value if isinstance(value, list) else [value]:
        found = set(_keys(item, "", known))
        assert found == known, f"kurma {command}: {sorted(found ^ known)}"


def _keys(value: Any, way: str, known: set[str]) -> list[str]:
    inner = [key for key in known if key.startswith((f"{way}[].", f"{way}.*.", f"{way}."))] if way else [""]
    if way and not inner:
        return [way]
    if isinstance(value, list):
        # An empty list says nothing of what would be in it.
        return [key for one in value for key in _keys(one, f"{way}[]", known)] or inner
    if any(key.startswith(f"{way}.*.") for key in inner):
        return [key for one in value.values() for key in _keys(one, f"{way}.*", known)] or inner
    prefix = f"{way}." if way else ""
    return [key for name, one in value.items() for key in _keys(one, prefix + name, known)]
