"""What who may only look (``read``) gets to see: everything but secrets, and what may hold some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

Json = Any
#: Keys whose values are left out, at any depth, and what stands there: manifests have the environment of apps in
#: them, configurations the credentials of plugins, a token file's place is nobody's business, words of
#: commands may be passwords.
_HIDDEN: Mapping[str, Json] = {
    "manifest": {},
    "config": {},
    "settings": {},
    "capabilities": {},
    "environment": [],
    "command": [],
    "metadata": None,
    "raw": None,
}
#: Keys whose values may be addresses with a password in them; what is to be had is named by its locator.
_ADDRESSES = ("locator", "url", "name")


def shown(value: Json) -> Json:
    """The value without what only ``full`` rights show."""
    if isinstance(value, list | tuple):
        return [shown(one) for one in value]
    if not hasattr(value, "items"):
        return value
    found = {}
    for key, one in value.items():
        if key in _HIDDEN:
            found[key] = _HIDDEN[key]
        elif key in _ADDRESSES and isinstance(one, str):
            found[key] = _without_password(one)
        else:
            found[key] = shown(one)
    return found


def _without_password(address: str) -> str:
    try:
        place = urlsplit(address).netloc
    except ValueError:
        return ""
    return address.replace(place, place.rpartition("@")[2], 1) if "@" in place else address


__all__ = ["shown"]
