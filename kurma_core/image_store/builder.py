"""Building an archive from a directory: the same input gives the same image ID (A6)."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping

from kurma_core.cancellation import check
from kurma_core.errors import ArchiveError
from kurma_core.image_store import attributes
from kurma_core.image_store.entry import BLOCK, CHARACTER, DIRECTORY, FIFO, FILE, HARDLINK, SYMLINK, Entry, show
from kurma_core.image_store.trees import open_tree, place, walk
from kurma_core.image_store.writer import TarWriter
from kurma_core.linux.regular_file import NotRegularError, open_regular

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

    from kurma_core.appc.image import ImageManifest
    from kurma_core.appc.manifest_reader import Warn

_PIECE = 1 << 18
_KINDS = {
    stat.S_IFREG: FILE,
    stat.S_IFDIR: DIRECTORY,
    stat.S_IFLNK: SYMLINK,
    stat.S_IFIFO: FIFO,
    stat.S_IFCHR: CHARACTER,
    stat.S_IFBLK: BLOCK,
}


def build_archive(
    rootfs: str | None,
    manifest: Mapping[str, Any] | ImageManifest,
    out: BinaryIO,
    *,
    compress: str = "",
    warn: Warn | None = None,
    owner: tuple[int, int] | None = None,
) -> str:
    """Write an image archive: the manifest, then ``rootfs`` in the order of its names' bytes.

    Kept as they are: mode, owner and time of every file, hard links, extended attributes that belong to the
    image. The manifest itself has no owner and no time. The holes of a sparse file are written out as zeros: where
    they are is the disk's business, and must not change the ID.

    :param rootfs: directory with the root filesystem; None: an empty one. No link in it is followed.
    :param compress: ``""``, ``gzip``, ``bzip2``, ``xz`` or ``zstd``.
    :param warn: called with one line for each unknown key of the manifest.
    :param owner: user and group of all that there is, in place of whose it is here.
    :returns: the image's ID.
    :raises ManifestError: the manifest breaks the specification.
    :raises ArchiveError: a file is none that an image can hold, or changes while it is read.
    :raises OSError: reading or writing fails.
    """
    import hashlib
    import json

    from kurma_core.appc.image import ImageManifest
    from kurma_core.image_store.compressing import compressor

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


def _add_tree(writer: TarWriter, root: int, owner: tuple[int, int] | None) -> None:
    first: dict[tuple[int, int], bytes] = {}
    for path, parent, name, status in walk(root):
        add_file(writer, b"rootfs/" + path if path else b"rootfs", parent, name, status, first, owner)


def add_file(
    writer: TarWriter,
    path: bytes,
    parent: int,
    name: bytes,
    status: os.stat_result,
    first: dict[tuple[int, int], bytes],
    owner: tuple[int, int] | None = None,
) -> None:
    """Write one file of a tree.

    :param path: its name in the archive.
    :param parent: descriptor of the directory that it lies in as ``name``.
    :param first: the path under which each file with several names was written; added to.
    :param owner: whose it is, if not whose it is here.
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
        entry.attributes = attributes.get(place(parent, name), follow=False)
        writer.add(entry)
        return
    try:
        # Others may write to a tree that an image is built of.
        fd = open_regular(parent, os.fsdecode(name))
    except NotRegularError:
        raise ArchiveError(f"'{show(path)}' changed while it was read", path=show(path)) from None
    try:
        entry.attributes = attributes.get(fd)
        writer.add(entry, _content(fd, entry.size))
    except ValueError as error:
        raise ArchiveError(f"'{show(path)}' changed while it was read", path=show(path)) from error
    finally:
        os.close(fd)


def _describe(path: bytes, parent: int, name: bytes, status: os.stat_result) -> Entry:
    """All but the extended attributes."""
    kind = _KINDS.get(stat.S_IFMT(status.st_mode))
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
