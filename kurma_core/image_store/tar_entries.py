"""Entries of a tar: their kinds, the checks of their names, and the limits of an archive."""

from __future__ import annotations

from collections.abc import Mapping

from kurma_core.errors import HostileArchiveError
from kurma_core.value import frozen

#: Kinds of entries, each one letter, as records on disk have them.
FILE, DIRECTORY, SYMLINK, HARDLINK, FIFO, CHARACTER, BLOCK = "f", "d", "l", "h", "p", "c", "b"

NO_ATTRIBUTES: Mapping[bytes, bytes] = {}


class Entry:
    """A header with its extensions applied.

    :ivar name: bytes as written (no encoding is assumed), trailing slashes included.
    :ivar kind: one of the constants of this module.
    :ivar mode: permission bits with setuid, setgid and sticky; no file type.
    :ivar size: bytes of a regular file once extracted; 0 for everything else.
    :ivar stored: bytes of its content in the tar; differs from ``size`` for sparse files.
    :ivar mtime: nanoseconds since the epoch, possibly negative.
    :ivar target: of a symbolic link (any bytes), or the name of the entry that a hard link means.
    :ivar device: major and minor number.
    :ivar attributes: extended attributes by full name.
    :ivar sparse: (offset, length) of the stretches that ``stored`` holds, ascending; None: all of it.
    """

    __slots__ = (
        "attributes",
        "device",
        "gid",
        "kind",
        "mode",
        "mtime",
        "name",
        "size",
        "sparse",
        "stored",
        "target",
        "uid",
    )

    def __init__(
        self,
        name: bytes,
        kind: str,
        *,
        mode: int = 0o644,
        uid: int = 0,
        gid: int = 0,
        size: int = 0,
        mtime: int = 0,
        target: bytes = b"",
        device: tuple[int, int] = (0, 0),
        attributes: Mapping[bytes, bytes] = NO_ATTRIBUTES,
        sparse: list[tuple[int, int]] | None = None,
        stored: int | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.mode = mode
        self.uid = uid
        self.gid = gid
        self.size = size
        self.mtime = mtime
        self.target = target
        self.device = device
        self.attributes = attributes
        self.sparse = sparse
        self.stored = size if stored is None else stored


def show(name: bytes) -> str:
    """``name`` for a message: printable, on one line, not too long."""
    text = name.decode("utf-8", "backslashreplace")
    text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return text if len(text) <= 200 else f"{text[:120]}…{text[-60:]}"


#: Hint for limits that cannot be configured.
FIXED = "this limit is fixed: an archive that honest tools have made stays far below it"


@frozen
class Limits:
    """Limits of one archive, or of one layer.

    :param total_size: bytes, unpacked: of the tar itself, and of all files together (holes count as well).
    :param entries: number of entries; and of directories that are only implied by what lies in them.
    :param ratio: unpacked size over packed size; looked at from :attr:`ratio_from` bytes on.
    :param ratio_from: bytes unpacked up to which any ratio is good: small files of zeros are honest.
    :param path_length: bytes of one path. Below the kernel's 4096, so that the store's own path fits before it.
    :param depth: directories in one another.
    :param header_size: bytes of one extended header, attributes included.
    :param manifest_size: bytes of the image manifest.
    :param names_size: bytes of all paths together: they are kept in memory while an archive is extracted.
    """

    total_size: int = 64 << 30
    entries: int = 2_000_000
    ratio: float = 1000.0
    ratio_from: int = 64 << 20
    path_length: int = 3840
    depth: int = 256
    header_size: int = 1 << 20
    manifest_size: int = 4 << 20
    names_size: int = 512 << 20


_MAX_COMPONENT = 255
_SLASH = 0x2F


def split(name: bytes, limits: Limits, *, rooted: bool = False, link: bytes | None = None) -> list[bytes]:
    """The components of ``name``; empty for the top itself (``./``).

    :param rooted: a leading slash means the top (layers of registries), instead of being refused (images).
    :param link: name of the entry whose target ``name`` is; None: it is an entry's own name.
    :raises HostileArchiveError: ``..``, an absolute or empty name, a NUL, or a name that is too long or too deep.
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
    """Counts what only the extraction of an archive reveals: a short entry may imply a hundred directories, and
    every path is kept in memory until the end."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._implied = 0
        self._size = 0

    def add(self, path: bytes, *, implied: bool = False) -> None:
        """:raises HostileArchiveError: the limit is exceeded."""
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
