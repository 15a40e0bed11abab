"""Reads /proc and /sys below ``IsolatorHost.root``, and Kurma's own capabilities. It writes nothing.

If a file is missing, a default is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.linux import capabilities as linux

if TYPE_CHECKING:
    from kurma_core.hookspecs.isolator import IsolatorHost


def text(host: IsolatorHost, name: str) -> str | None:
    """Reads a file's text without white space at its ends; None: it is missing, or may not be read.

    :param name: relative to the root: ``proc/self/status``.
    """
    try:
        with open(f"{host.root.rstrip('/')}/{name}", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


def number(host: IsolatorHost, name: str, otherwise: int) -> int:
    """Reads a whole number from a file. :param otherwise: returned if there is none."""
    try:
        return int(text(host, name) or "")
    except ValueError:
        return otherwise


def capabilities(host: IsolatorHost) -> frozenset[int]:
    """Returns Kurma's own capabilities, which it can give to apps; for a user other than root, those that root
    would have."""
    found = {}
    for line in (text(host, "proc/self/status") or "").splitlines():
        key, _, value = line.partition(":")
        found[key] = value.split()
    key = "CapPrm" if found.get("Uid", ["", "0"])[1:2] == ["0"] else "CapBnd"
    if found.get(key):
        return linux.bits(int(found[key][0], 16))
    return frozenset(range(len(linux.NAMES)))
