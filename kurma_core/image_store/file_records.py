"""Records every file of an extracted tree, with digest and attributes, so that tampering is found.

One line per file: kind, mode, owner, group, size (of a device its number), time, inode, change time, digest,
digest of its extended attributes, path; ``-`` where there is none. Nothing in the tree can change without an
inode's change time.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping

from kurma_core.cancellation import check
from kurma_core.image_store.tar_entries import BLOCK, CHARACTER, DIRECTORY, FIFO, FILE, SYMLINK
from kurma_core.value import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hashlib import _Hash


#: First line of a record.
HEADER = b"kurma files 1\n"
_NONE = b"-"
#: Kinds of entries by type of file; a socket has none.
KINDS = {
    stat.S_IFREG: FILE,
    stat.S_IFDIR: DIRECTORY,
    stat.S_IFLNK: SYMLINK,
    stat.S_IFIFO: FIFO,
    stat.S_IFCHR: CHARACTER,
    stat.S_IFBLK: BLOCK,
}


@frozen
class FileRecord:
    """One line of the records.

    :ivar stamp: the attributes that are visible without reading the file.
    :ivar changed: time of the inode's last change; a new hard link changes it, too.
    """

    path: bytes
    stamp: bytes
    changed: bytes
    digest: bytes
    attributes: bytes


@frozen
class Origin:
    """The fields of a record that depend on the archive alone."""

    stamp: bytes
    digest: bytes
    attributes: bytes


def origin(record: FileRecord) -> Origin:
    """The fields of the record that the archive determines."""
    return Origin(without_inode(record.stamp), record.digest, record.attributes)


def without_inode(stamp: bytes) -> bytes:
    """The stamp without its last field, the inode's number, which a copy of the file does not keep."""
    return stamp.rpartition(b" ")[0]


def stamps(status: os.stat_result) -> tuple[bytes, bytes]:
    """From a file's status: the fields that must stay, and the change time, which every new hard link changes."""
    kind = KINDS.get(stat.S_IFMT(status.st_mode), "s")
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
    return attributes_value_digest(get_attributes(target, follow=isinstance(target, int)))


def attributes_value_digest(found: Mapping[bytes, bytes]) -> bytes:
    """The same for attributes already at hand, sorted by name."""
    if not found:
        return _NONE
    digest = content_hash()
    for name, value in found.items():
        digest.update(b"%d %b=%d %b" % (len(name), name, len(value), value))
    return digest.hexdigest().encode()


