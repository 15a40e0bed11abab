"""One entry of a tar, as it stands there: nothing about it is trusted yet."""

from __future__ import annotations

from collections.abc import Mapping

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
