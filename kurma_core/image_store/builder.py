"""Builds image archives from directories: the same input gives the same tar and the same image ID."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from struct import Struct

from kurma_core.cancellation import check
from kurma_core.errors import ArchiveError
from kurma_core.image_store.file_records import KINDS, get_attributes, open_tree, place, walk
from kurma_core.image_store.tar_entries import (
    BLOCK,
    CHARACTER,
    DIRECTORY,
    FIFO,
    FILE,
    HARDLINK,
    SYMLINK,
    Entry,
    show,
)
from kurma_core.linux.beneath import NotRegularError, open_regular

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

    from kurma_core.appc.image import ImageManifest
    from kurma_core.appc.manifest_reader import Warn

    Owner = Callable[[bytes, os.stat_result], tuple[int, int] | None]

_PIECE = 1 << 18


def build_archive(
    rootfs: str | None,
    manifest: Mapping[str, Any] | ImageManifest,
    out: BinaryIO,
    *,
    compress: str = "",
    warn: Warn | None = None,
    owner: Owner | None = None,
) -> str:
    """Writes an image archive: the manifest, then ``rootfs`` in the order of its names' bytes.

    Kept are the mode, owner and time of every file, hard links, and extended attributes that belong to the image.
    The manifest itself has no owner and no time. The holes of a sparse file are written as zeros, since their
    position depends on the file system and must not change the ID.

    :param rootfs: directory with the root filesystem; None: an empty one. Links in it are not followed.
    :param compress: ``""``, ``gzip``, ``bzip2``, ``xz`` or ``zstd``.
    :param warn: called with one line for each unknown key of the manifest.
    :param owner: gives the user and group of each file in the archive, by its path below ``rootfs`` and its
        status; None: the file is left out. Without it, files keep their own.
    :returns: the image's ID.
    :raises ManifestError: the manifest violates the specification.
    :raises ArchiveError: an image cannot contain such a file, or a file changes while it is read.
    :raises OSError: reading or writing fails.
    """
    import hashlib
    import json

    from kurma_core.appc.image import ImageManifest
    from kurma_core.image_store.compression import compressor

    value = manifest.to_json() if isinstance(manifest, ImageManifest) else dict(manifest)
    ImageManifest.parse(value, warn=warn)
    digest = hashlib.sha512()
    with compressor(compress, out) as write:

        def put(data: bytes) -> None:
            digest.update(data)
            write(data)

        writer = TarWriter(put)
        add_manifest(writer, json.dumps(value, ensure_ascii=False).encode())
        if rootfs is None:
            writer.add(Entry(b"rootfs", DIRECTORY, mode=0o755))
        else:
            root = open_tree(rootfs)
            try:
                _add_tree(writer, root, owner)
            finally:
                os.close(root)
        writer.close()
    return f"sha512-{digest.hexdigest()}"


def add_manifest(writer: TarWriter, manifest: bytes) -> None:
    """The first entry of every archive that Kurma writes."""
    writer.add(Entry(b"manifest", FILE, mode=0o644, size=len(manifest)), (manifest,))


def _add_tree(writer: TarWriter, root: int, owner: Owner | None) -> None:
    first: dict[tuple[int, int], bytes] = {}
    for path, parent, name, status in walk(root):
        owners = None if owner is None else owner(path, status)
        if owner is None or owners is not None:
            add_file(writer, b"rootfs/" + path if path else b"rootfs", parent, name, status, first, owners)


def add_file(
    writer: TarWriter,
    path: bytes,
    parent: int,
    name: bytes,
    status: os.stat_result,
    first: dict[tuple[int, int], bytes],
    owner: tuple[int, int] | None = None,
) -> None:
    """Writes one file of a tree.

    :param path: its name in the archive.
    :param parent: descriptor of the directory that contains it as ``name``.
    :param first: the path under which each file with several names was written; updated here.
    :param owner: replaces its own user and group.
    """
    entry = _describe(path, parent, name, status)
    if owner is not None:
        entry.uid, entry.gid = owner
    if entry.kind != DIRECTORY and status.st_nlink > 1:
        identity = (status.st_dev, status.st_ino)
        known = first.setdefault(identity, path)
        if known != path:
            writer.add(
                Entry(
                    path, HARDLINK, mode=entry.mode, uid=entry.uid, gid=entry.gid, mtime=entry.mtime, target=known
                )
            )
            return
    if entry.kind != FILE:
        entry.attributes = get_attributes(place(parent, name), follow=False)
        writer.add(entry)
        return
    try:
        # Other users may be able to write to the tree while an image is built from it.
        fd = open_regular(parent, os.fsdecode(name))
    except NotRegularError:
        raise ArchiveError(f"'{show(path)}' changed while it was read", path=show(path)) from None
    try:
        entry.attributes = get_attributes(fd)
        writer.add(entry, _content(fd, entry.size))
    except ValueError as error:
        raise ArchiveError(f"'{show(path)}' changed while it was read", path=show(path)) from error
    finally:
        os.close(fd)


def _describe(path: bytes, parent: int, name: bytes, status: os.stat_result) -> Entry:
    """All but the extended attributes."""
    kind = KINDS.get(stat.S_IFMT(status.st_mode))
    if kind is None:
        raise ArchiveError(f"'{show(path)}' is a socket, which no image can hold", path=show(path))
    device = kind in (CHARACTER, BLOCK)
    return Entry(
        path,
        kind,
        mode=stat.S_IMODE(status.st_mode) if kind != SYMLINK else 0o777,
        uid=status.st_uid,
        gid=status.st_gid,
        size=status.st_size if kind == FILE else 0,
        mtime=status.st_mtime_ns,
        target=os.readlink(name, dir_fd=parent) if kind == SYMLINK else b"",
        device=(os.major(status.st_rdev), os.minor(status.st_rdev)) if device else (0, 0),
    )


def _content(fd: int, size: int) -> Iterator[bytes]:
    left = size
    while left:
        piece = os.read(fd, min(left, _PIECE))
        if not piece:
            return
        check()
        left -= len(piece)
        yield piece


_HEADER = Struct("100s8s8s8s12s12s8sc100s6s2s32s32s8s8s155s12x")
_FLAGS = {FILE: b"0", HARDLINK: b"1", SYMLINK: b"2", CHARACTER: b"3", BLOCK: b"4", DIRECTORY: b"5", FIFO: b"6"}
_BLOCK = 512
_ZERO = b"0000000"
_END = bytes(2 * _BLOCK)


class TarWriter:
    """Writes a tar that is the same for the same entries, to the byte.

    Headers are ustar's; what does not fit one goes into an extended header before it, keywords in the order of
    their bytes. No names of users and groups, no access or change times, nothing of the machine. Names that are
    not UTF-8 are announced with ``hdrcharset=BINARY``.

    :param out: takes the bytes.
    """

    def __init__(self, out: Callable[[bytes], object]) -> None:
        self._out = out

    def add(self, entry: Entry, content: Iterable[bytes] = ()) -> None:
        """Write one entry.

        :param content: of a regular file, exactly ``entry.size`` bytes.
        :raises ValueError: it was more or less.
        """
        fields = _extended(entry)
        if fields:
            data = b"".join(_record(key, fields[key]) for key in sorted(fields))
            self._out(_header(b"PaxHeaders/" + _tail(entry.name), b"x", 0o644, 0, 0, len(data), 0, b"", (0, 0)))
            self._out(data + bytes(-len(data) % _BLOCK))
        name = entry.name + (b"/" if entry.kind == DIRECTORY and not entry.name.endswith(b"/") else b"")
        seconds = entry.mtime // 1_000_000_000
        self._out(
            _header(
                name if b"path" not in fields else _tail(name),
                _FLAGS[entry.kind],
                entry.mode,
                entry.uid if b"uid" not in fields else 0,
                entry.gid if b"gid" not in fields else 0,
                entry.size if b"size" not in fields else 0,
                seconds if 0 <= seconds < 8**11 else 0,
                entry.target if b"linkpath" not in fields else _tail(entry.target),
                entry.device,
            )
        )
        written = 0
        for piece in content:
            written += len(piece)
            self._out(piece)
        if written != entry.size:
            raise ValueError(f"{written} bytes of content, {entry.size} announced")
        if written % _BLOCK:
            self._out(bytes(-written % _BLOCK))

    def close(self) -> None:
        """Write the end marker."""
        self._out(_END)


def _header(
    name: bytes,
    flag: bytes,
    mode: int,
    uid: int,
    gid: int,
    size: int,
    mtime: int,
    target: bytes,
    device: tuple[int, int],
) -> bytes:
    fields = [
        name,
        b"%07o" % mode,
        b"%07o" % uid if uid else _ZERO,
        b"%07o" % gid if gid else _ZERO,
        b"%011o" % size,
        b"%011o" % mtime,
        b"        ",
        flag,
        target,
        b"ustar\0",
        b"00",
        b"",
        b"",
        b"%07o" % device[0] if device[0] else _ZERO,
        b"%07o" % device[1] if device[1] else _ZERO,
        b"",
    ]
    block = _HEADER.pack(*fields)
    return b"%b%06o\0 %b" % (block[:148], sum(block), block[156:])


def _extended(entry: Entry) -> dict[bytes, bytes]:
    """The fields that do not fit the header."""
    fields: dict[bytes, bytes] = {}
    slash = entry.kind == DIRECTORY
    if not _plain(entry.name, 100 - slash):
        fields[b"path"] = entry.name + (b"/" if slash else b"")
    if not _plain(entry.target, 100):
        fields[b"linkpath"] = entry.target
    for key, value, limit in ((b"uid", entry.uid, 8**7), (b"gid", entry.gid, 8**7), (b"size", entry.size, 8**11)):
        if value >= limit:
            fields[key] = b"%d" % value
    if entry.mtime % 1_000_000_000 or not 0 <= entry.mtime < 8**11 * 1_000_000_000:
        fields[b"mtime"] = _time(entry.mtime)
    for name, content in entry.attributes.items():
        # A keyword ends at the first "="; GNU tar's way around that.
        fields[b"SCHILY.xattr." + name.replace(b"%", b"%25").replace(b"=", b"%3D")] = content
    for key in (b"path", b"linkpath"):
        if key in fields and not _is_utf8(fields[key]):
            fields[b"hdrcharset"] = b"BINARY"
    return fields


def _plain(text: bytes, limit: int) -> bool:
    return len(text) <= limit and text.isascii()


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _time(nanoseconds: int) -> bytes:
    sign, value = (b"-", -nanoseconds) if nanoseconds < 0 else (b"", nanoseconds)
    whole, fraction = divmod(value, 1_000_000_000)
    return sign + (b"%d.%09d" % (whole, fraction) if fraction else b"%d" % whole)


def _record(key: bytes, value: bytes) -> bytes:
    body = b" %b=%b\n" % (key, value)
    length = len(body)
    while len(body) + len(str(length)) != length:
        length = len(body) + len(str(length))
    return b"%d%b" % (length, body)


def _tail(name: bytes) -> bytes:
    """The name field of a header whose name is too long; readers use the extended header's."""
    return bytes(byte if byte < 128 else 0x5F for byte in name.rstrip(b"/")[-80:]) or b"_"
