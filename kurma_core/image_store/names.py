"""Names of entries, taken apart before anything is done with them (A5)."""

from __future__ import annotations

from kurma_core.errors import HostileArchiveError
from kurma_core.image_store.entry import show
from kurma_core.image_store.limits import FIXED, Limits

_MAX_COMPONENT = 255
_SLASH = 0x2F


def split(name: bytes, limits: Limits, *, rooted: bool = False, link: bytes | None = None) -> list[bytes]:
    """The components of ``name``; empty for the top itself (``./``).

    :param rooted: a leading slash means the top (layers of registries), instead of being refused (images).
    :param link: name of the entry whose target ``name`` is; None: it is an entry's own name.
    :raises HostileArchiveError: ``..``, an absolute or empty name, one too long or too deep, a NUL.
    """
    if b"\0" in name or not name:
        raise _hostile(name, link, "is impossible")
    if len(name) > limits.path_length:
        raise _hostile(name, link, f"is longer than {limits.path_length} bytes", "path_length")
    if name[0] == _SLASH and not rooted:
        raise _hostile(name, link, "is absolute")
    parts = [part for part in name.split(b"/") if part and part != b"."]
    if b".." in parts:
        raise _hostile(name, link, "leads upwards with '..'")
    if len(parts) > limits.depth:
        raise _hostile(name, link, f"is more than {limits.depth} directories deep", "depth")
    if len(name) > _MAX_COMPONENT and max(map(len, parts)) > _MAX_COMPONENT:
        raise _hostile(name, link, f"has a part longer than {_MAX_COMPONENT} bytes", "path_length")
    return parts


class PathCounter:
    """Counts what becomes of an archive and its reader has not counted: a short entry may imply a hundred
    directories, and every path is kept in memory until the end."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._implied = 0
        self._size = 0

    def add(self, path: bytes, *, implied: bool = False) -> None:
        """:raises HostileArchiveError: that was one too many."""
        self._implied += implied
        self._size += len(path)
        if self._implied > self._limits.entries:
            raise HostileArchiveError(
                f"the archive implies more than {self._limits.entries} directories",
                hint="raise limits.entries in kurma.yml if the image is trusted",
                entry=show(path),
                limit="entries",
            )
        if self._size > self._limits.names_size:
            raise HostileArchiveError(
                f"the archive has more than {self._limits.names_size} bytes of names",
                hint=FIXED,
                entry=show(path),
                limit="names_size",
            )


def _hostile(name: bytes, link: bytes | None, why: str, limit: str | None = None) -> HostileArchiveError:
    shown = show(name if link is None else link)
    what = "its name" if link is None else f"its target '{show(name)}'"
    return HostileArchiveError(
        f"the archive is refused for its entry '{shown}': {what} {why}",
        hint=None if limit is None else FIXED,
        entry=shown,
        limit=limit,
    )