def record_tree(
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
        lines.append(record_line(FileRecord(path, stamp, changed, digest, extended)))
    return b"".join(lines), usage, len(lines) - 1


def record_line(record: FileRecord) -> bytes:
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


def read_records(content: bytes) -> Iterator[FileRecord]:
    """The records of a file of records. :raises ValueError: the file is something else."""
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


#: Bytes read at a time; the grain in which zeros of a sparse file are left out.
_GRAIN = 1 << 20


def content_hash() -> _Hash:
    """SHA-256: with the processor's help the fastest of the sound ones."""
    import hashlib

    return hashlib.sha256(usedforsecurity=True)


def file_digest(fd: int) -> str:
    """Digest of the content of ``fd``, read from its start. :raises OSError: as the kernel says."""
    digest = content_hash()
    offset = 0
    while piece := os.pread(fd, _GRAIN, offset):
        check()
        digest.update(piece)
        offset += len(piece)
    return digest.hexdigest()


def sparse_digest(fd: int, size: int) -> str:
    """A digest whose time depends on a file's data, not on its holes; the prefix ``sparse:`` marks it.

    It covers the size, and each block that is not all zeros with its position, so it does not depend on where the
    file system reports holes.

    :raises OSError: as the kernel says.
    """
    digest = content_hash()
    digest.update(b"%d\n" % size)
    at = 0
    while at < size:
        check()
        try:
            at = os.lseek(fd, at, os.SEEK_DATA) // _GRAIN * _GRAIN
        except OSError as error:
            import errno

            if error.errno != errno.ENXIO:
                raise
            break
        piece = os.pread(fd, _GRAIN, at)
        if piece.strip(b"\0"):
            digest.update(b"%d\n" % at)
            digest.update(piece)
        at += _GRAIN
    return f"sparse:{digest.hexdigest()}"


def sparse_content_digest(stretches: list[tuple[int, int]], size: int, content: Iterator[memoryview]) -> str:
    """The :func:`sparse_digest` of a file with these stretches of content, without making the file.

    :param stretches: (offset, length), ascending.
    """
    digest = content_hash()
    digest.update(b"%d\n" % size)
    grain = bytearray()
    place = -1

    def flush() -> None:
        if grain.strip(b"\0"):
            digest.update(b"%d\n" % place)
            digest.update(bytes(grain))

    ahead = iter(stretches)
    offset = length = 0
    for piece in content:
        while piece:
            while not length:
                offset, length = next(ahead)
            start = offset // _GRAIN * _GRAIN
            if start != place:
                flush()
                place, grain = start, bytearray(min(_GRAIN, size - start))
            count = min(len(piece), length, start + _GRAIN - offset)
            grain[offset - start : offset - start + count] = piece[:count]
            offset, length, piece = offset + count, length - count, piece[count:]
    flush()
    return f"sparse:{digest.hexdigest()}"


_OVERLAY = (b"trusted.overlay.", b"user.overlay.")
#: Kept on extraction, and put into archives that Kurma makes.
_KEPT = (b"user.", b"trusted.", b"security.capability", b"system.posix_acl_access", b"system.posix_acl_default")


def is_hostile_attribute(name: bytes) -> bool:
    """Whether it would act on an overlay mount: a whiteout, an opaque directory, a redirect out of the layer."""
    return name.startswith(_OVERLAY)


def is_kept_attribute(name: bytes) -> bool:
    """Whether it belongs to the image. Labels of a host's security modules do not (``security.selinux``,
    ``security.ima``), and neither do other systems' attributes."""
    return name.startswith(_KEPT) and not is_hostile_attribute(name)


def put_attributes(target: int | bytes, attributes: Mapping[bytes, bytes], *, follow: bool = True) -> None:
    """Sets the attributes that belong to an image.

    :param target: a descriptor, or a path whose last component alone can be a link.
    :raises OSError: as the kernel says; needs root for all but ``user.``.
    """
    for name, value in attributes.items():
        if is_kept_attribute(name):
            os.setxattr(target, name, value, follow_symlinks=follow)


def get_attributes(target: int | bytes, *, follow: bool = True) -> dict[bytes, bytes]:
    """All attributes that belong to an image, sorted by name.

    :raises OSError: as the kernel says.
    """
    try:
        names = os.listxattr(target, follow_symlinks=follow)
    except OSError as error:
        import errno

        if error.errno == errno.ENOTSUP:
            return {}
        raise
    if not names:
        return {}
    found = sorted(os.fsencode(name) for name in names)
    return {name: os.getxattr(target, name, follow_symlinks=follow) for name in found if is_kept_attribute(name)}


DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def walk(root: int) -> Iterator[tuple[bytes, int, bytes, os.stat_result]]:
    """Everything below the directory ``root``: a directory before its contents, names in order of their bytes.

    Links are not followed. The descriptor that comes with an entry is valid until the next one is requested.

    :returns: path beneath the root, descriptor of the directory that contains it, its name there, its status. The
        root itself comes first, with an empty path and the name ``.``.
    :raises OSError: as the kernel says.
    :raises Cancelled: the operation was cancelled.
    """
    yield b"", root, b".", os.fstat(root)
    # One descriptor per level. The store's limits keep trees shallow enough for that.
    stack: list[tuple[bytes, int, Iterator[bytes]]] = [(b"", os.dup(root), iter(_names(root)))]
    try:
        while stack:
            prefix, fd, names = stack[-1]
            name = next(names, None)
            if name is None:
                os.close(fd)
                stack.pop()
                continue
            check()
            status = os.lstat(name, dir_fd=fd)
            path = prefix + name
            yield path, fd, name, status
            if stat.S_ISDIR(status.st_mode):
                below = os.open(name, DIRECTORY_FLAGS, dir_fd=fd)
                stack.append((path + b"/", below, iter(_names(below))))
    finally:
        for _, fd, _ in stack:
            os.close(fd)


def _names(fd: int) -> list[bytes]:
    return sorted(os.fsencode(name) for name in os.listdir(fd))


def open_tree(path: str) -> int:
    """Descriptor of the directory at a trusted path. :raises OSError: as the kernel says."""
    return os.open(path, DIRECTORY_FLAGS)


def place(parent: int, name: bytes) -> bytes:
    """A path for calls that know no descriptors (extended attributes); only ``name`` itself can be a link."""
    return b"/proc/self/fd/%d/%s" % (parent, name)
