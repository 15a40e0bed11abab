"""The record of every file of an extracted tree, by which tampering is found (S2).

One line per file: kind, mode, owner, group, size (of a device its number), time, inode, change time, digest,
digest of its extended attributes, path; ``-`` where there is none. Nothing in the tree can change without an
inode's change time.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping

from kurma_core.image_store import attributes
from kurma_core.image_store.digests import content_hash, file_digest
from kurma_core.image_store.entry import BLOCK, CHARACTER, DIRECTORY, FIFO, FILE, SYMLINK
from kurma_core.image_store.trees import place, walk
from kurma_core.value import frozen

#: First line of a record.
HEADER = b"kurma files 1\n"
_NONE = b"-"
_KINDS = {
    stat.S_IFREG: FILE,
    stat.S_IFDIR: DIRECTORY,
    stat.S_IFLNK: SYMLINK,
    stat.S_IFIFO: FIFO,
    stat.S_IFCHR: CHARACTER,
    stat.S_IFBLK: BLOCK,
}


@frozen
class FileRecord:
    """One line.

    :ivar stamp: what is seen without reading the file.
    :ivar changed: time of the inode's last change, to which every new hard link is one too.
    """

    path: bytes
    stamp: bytes
    changed: bytes
    digest: bytes
    attributes: bytes


@frozen
class Origin:
    """What of a record the archive alone determines."""

    stamp: bytes
    digest: bytes
    attributes: bytes


def origin(record: FileRecord) -> Origin:
    """Without the inode's number. :ivar record.stamp: its last field is that number."""
    return Origin(record.stamp.rpartition(b" ")[0], record.digest, record.attributes)


def stamps(status: os.stat_result) -> tuple[bytes, bytes]:
    """What a file's status says: all that must stay, and what changes when it gets one more name."""
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "s")
    size = "-"
    if kind in (FILE, SYMLINK):
        size = str(status.st_size)
    elif kind in (CHARACTER, BLOCK):
        size = str(status.st_rdev)
    text = (
        f"{kind} {stat.S_IMODE(status.st_mode):04o} {status.st_uid} {status.st_gid} {size} {status.st_mtime_ns} "
        f"{status.st_ino}"
    )
    return text.encode(), b"%d" % status.st_ctime_ns


def attributes_digest(target: int | bytes) -> bytes:
    """Digest over all extended attributes that are kept; ``-`` if there are none."""
    return attributes_value_digest(attributes.get(target, follow=isinstance(target, int)))


def attributes_value_digest(found: Mapping[bytes, bytes]) -> bytes:
    """The same for attributes already at hand, sorted by name."""
    if not found:
        return _NONE
    digest = content_hash()
    for name, value in found.items():
        digest.update(b"%d %b=%d %b" % (len(name), name, len(value), value))
    return digest.hexdigest().encode()


def record(
    root: int, digests: Mapping[bytes, str] | None, attributed: frozenset[bytes] | None
) -> tuple[bytes, int, int]:
    """The record of the tree at ``root`` as it is now.

    :param digests: of regular files, by path, as they were made; None: they are read and hashed now.
    :param attributed: paths that may have extended attributes; None: any.
    :returns: the record, bytes on disk, and the number of files.
    """
    lines = [HEADER]
    usage = 0
    seen: set[int] = set()
    for path, parent, name, status in walk(root):
        if status.st_nlink == 1 or status.st_ino not in seen:
            usage += status.st_blocks * 512
            if status.st_nlink > 1:
                seen.add(status.st_ino)
        stamp, changed = stamps(status)
        digest = _NONE
        if stat.S_ISREG(status.st_mode):
            digest = digests[path].encode() if digests is not None else _read_digest(parent, name)
        elif stat.S_ISLNK(status.st_mode):
            digest = link_digest(os.readlink(name, dir_fd=parent))
        extended = _NONE
        if attributed is None or path in attributed:
            extended = attributes_digest(place(parent, name) if path else root)
        lines.append(line(FileRecord(path, stamp, changed, digest, extended)))
    return b"".join(lines), usage, len(lines) - 1


def line(record: FileRecord) -> bytes:
    """A record's line."""
    path = _escape(record.path)
    return b"%b %b %b %b %b\n" % (record.stamp, record.changed, record.digest, record.attributes, path)


def _read_digest(parent: int, name: bytes) -> bytes:
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        return file_digest(fd).encode()
    finally:
        os.close(fd)


def link_digest(target: bytes) -> bytes:
    digest = content_hash()
    digest.update(target)
    return digest.hexdigest().encode()


def read(content: bytes) -> Iterator[FileRecord]:
    """:raises ValueError: it is none."""
    if not content.startswith(HEADER) or not content.endswith(b"\n"):
        raise ValueError("not a record of files")
    for text in content[len(HEADER) : -1].split(b"\n"):
        fields = text.split(b" ", 10)
        yield FileRecord(_unescape(fields[10]), b" ".join(fields[:7]), fields[7], fields[8], fields[9])


def _escape(path: bytes) -> bytes:
    if b"\\" in path or b"\n" in path:
        return path.replace(b"\\", b"\\\\").replace(b"\n", b"\\n")
    return path


def _unescape(path: bytes) -> bytes:
    if b"\\" not in path:
        return path
    return b"\\".join(part.replace(b"\\n", b"\n") for part in path.split(b"\\\\"))
