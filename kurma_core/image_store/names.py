"""Names of entries, taken apart before anything is done with them (A5)."""

from __future__ import annotations

from kurma_core.errors import HostileArchiveError
from kurma_core.image_store.entry import show
from kurma_core.image_store.limits import Limits

_MAX_COMPONENT = 255


def split(name: bytes, limits: Limits, *, rooted: bool = False) -> list[bytes]:
    """The components of ``name``; empty for the top itself (``./``).

    :param rooted: a leading slash means the top (layers of registries), instead of being refused (images).
    :raises HostileArchiveError: ``..``, an absolute or empty name, one too long or too deep, a NUL.
    """
    if b"\0" in name or not name:
        raise _hostile(name, "its name is impossible")
    if len(name) > limits.path_length:
        raise _hostile(name, f"its name is longer than {limits.path_length} bytes", "path_length")
    if name[0] == 0x2F and not rooted:
        raise _hostile(name, "its name is absolute")
    parts = [part for part in name.split(b"/") if part and part != b"."]
    if b".." in parts:
        raise _hostile(name, "its name leads upwards with '..'")
    if len(parts) > limits.depth:
        raise _hostile(name, f"it is more than {limits.depth} directories deep", "depth")
    if len(name) > _MAX_COMPONENT and max(map(len, parts)) > _MAX_COMPONENT:
        raise _hostile(name, f"a part of its name is longer than {_MAX_COMPONENT} bytes", "path_length")
    return parts


def _hostile(name: bytes, why: str, limit: str | None = None) -> HostileArchiveError:
    shown = show(name)
    return HostileArchiveError(f"the archive is refused for its entry {shown!r}: {why}", entry=shown, limit=limit)
