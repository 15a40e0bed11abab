"""From an archive's stream to a directory: the tree, the record of its files, what it says of layers below."""

from __future__ import annotations

import os
from threading import Thread

from kurma_core.image_store import documents, files
from kurma_core.image_store.archive import TarReader
from kurma_core.image_store.durable import sync_file_system, write_new
from kurma_core.image_store.extract import Extractor
from kurma_core.image_store.layout import ImageContents, Whiteouts, read_image, read_layer
from kurma_core.image_store.limits import Limits
from kurma_core.image_store.trees import open_tree
from kurma_core.value import frozen


@frozen
class UnpackedLayer:
    """A directory with ``rootfs`` and ``files``; it still lacks its description.

    :ivar implied: directories that had no entry of their own.
    :ivar size: bytes on disk. :ivar entries: number of files.
    """

    path: str
    whiteouts: Whiteouts
    implied: tuple[bytes, ...]
    size: int
    entries: int

    def describe(self, key: str) -> None:
        """Write ``layer.json``, now that the key is known. :raises OSError: as the kernel says."""
        document = documents.layer_document(key, self.whiteouts, self.implied, self.size, self.entries)
        write_new(f"{self.path}/layer.json", document)


def unpack_image(reader: TarReader, limits: Limits, path: str) -> tuple[ImageContents, UnpackedLayer]:
    """Extract an image archive into the new directory ``path``; errors as of :func:`.layout.read_image`.

    :raises OSError: the file system fails.
    """
    root = _make(path)
    try:
        with Extractor(root, reader.content_of, limits, replace=False) as extractor:
            contents = read_image(reader, limits, extractor.add)
            return contents, _finish(extractor, root, path, Whiteouts((), ()))
    finally:
        os.close(root)


def unpack_layer(reader: TarReader, limits: Limits, path: str) -> UnpackedLayer:
    """Extract a layer into the new directory ``path``; errors as of :func:`.layout.read_layer`.

    :raises OSError: the file system fails.
    """
    root = _make(path)
    try:
        with Extractor(root, reader.content_of, limits, replace=True) as extractor:
            whiteouts = read_layer(reader, limits, extractor.add, extractor.imply)
            return _finish(extractor, root, path, whiteouts)
    finally:
        os.close(root)


def _make(path: str) -> int:
    os.makedirs(f"{path}/rootfs", 0o700)
    return open_tree(f"{path}/rootfs")


def _finish(extractor: Extractor, root: int, path: str, whiteouts: Whiteouts) -> UnpackedLayer:
    extractor.finish()
    with _Writing(root):
        record, size, entries = files.record(root, extractor.digests, extractor.attributed())
    write_new(f"{path}/files", record)
    return UnpackedLayer(path, whiteouts, tuple(extractor.implied()), size, entries)


class _Writing:
    """The disk takes what was unpacked while its record is made; only little is left for the sync that counts.

    What goes wrong is raised at the end: the kernel tells of an error once, and the sync that counts would not
    hear of it again.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._error: OSError | None = None
        self._thread = Thread(target=self._write, name="kurma-writing", daemon=True)

    def _write(self) -> None:
        try:
            sync_file_system(self._root)
        except OSError as error:
            self._error = error

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: object, *_: object) -> None:
        self._thread.join()
        if self._error is not None and kind is None:
            raise self._error
