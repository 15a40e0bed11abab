"""Images out of the store again, as archives with exactly their ID (A4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kurma_core.cancellation import check
from kurma_core.errors import StoreError
from kurma_core.hookspecs.renderer import ImageLayer
from kurma_core.image_store.builder import add_file, add_manifest
from kurma_core.image_store.durable import guard
from kurma_core.image_store.merge import merged
from kurma_core.image_store.writer import TarWriter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

    from kurma_core.image_store.interface import Store


def export(store: Store, image_id: str, out: BinaryIO) -> None:
    """See :meth:`.store.ImageStore.export`."""
    store.get(image_id)  # an archive alone, left over, is no image
    archive = store.archive_path(image_id)
    found = (
        _write_layered(out.write, store.manifest_bytes(image_id), store.layers(image_id))
        if archive is None
        else _unpack(archive, out)
    )
    if found != image_id:
        raise StoreError(
            f"the image store is damaged: what was exported of {image_id} is {found}",
            hint="remove the image and fetch it anew",
            image=image_id,
        )


def layered_id(manifest: bytes, layers: Sequence[ImageLayer]) -> str:
    """The ID of an image made of layers: that of the tar which :func:`export` would write.

    :raises ArchiveError: a file cannot be read as it is. :raises OSError: as the kernel says.
    """
    return _write_layered(_nowhere, manifest, layers)


def _nowhere(data: bytes) -> None:
    """Takes what is only to be hashed."""


def _write_layered(write: Callable[[bytes], object], manifest: bytes, layers: Sequence[ImageLayer]) -> str:
    from kurma_core.image_store.hashing import BackgroundHash

    with BackgroundHash("sha512") as digest:

        def put(data: bytes) -> None:
            digest.update(data)
            write(data)

        writer = TarWriter(digest.update if write is _nowhere else put)
        add_manifest(writer, manifest)
        first: dict[tuple[int, int], bytes] = {}
        for file in merged(layers):
            check()
            path = b"rootfs/" + file.path if file.path else b"rootfs"
            add_file(writer, path, file.parent, file.name, file.status, first)
        writer.close()
        return f"sha512-{digest.hexdigest()}"


def _unpack(archive: str, out: BinaryIO) -> str:
    """The archive as shipped, without its compression."""
    import hashlib

    from kurma_core.image_store.unpacked import unpacked

    digest = hashlib.sha512()
    with guard("cannot read an archive of the image store"):
        for piece in unpacked(archive):
            check()
            digest.update(piece)
            out.write(piece)
    return f"sha512-{digest.hexdigest()}"
