"""What who may only look (``read``) gets to see: everything but secrets, and what may hold some."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

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
#: In an address, or part of another one, before the host; a digest behind the @ is none.
_WHO = re.compile(
    r"((?::|%3A)(?://|%2F%2F))(?:(?!%2F|%3F|%23)[^/?#\s])*(?:@|%40)(?!sha\d+(?::|%3A))", re.IGNORECASE
)


def redacted(value: Json) -> Json:
    """The value without what only ``full`` rights show."""
    if isinstance(value, list | tuple):
        return [redacted(one) for one in value]
    if not hasattr(value, "items"):
        return value
    found = {}
    for key, one in value.items():
        if key in _HIDDEN:
            found[key] = _HIDDEN[key]
        elif key in _ADDRESSES and isinstance(one, str):
            found[key] = without_passwords(one)
        else:
            found[key] = redacted(one)
    return found


def without_passwords(text: str) -> str:
    """The text without who, and by which password, stands in addresses in it."""
    return _WHO.sub(r"\1", text) if "@" in text or "%40" in text else text


__all__ = ["redacted", "without_passwords"]
