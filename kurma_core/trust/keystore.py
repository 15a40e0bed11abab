"""The keystore directories: which key may sign images of which name.

Every keystore directory looks like this::

    root.d/FINGERPRINT                          may sign any image
    prefix.d/example.com/FINGERPRINT            … example.com and all example.com/…
    prefix.d/example.com/busybox/FINGERPRINT    … example.com/busybox and all example.com/busybox/…
    host.d/FINGERPRINT                          signs no image by being there; see ``trusted_host_keys``

A prefix is a way of directories, so that it ends where a name's component ends. A file holds one public key,
armored or binary. An empty file in a later directory masks the key of an earlier one at the same place; so does
what is not a regular file (a link to ``/dev/null``, a broken link). Files whose names are no fingerprints are no
keys. Where others than root (and the caller) may write, nothing is trusted.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence

from kurma_core.errors import TrustError
from kurma_core.linux.files import others_may_write

ROOT = "root.d"
HOST = "host.d"
_PREFIX = "prefix.d"
_HEX = frozenset("0123456789ABCDEF")
#: Bytes of a file's name; and of a prefix, so that the keystore's own path fits before it.
_PART_LENGTH = 255
_WAY_LENGTH = 3072


def is_fingerprint(text: str) -> bool:
    """Upper case, of a version 4 or 5 key."""
    return len(text) in (40, 64) and _HEX.issuperset(text)


def place_of(prefix: str | None) -> str:
    """The directory, below a keystore's, of the keys for a prefix; None: of those for all images.

    :raises TrustError: no image can have such a name.
    """
    if prefix is None:
        return ROOT
    if not _is_way(prefix):
        raise TrustError(f"{prefix}: no prefix of an image's name", hint="write example.com or example.com/app")
    return f"{_PREFIX}/{prefix}"


def prefix_of(place: str) -> str | None:
    """The prefix whose keys are at that place; None: none, for it is :data:`ROOT` or :data:`HOST`."""
    return place.removeprefix(f"{_PREFIX}/") if place.startswith(f"{_PREFIX}/") else None


def _is_way(name: str) -> bool:
    """Whether directories can have that name; any other name has no prefix, and no keys of its own."""
    if "\0" in name or len(os.fsencode(name)) > _WAY_LENGTH:
        return False
    return not any(part in ("", ".", "..") or len(os.fsencode(part)) > _PART_LENGTH for part in name.split("/"))


def keys_for(directories: Sequence[str], name: str) -> Mapping[str, tuple[str, ...]]:
    """Files, by fingerprint, of the keys that may sign images called ``name``. A key at several places has several
    files; one of them may know of its revocation.

    :raises TrustError: a directory cannot be read, or others may write it.
    """
    places = [ROOT]
    if _is_way(name):
        components = name.split("/")
        places += ["/".join([_PREFIX, *components[:count]]) for count in range(1, len(components) + 1)]
    found: dict[str, tuple[str, ...]] = {}
    for place in places:
        for fingerprint, path in _unmasked(directories, place).items():
            found[fingerprint] = (*found.get(fingerprint, ()), path)
    return found


def _unmasked(directories: Sequence[str], place: str) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for directory in directories:
        for fingerprint, path, status in files(directory, place):
            if status is None:
                found.pop(fingerprint, None)
                continue
            check_writers(path, status)
            found[fingerprint] = path
    return found


def files(directory: str, place: str) -> Iterator[tuple[str, str, os.stat_result | None]]:
    """Fingerprint, path and status of the key files at one place of one keystore; the status is None for what only
    masks.

    :raises TrustError: it cannot be read, or others may write it.
    """
    way = directory
    try:
        for part in ("", *place.split("/")):
            way = f"{way}/{part}" if part else way
            check_writers(way, os.stat(way))
        with os.scandir(way) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                fingerprint = entry.name.upper()
                if not is_fingerprint(fingerprint) or entry.is_dir():
                    continue
                status = entry.stat() if entry.is_file() else None
                yield fingerprint, entry.path, status if status is not None and status.st_size else None
    except FileNotFoundError:
        return
    except OSError as error:
        if isinstance(error, NotADirectoryError) and os.path.isdir(directory):
            if place not in (ROOT, HOST):
                return  # a file where a longer prefix would be
        elif isinstance(error, NotADirectoryError):
            way = directory
        raise TrustError(f"cannot read the keystore {way}: {str(error.strerror).lower()}", path=way) from error


def strays(directory: str, place: str) -> Iterator[str]:
    """Paths of files at one place of one keystore that are named as no key is, and so count for nothing."""
    try:
        with os.scandir(f"{directory}/{place}") as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                named = is_fingerprint(entry.name.upper())
                below = prefix_of(place) is not None  # a directory there is a longer prefix
                if (named or not below) if entry.is_dir() else not named:
                    yield entry.path
    except OSError:
        return  # said of the place as a whole


def check_writers(path: str, status: os.stat_result) -> None:
    """:raises TrustError: others than root and the caller may write it."""
    if not others_may_write(status):
        return
    raise TrustError(
        f"{path}: users other than root can write it (owner {status.st_uid}, mode "
        f"{stat.S_IMODE(status.st_mode):04o}), "
        "so no key in it is trusted",
        hint=f"check its content, then: chown root {path} && chmod go-w {path}",
        path=path,
    )


def places(directory: str) -> Iterator[str]:
    """Every place of a keystore that may hold keys, sorted."""
    yield ROOT
    top = f"{directory}/{_PREFIX}"
    for way, below, _ in os.walk(top):
        below.sort()
        if way != top:
            yield way.removeprefix(f"{directory}/")
    yield HOST


def find(directories: Sequence[str], fingerprint: str) -> tuple[str, ...]:
    """All files that hold that key, whatever it may sign; masks say nothing of this.

    :raises TrustError: one of them may be written by others.
    """
    found = []
    for directory in directories:
        for place in places(directory):
            for name, path, status in files(directory, place):
                if name == fingerprint and status is not None:
                    check_writers(path, status)
                    found.append(path)
    return tuple(found)
