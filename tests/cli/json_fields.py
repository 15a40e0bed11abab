"""``docs/reference/json.md`` as values: the keys that each command is documented to print."""

from __future__ import annotations

import re
from typing import Any

from tests.docs.pages import find_page

DOCUMENT = find_page("json.md")
_ALSO = {  # "the same object, and": what the page says in words
    "image show": "image list",
    "image verify": "image sign",
    "plugins show": "plugins list",
    "list": "show",
    "ps": "list",
    "inspect": "show",
    "network list": "network show",
    "secret list": "secret show",
    "volume list": "volume show",
    "secret inspect": "secret show",
}


def sections() -> dict[str, str]:
    """Text by command."""
    parts = re.split(r"^## kurma (.+)$", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def documented(command: str) -> set[str]:
    """Its keys, as the tables write them, without those of objects and lists whose own keys are there."""
    own = set(re.findall(r"^\| `([^`]+)` \|", sections()[command], re.MULTILINE))
    inner = {key for key in own if not any(other.startswith(_within(key)) for other in own)}
    return inner | (documented(_ALSO[command]) if command in _ALSO else set())


def _within(key: str) -> tuple[str, ...]:
    """How the keys begin that are inside of a value."""
    return f"{key}[].", f"{key}.*.", f"{key}."


def check(command: str, value: Any) -> None:
    """:raises AssertionError: ``value``, as the command printed it, has a key too many, or lacks one."""
    known = documented(command)
    for item in value if isinstance(value, list) else [value]:
        found = set(_keys(item, "", known))
        assert found == known, f"kurma {command}: {sorted(found ^ known)}"


def _keys(value: Any, way: str, known: set[str]) -> list[str]:
    inner = [key for key in known if key.startswith(_within(way))] if way else [""]
    if way and not inner:
        return [way]
    if value is None:
        return inner  # null says nothing of what would be in it
    if isinstance(value, list):
        # Nor does an empty list.
        return [key for one in value for key in _keys(one, f"{way}[]", known)] or inner
    if any(key.startswith(f"{way}.*.") for key in inner):
        return [key for one in value.values() for key in _keys(one, f"{way}.*", known)] or inner
    prefix = f"{way}." if way else ""
    return [key for name, one in value.items() for key in _keys(one, prefix + name, known)]
