"""Trusted keys on disk (K1), the same in every keystore directory::

    root.d/FINGERPRINT                          may sign any image
    prefix.d/example.com/FINGERPRINT            … example.com and all example.com/…
    prefix.d/example.com/busybox/FINGERPRINT    … example.com/busybox and all example.com/busybox/…
    host.d/FINGERPRINT                          signs no image by being there; see ``trusted_host_keys``

A prefix is a way of directories, so that it ends where a name's component ends. A file holds one public key,
armored or binary. An empty file in a later directory masks the key of an earlier one at the same place. Files
whose names are no fingerprints are no keys.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from kurma_core.errors import TrustError

_HEX = frozenset("0123456789ABCDEF")


def is_fingerprint(text: str) -> bool:
    """Upper case, of a version 4 or 5 key."""
    return len(text) in (40, 64) and _HEX.issuperset(text)


def keys_for(directories: Sequence[str], name: str) -> Mapping[str, str]:
    """Key files by fingerprint of those who may sign images called ``name``.

    :raises TrustError: a directory cannot be read.
    """
    components = name.split("/")
    places = ["root.d"]
    if not any(component in ("", ".", "..") for component in components):
        places += ["/".join(["prefix.d", *components[:count]]) for count in range(1, len(components) + 1)]
    found: dict[str, str] = {}
    for place in places:
        found.update(_unmasked(directories, place))
    return found


def _unmasked(directories: Sequence[str], place: str) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for directory in directories:
        for fingerprint, path, size in _files(f"{directory}/{place}"):
            if size:
                found[fingerprint] = path
            else:
                found.pop(fingerprint, None)
    return found


def _files(directory: str) -> Iterator[tuple[str, str, int]]:
    try:
        with os.scandir(directory) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                fingerprint = entry.name.upper()
                if is_fingerprint(fingerprint) and entry.is_file():
                    yield fingerprint, entry.path, entry.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise TrustError(f"cannot read the keystore {directory}: {error.strerror}", path=directory) from error


def find(directories: Sequence[str], fingerprint: str) -> str | None:
    """Any file that holds that key, whatever it may sign; masks say nothing of this."""
    for directory in reversed(directories):
        for way, _, names in os.walk(directory):
            for name in names:
                path = os.path.join(way, name)
                if name.upper() == fingerprint and os.path.getsize(path):
                    return path
    return None
