"""Operations on images and keys, in this process."""

from __future__ import annotations

import os

from kurma_core.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import BinaryIO

    from kurma_core.api.images import ImageChecked, ImageGc, ImageId, ImageListing, ImagePage, ImageRendered
    from kurma_core.api.trust import Key, TrustChange, TrustedKey
    from kurma_core.client.local.managers import Managers
    from kurma_core.models.image import ImageRecord
    from kurma_core.progress import Progress


class LocalImages:
    """The methods of :class:`kurma_core.api.operations.Api` that are about images and keys, by their names."""

    def __init__(self, managers: Managers) -> None:
        self._m = managers

    def image_fetch(
        self, locator: str, pull: str, insecure: Collection[str], progress: Progress | None
    ) -> ImageRecord:
        return self._m.images.fetch(locator, pull=pull, insecure=frozenset(insecure), progress=progress)

    def image_upload(
        self, path: str, signature: str | None, insecure: Collection[str], progress: Progress | None
    ) -> ImageRecord:
        """See :meth:`ImageManager.upload`. The store itself need not be able to read the file where it lies.

        :raises HostError: a file cannot be read.
        """
        from kurma_core.named_files import opened

        signed = None if signature is None else signature_in(signature)
        with opened(path) as stream:
            return self._m.images.upload(
                stream,
                os.path.basename(path),
                signature=signed,
                insecure=frozenset(insecure),
                progress=progress,
            )

    def images_list(self) -> ImageListing:
        from kurma_core.api.images import ImageListing, ListedImage

        found, damaged = self._m.images.scan()
        return ImageListing(tuple(ListedImage(one, self._m.images.trust(one)) for one in found), damaged)

    def image(self, image: str) -> ImagePage:
        """:raises ImageNotFoundError: :raises AmbiguousReferenceError:"""
        from kurma_core.api.images import ImagePage

        images = self._m.images
        record = images.get(image)
        return ImagePage(record, images.trust(record), images.lapse(record), images.manifest(record.id))

    def image_manifest(self, image: str, original: bool) -> bytes:
        return self._m.images.cat_manifest(self._m.images.get(image).id, original=original)

    def image_archive(self, image: str, out: BinaryIO) -> None:
        """:raises ImageNotFoundError: :raises StoreError: it is damaged, and what was written is not an image."""
        self._m.images.store.export(self._m.images.get(image).id, out)

    def image_extract(self, image: str, directory: str) -> ImageId:
        """Of an image of the store alone: a path is not followed."""
        from kurma_core.api.images import ImageId

        return ImageId(self._m.images.extract(self._m.images.get(image).id, directory))

    def image_render(self, image: str, renderer: str | None, verify: bool) -> ImageRendered:
        from kurma_core.api.images import ImageRendered

        found = self._m.images.render(self._m.images.get(image).id, renderer, verify=verify)
        return ImageRendered(found.id, found.layers)

    def image_verify(self, image: str) -> ImageChecked:
        return self._m.images.verify(image)

    def image_rm(self, image: str, dry_run: bool) -> ImageGc:
        """:raises ImageError: a pod uses it."""
        self._m.need_root("remove an image")
        return self._m.images.remove(image, self._m.pods.used_images, dry_run=dry_run)

    def image_gc(self, grace: float, dry_run: bool) -> ImageGc:
        """Images that pods name are kept."""
        self._m.need_root("collect images")
        return self._m.images.gc(self._m.pods.used_images, grace, dry_run)

    # -- keys --

    def trust_list(self) -> list[TrustedKey]:
        return list(self._m.images.keys.list())

    def trust_find(self, address: str | None, name: str | None, insecure: Collection[str]) -> list[Key]:
        """:raises UsageError: there is not just one of an address and a name."""
        if name is not None and address is None:
            return list(self._m.images.keys.discover(name, frozenset(insecure)))
        if address is None or name is not None:
            raise UsageError("expected either an address or a name")
        if not address.lower().startswith(("http://", "https://")):
            raise UsageError(
                f"{address} is not the address of a key", hint="https://…; the client reads a file itself"
            )
        return list(self._m.images.keys.read(address, frozenset(insecure)))

    def trust_add(self, key: str, source: str | None, prefix: str | None) -> TrustChange:
        """:raises UsageError: it is not one key. :raises TrustError: it cannot be written."""
        material = key.encode("utf-8", "surrogateescape")
        found = self._m.images.keys.parse(material, source or "the request")
        if len(found) != 1:
            raise UsageError(f"expected one key, found {len(found)}")
        return self._m.images.keys.add(found[0], prefix)

    def trust_rm(self, key: str, prefix: str | None, dry_run: bool) -> TrustChange:
        """:raises TrustError: no such key is trusted there."""
        return self._m.images.keys.remove(key, prefix, dry_run=dry_run)


def signature_in(path: str) -> bytes:
    """A detached signature. :raises HostError: it cannot be read, or is too large for one."""
    from kurma_core.named_files import content

    return content(path, largest=8192)


__all__ = ["LocalImages", "signature_in"]
