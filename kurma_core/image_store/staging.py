"""Puts images and layers into the store: staged in a work directory, then renamed into place.

Runs as root on untrusted archives. Any failure removes the work directory with all its contents; a process that is
killed leaves one without a lock, which the next ``gc`` removes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from threading import Thread

from kurma_core.errors import ArchiveError, StoreError
from kurma_core.image_store import records
from kurma_core.image_store.archive_layout import ImageContents, Whiteouts, read_image, read_layer
from kurma_core.image_store.archive_stream import ArchiveStream
from kurma_core.image_store.durable import (
    NEW_FILE,
    WorkDirectory,
    guard,
    put_directory,
    sync_directory,
    sync_file_system,
    write_all,
    write_new,
)
from kurma_core.image_store.extractor import Extractor
from kurma_core.image_store.file_records import open_tree, record_tree
from kurma_core.image_store.tar_entries import Limits
from kurma_core.image_store.tar_reader import TarReader
from kurma_core.models.image import Conventions, ImageRecord, Provenance
from kurma_core.value import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

    from kurma_core.appc.image import ImageManifest
    from kurma_core.image_store.archive_stream import Decrypt
    from kurma_core.image_store.durable import Store


#: Begins the errors of the file system.
CANNOT = "cannot put an image into the store"
#: Trust words that vouch for the exact bytes of an archive, so that those bytes are kept.
_SIGNED = ("signed", "built")


@frozen
class StagedImage:
    """An image that has been read and is not in the store yet.

    :ivar archive_path: the archive as shipped; good until the context is left, or the image committed.
    :ivar encrypted: it is an OpenPGP message; what is kept is the archive in it.
    :ivar size: bytes of the uncompressed tar. :ivar early_id: ``sha256-…`` over the same.
    :ivar originals: an early image's own documents; see :meth:`.store.ImageStore.originals`.
    :ivar oddities: of its manifest; see :class:`.archive_layout.ImageContents`.
    """

    id: str
    manifest: ImageManifest
    manifest_bytes: bytes
    archive_path: str
    size: int
    _store: Store
    _work: str
    _layer_size: int
    early_id: str
    originals: Mapping[str, bytes]
    oddities: tuple[str, ...]
    encrypted: bool
    _kept: str

    def tar(self) -> Iterator[bytes]:
        """The uncompressed tar, in pieces, read again from the archive: early signatures are made over it.

        :raises OSError: as the kernel says.
        """
        from kurma_core.image_store.compression import unpacked

        return unpacked(self._kept)

    def commit(self, provenance: Provenance, conventions: Conventions | None = None) -> ImageRecord:
        """Puts it into the store. If it is there already, its new provenance is added, and its conventions are
        replaced.

        :raises StoreError: the disk is full, …; the store is unchanged then.
        """
        with guard(CANNOT, self._store.root):
            image = ImageRecord(
                id=self.id,
                name=self.manifest.name,
                version=self.manifest.version,
                labels={label.name: label.value for label in self.manifest.labels},
                size=0,
                layers=(self.id,),
                provenance=(provenance,),
                early_id=self.early_id,
                conventions=conventions or Conventions(),
            )
            write_image(
                self._store, self._work, image, self.manifest_bytes, self._layer_size, originals=self.originals
            )
            _sync(self._work)
            self._store.step("synced")
            return place(self._store, self._work, image, archive=self._kept, shipped=not self.encrypted)


@contextmanager
def stage(store: Store, stream: BinaryIO, decrypt: Decrypt | None) -> Iterator[StagedImage]:
    """See :meth:`.store.ImageStore.stage_archive`."""
    store.prepare()
    with guard(CANNOT, store.root):
        work = WorkDirectory(store.path("tmp"))
    with work:
        with guard(CANNOT, store.root):
            staged = _stage(store, stream, decrypt, work.path)
        yield staged


def _stage(store: Store, stream: BinaryIO, decrypt: Decrypt | None, work: str) -> StagedImage:
    store.step("staging")
    archive, decrypted = f"{work}/archive.aci", f"{work}/decrypted.aci"
    with ExitStack() as files:
        source = files.enter_context(
            ArchiveStream(
                stream,
                store.limits,
                early=True,
                tee=_writer(files, archive),
                decrypt=decrypt,
                tee_decrypted=_writer(files, decrypted),
            )
        )
        contents, layer = unpack_image(TarReader(source, store.limits), store.limits, f"{work}/layer")
        image_id, unpacked = f"sha512-{source.digest()}", source.size
        early_id = f"sha256-{source.early_digest()}"
        encrypted = source.decrypted > 0
    layer.describe(image_id)
    store.step("extracted")
    return StagedImage(
        id=image_id,
        manifest=contents.manifest,
        manifest_bytes=contents.manifest_bytes,
        archive_path=archive,
        size=unpacked,
        _store=store,
        _work=work,
        _layer_size=layer.size,
        early_id=early_id,
        originals=contents.originals,
        oddities=contents.oddities,
        encrypted=encrypted,
        _kept=decrypted if encrypted else archive,
    )


def _writer(files: ExitStack, path: str) -> Callable[[bytes], object]:
    """Writes to the new file ``path``, which is made at the first write."""
    made: list[int] = []

    def write(data: bytes) -> None:
        if not made:
            made.append(os.open(path, NEW_FILE, 0o600))
        write_all(made[0], data)

    def close() -> None:
        while made:
            os.close(made.pop())

    files.callback(close)
    return write


# --- layers of registries ----------------------------------------------------------------------------------------


def add_layer(store: Store, stream: BinaryIO, diff_id: str) -> str:
    """See :meth:`.store.ImageStore.add_layer`."""
    key = records.layer_key(diff_id)
    store.prepare()
    with guard("cannot put a layer into the store", store.root), WorkDirectory(store.path("tmp")) as work:
        store.step("staging")
        with ArchiveStream(stream, store.limits, algorithm="sha256") as source:
            reader = TarReader(source, store.limits, strict=False)
            layer = unpack_layer(reader, store.limits, f"{work.path}/layer")
            found = f"sha256:{source.digest()}"
        if found != diff_id:
            raise ArchiveError(f"the layer is not the one asked for: its digest is {found}, not {diff_id}")
        layer.describe(key)
        store.step("extracted")
        _sync(work.path)
        store.step("layer synced")
        for _ in range(100):
            with store.locked():
                put_directory(f"{work.path}/layer", store.path("layers", key))
            store.step("layer placed")
            if store.holds.hold_layer(key):
                sync_directory(store.path("layers"))
                return key
    raise StoreError(f"the layer {key} is taken away as fast as it is put into the store")


def add_layered(
    store: Store,
    manifest: ImageManifest,
    layers: tuple[str, ...],
    provenance: Provenance,
    conventions: Conventions,
) -> ImageRecord:
    """See :meth:`.store.ImageStore.add_layered`."""
    import json

    from kurma_core.image_store.exporting import layered_id

    manifest_bytes = json.dumps(manifest.to_json(), ensure_ascii=False).encode()
    store.prepare()
    with (
        store.holds.keeping(used=False),
        guard(CANNOT, store.root),
        WorkDirectory(store.path("tmp")) as work,
    ):
        for key in layers:
            if not store.holds.hold_layer(key):
                raise StoreError(f"the image store has no layer {key}", layer=key)
        image_id = layered_id(manifest_bytes, [store.layer(key) for key in layers])
        store.step("identified")
        image = ImageRecord(
            id=image_id,
            name=manifest.name,
            version=manifest.version,
            labels={label.name: label.value for label in manifest.labels},
            size=0,
            layers=layers,
            provenance=(provenance,),
            conventions=conventions,
        )
        size = sum(records.layer_values(store.path, key)["size"] for key in dict.fromkeys(layers))
        write_image(store, work.path, image, manifest_bytes, size, originals={})
        _sync(work.path)
        store.step("synced")
        return place(store, work.path, image, archive=None)


# --- putting in place --------------------------------------------------------------------------------------------


def write_image(
    store: Store,
    work: str,
    image: ImageRecord,
    manifest: bytes,
    layers_size: int,
    *,
    originals: Mapping[str, bytes],
) -> None:
    """Writes ``work/image`` in its final form."""
    os.mkdir(f"{work}/image", 0o700)
    write_new(f"{work}/image/manifest", manifest)
    for name, document in originals.items():
        write_new(f"{work}/image/original-{name}", document)
    converted = records.converted_digest(manifest) if originals else None
    write_new(f"{work}/image/image.json", records.image_document(image, layers_size, converted))
    store.step("recorded")


def _sync(work: str) -> None:
    fd = open_tree(work)
    try:
        sync_file_system(fd)
    finally:
        os.close(fd)


def place(
    store: Store, work: str, image: ImageRecord, *, archive: str | None, shipped: bool = True
) -> ImageRecord:
    """Renames everything into place; the last rename makes the image visible in the store.

    Under a lock: if two processes bring the same image, archive and provenance must come from the same one.

    :param shipped: the archive is as it was shipped, so that a signature may be over its bytes.
    :returns: the image's present record, though a sweep may remove the image the next moment.
    """
    with store.locked(exclusive=True):
        if archive is not None:
            if not os.path.isdir(store.path("images", image.id)):
                _place_archive(store, archive, image)
            store.step("archive placed")
            put_directory(f"{work}/layer", store.path("layers", image.id))
            store.step("layer placed")
            sync_directory(store.path("archives"))
            sync_directory(store.path("layers"))
        new = put_directory(f"{work}/image", store.path("images", image.id))
        store.step("image placed")
        if not new:
            _add_provenance(store, work, image, archive, shipped=shipped)
        sync_directory(store.path("images"))
        placed = store.get(image.id)
        # Does not wait: a process that removes the image holds its lock, and waits for the store's lock, which we
        # hold. Then the image is removed, and the caller tries again.
        store.holds.hold(image.id, wait=False)
    store.step("done")
    return placed


def _place_archive(store: Store, archive: str, image: ImageRecord) -> None:
    os.rename(archive, store.path("archives", f"{image.id}.aci"))


def _add_provenance(store: Store, work: str, image: ImageRecord, archive: str | None, *, shipped: bool) -> None:
    """Adds a provenance to an image of the store: it came from another source, or again."""
    known = store.get(image.id)
    (new,) = image.provenance
    # The bytes that were signed are the ones that a signature can be checked against later.
    better = (shipped and new.trust in _SIGNED) or store.archive_path(image.id) is None
    if archive is not None and better and os.path.exists(archive):
        _place_archive(store, archive, image)
        sync_directory(store.path("archives"))
    others = tuple(old for old in known.provenance if _source(old) != _source(new))
    changed = ImageRecord(
        id=known.id,
        name=known.name,
        version=known.version,
        labels=known.labels,
        size=0,
        layers=known.layers,
        provenance=(*others, new),
        early_id=known.early_id or image.early_id,
        conventions=image.conventions,
    )
    path = store.path("images", image.id, "image.json")
    with open(path, "rb") as file:
        old = records.load(file.read(), path)
    document = records.image_document(changed, old["layersSize"], old.get("converted"))
    write_new(f"{work}/image.json", document)
    file_fd = os.open(f"{work}/image.json", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file_fd)
    finally:
        os.close(file_fd)
    os.rename(f"{work}/image.json", path)
    store.step("provenance added")
    sync_directory(store.path("images", image.id))


def _source(provenance: Provenance) -> tuple[object, ...]:
    return (
        provenance.locator,
        provenance.trust,
        provenance.url,
        provenance.digest,
        provenance.fingerprint,
        provenance.insecure,
        provenance.encrypted,
    )


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
        """Writes ``layer.json``, once the key is known. :raises OSError: as the kernel says."""
        document = records.layer_document(key, self.whiteouts, self.implied, self.size, self.entries)
        write_new(f"{self.path}/layer.json", document)


def unpack_image(reader: TarReader, limits: Limits, path: str) -> tuple[ImageContents, UnpackedLayer]:
    """Extract an image archive into the new directory ``path``; errors as of :func:`.archive_layout.read_image`.

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
    """Extract a layer into the new directory ``path``; errors as of :func:`.archive_layout.read_layer`.

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
        record, size, entries = record_tree(root, extractor.digests, extractor.attributed())
    write_new(f"{path}/files", record)
    return UnpackedLayer(path, whiteouts, tuple(extractor.implied()), size, entries)


class _Writing:
    """Starts to write unpacked files to disk while their records are made, so that little is left for the final
    sync.

    Errors are raised at the end: the kernel reports an error once, so the final sync would not report it again.
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
