"""Verifies that nothing in the store was changed since it was extracted.

The shallow check compares every file's status with its record. A new hard link to a file, which each rendered tree
makes, changes the inode's change time: then the file's content is compared, and the record updated. The deep check
reads everything, and trusts the archive, whose hash is the image's ID, instead of the records, if there is an
archive. It ignores inode numbers, since a copied or restored store has others, and updates the record by them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from kurma_core.errors import StoreError
from kurma_core.image_store.durable import WorkDirectory, guard, write_new
from kurma_core.image_store.file_records import (
    HEADER,
    FileRecord,
    attributes_digest,
    file_digest,
    link_digest,
    open_tree,
    origin,
    place,
    read_records,
    record_line,
    sparse_digest,
    stamps,
    walk,
    without_inode,
)
from kurma_core.image_store.records import checked_id, converted_digest, load, read_file
from kurma_core.image_store.tar_entries import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.image_store.archive_layout import ImageContents
    from kurma_core.image_store.durable import Store


def verify(store: Store, image_id: str, *, deep: bool) -> None:
    """See :meth:`.store.ImageStore.verify`."""
    checked_id(image_id)
    with guard("cannot verify an image"):
        if os.path.isdir(store.path("trees", image_id)) and not os.path.isdir(store.path("images", image_id)):
            _Check(store, f"trees/{image_id}", deep=deep).run()
            return
        image = store.get(image_id)
        for key in image.layers:
            store.layer(key)
            _Check(store, f"layers/{key}", deep=deep).run()
        if deep:
            _verify_origin(store, image_id)


def _verify_origin(store: Store, image_id: str) -> None:
    """Checks that the archive's hash is the image's ID, and that the records agree with the archive."""
    from kurma_core.image_store.archive_layout import reread

    archive = store.archive_path(image_id)
    if archive is None:
        from kurma_core.image_store.exporting import layered_id

        found = layered_id(store.manifest_bytes(image_id), store.layers(image_id))
        if found != image_id:
            raise _damaged("the manifest or the layers of the image have changed", image_id)
        return
    found, contents, expected = reread(archive, store.limits)
    if found != image_id:
        raise _damaged("its archive has changed", archive)
    if contents.originals != store.originals(image_id):
        raise _damaged("an early document has changed", store.path("images", image_id))
    if not _is_manifest(store, image_id, contents):
        raise _damaged("the manifest has changed", store.path("images", image_id, "manifest"))
    path = store.path("layers", image_id, "files")
    with open(path, "rb") as file:
        recorded = {line.path: line for line in read_records(file.read())}
    for name in sorted(expected.keys() | recorded.keys()):
        line = recorded.get(name)
        if line is None or name not in expected or expected[name] != origin(line):
            raise _damaged(f"'{show(name)}' is not what the archive holds", f"{path}: {show(name)}")


def _is_manifest(store: Store, image_id: str, contents: ImageContents) -> bool:
    """Whether the manifest is the archive's, or a late form of an early image's documents, which another version
    of Kurma may have made differently."""
    manifest = store.manifest_bytes(image_id)
    if manifest == contents.manifest_bytes:
        return True
    if not contents.originals:
        return False
    path = store.path("images", image_id, "image.json")
    converted = load(read_file(path, image_id), path).get("converted")
    return bool(converted == converted_digest(manifest))


class _Check:
    """One tree against its record."""

    def __init__(self, store: Store, directory: str, *, deep: bool) -> None:
        self._store = store
        self._path = store.path(directory)
        self._deep = deep
        self._stale = False

    def run(self) -> None:
        try:
            with open(f"{self._path}/files", "rb") as file:
                records = {record.path: record for record in read_records(file.read())}
        except FileNotFoundError:
            raise _damaged("the record of its files is missing", self._path) from None
        except (ValueError, IndexError):
            raise _damaged("the record of its files is not readable", f"{self._path}/files") from None
        root = open_tree(f"{self._path}/rootfs")
        try:
            lines = list(self._lines(root, records))
        finally:
            os.close(root)
        if records:
            raise self._changed(min(records), "is missing")
        if self._stale:
            self._write(lines)

    def _lines(self, root: int, records: dict[bytes, FileRecord]) -> Iterator[bytes]:
        """Checks each file, takes it out of ``records``, and gives its line as it is now."""
        for path, parent, name, status in walk(root):
            record = records.pop(path, None)
            if record is None:
                raise self._changed(path, "was added")
            stamp, changed = stamps(status)
            if not self._same(stamp, record.stamp):
                raise self._changed(path, "has changed")
            moved = (stamp, changed) != (record.stamp, record.changed)
            if moved or self._deep:
                self._compare(path, root if not path else parent, name, status, record)
                self._stale = self._stale or moved
            yield record_line(FileRecord(path, stamp, changed, record.digest, record.attributes))

    def _same(self, stamp: bytes, recorded: bytes) -> bool:
        return stamp == recorded or (self._deep and without_inode(stamp) == without_inode(recorded))

    def _compare(self, path: bytes, parent: int, name: bytes, status: os.stat_result, record: FileRecord) -> None:
        if attributes_digest(place(parent, name) if path else parent) != record.attributes:
            raise self._changed(path, "has other attributes")
        if stat.S_ISLNK(status.st_mode):
            if link_digest(os.readlink(name, dir_fd=parent)) != record.digest:
                raise self._changed(path, "has another target")
        elif stat.S_ISREG(status.st_mode):
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
            try:
                sparse = record.digest.startswith(b"sparse:")
                digest = sparse_digest(fd, status.st_size) if sparse else file_digest(fd)
            finally:
                os.close(fd)
            if digest.encode() != record.digest:
                raise self._changed(path, "has other content")

    def _write(self, lines: list[bytes]) -> None:
        """Replaces the record. Another process that does the same at once writes the same, or newer."""
        with WorkDirectory(self._store.path("tmp")) as work:
            write_new(f"{work.path}/files", HEADER + b"".join(lines))
            os.rename(f"{work.path}/files", f"{self._path}/files")

    def _changed(self, path: bytes, how: str) -> StoreError:
        shown = show(path) if path else "/"
        return _damaged(f"'{shown}' {how} since it was extracted", f"{self._path}/rootfs/{shown}")


def _damaged(what: str, path: str) -> StoreError:
    # A tree is named with its layers, which other images may share.
    whose = "every image that has these layers" if "/trees/sha512-" in path else "the image"
    return StoreError(
        f"the image store is damaged: {what}: {path}", hint=f"remove {whose} and fetch it anew", path=path
    )
