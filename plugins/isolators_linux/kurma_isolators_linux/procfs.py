"""Reads /proc and /sys of the machine below ``IsolatorHost.root``, and Kurma's own capabilities. Writes nothing.

Where a file is missing, the caller's usual value is taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.linux import capabilities as linux

if TYPE_CHECKING:
    from kurma_core.hookspecs.isolator import IsolatorHost


def text(host: IsolatorHost, name: str) -> str | None:
    """A file's text without blanks at its ends; None: it is not there, or may not be read.

    :param name: relative to the root: ``proc/self/status``.
    """
    try:
        with open(f"{host.root.rstrip('/')}/{name}", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


def number(host: IsolatorHost, name: str, otherwise: int) -> int:
    """The whole number that the file holds."""
    try:
        return int(text(host, name) or "")
    except ValueError:
        return otherwise


def capabilities(host: IsolatorHost) -> frozenset[int]:
    """Those that Kurma has, and so can give; where somebody else only asks, those that root would have."""
    found = {}
    for line in (text(host, "proc/self/status") or "").splitlines():
        key, _, value = line.partition(":")
        found[key] = value.split()
    key = "CapPrm" if found.get("Uid", ["", "0"])[1:2] == ["0"] else "CapBnd"
    if found.get(key):
        return linux.bits(int(found[key][0], 16))
    return frozenset(range(len(linux.NAMES)))
