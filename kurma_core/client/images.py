"""What can be done with images, in process."""

from __future__ import annotations

from kurma_core.client.rooms import Rooms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO, Unpack

    from kurma_core.api.images import ImageChecked, ImageGc, ImageListing, ImagePage, ImageRendered
    from kurma_core.client.options import BringOptions, FetchOptions
    from kurma_core.models.image import ImageRecord
    from kurma_core.progress import Progress


class _Counted:
    """A file of which each byte moves the progress bar."""

    def __init__(self, out: BinaryIO, progress: Progress) -> None:
        self._out, self._progress = out, progress

    def write(self, data: bytes) -> int:
        count = self._out.write(data)
        self._progress.advance(count)
        return count


class ImageCalls(Rooms):
    def image_fetch(self, locator: str, **options: Unpack[FetchOptions]) -> ImageRecord:
        """See :meth:`ImageManager.fetch`."""
        return self.images.fetch(locator, **options)

    def image_upload(
        self, path: str, *, signature: str | None = None, **options: Unpack[BringOptions]
    ) -> ImageRecord:
        """Brings an archive of the caller's into the store, which need not be able to read where it lies; see
        :meth:`ImageManager.upload`.

        :param signature: the file of its detached signature; None: none goes with it.
        :raises HostError: a file cannot be read. :raises TrustError: :raises ArchiveError: :raises FetchError: …
        """
        import os

        from kurma_core.named_files import opened

        signed = None if signature is None else signature_in(signature)
        with opened(path) as stream:
            return self.images.upload(stream, os.path.basename(path), signature=signed, **options)

    def images_list(self) -> ImageListing:
        """The images of the store, and what is wrong with those that are damaged."""
        from kurma_core.api.images import ImageListing, ListedImage

        found, damaged = self.images.scan()
        return ImageListing(tuple(ListedImage(one, self.images.trust(one)) for one in found), damaged)

    def image(self, reference: str) -> ImagePage:
        """:param reference: its ID or the beginning of that, its name, the address it came by.

        :raises ImageNotFoundError: :raises AmbiguousReferenceError:
        """
        from kurma_core.api.images import ImagePage

        record = self.images.get(reference)
        return ImagePage(
            record, self.images.trust(record), self.images.lapse(record), self.images.manifest(record.id)
        )

    def image_manifest(self, reference: str, *, original: bool = False) -> bytes:
        """See :meth:`ImageManager.cat_manifest`. :param reference: as for :meth:`image`."""
        return self.images.cat_manifest(self.images.get(reference).id, original=original)

    def image_export(self, reference: str, path: str, progress: Progress | None = None) -> None:
        """Writes the image's archive, uncompressed, to a file of the caller's: whole, or not at all.

        :param progress: told how much of it is written; how long it will be, nobody knows before.
        :raises ImageNotFoundError: :raises StoreError: :raises HostError: the file cannot be written.
        """
        from kurma_core.named_files import written

        with written(path) as out:
            if progress is None:
                self.image_archive(reference, out)
                return
            counted: Any = _Counted(out, progress)
            progress.start(reference, None)
            try:
                self.image_archive(reference, counted)
            finally:
                progress.finish()

    def image_archive(self, reference: str, out: BinaryIO) -> None:
        """Writes the image's archive, uncompressed, with exactly its ID.

        :raises ImageNotFoundError: :raises StoreError: it is damaged; what is written by then is none.
        """
        self.images.store.export(self.images.get(reference).id, out)

    def image_extract(self, reference: str, target: str) -> str:
        """See :meth:`ImageManager.extract`; the image's ID."""
        return self.images.extract(reference, target)

    def image_render(self, reference: str, renderer: str | None = None, *, verify: bool = False) -> ImageRendered:
        """See :meth:`ImageManager.render`."""
        from kurma_core.api.images import ImageRendered

        found = self.images.render(self.images.get(reference).id, renderer, verify=verify)
        return ImageRendered(found.id, found.layers)

    def image_verify(self, reference: str) -> ImageChecked:
        """See :meth:`ImageManager.verify`."""
        return self.images.verify(reference)

    def image_rm(self, reference: str, *, dry_run: bool = False) -> ImageGc:
        """:raises ImageError: a pod uses it."""
        self._need_root("remove an image")
        return self.images.remove(reference, self._pods.used_images, dry_run=dry_run)

    def image_gc(self, *, grace: float, dry_run: bool = False) -> ImageGc:
        """What :meth:`ImageManager.gc` returns; images that pods name are kept."""
        self._need_root("collect images")
        return self.images.gc(self._pods.used_images, grace, dry_run)

    def archive_path(self, reference: str) -> str | None:
        """The path, if that is an archive file of the caller's, and no image of the store."""
        from kurma_core.errors import UsageError
        from kurma_core.fetching import parse_locator
        from kurma_core.images.archives import path_of

        try:
            locator = parse_locator(reference, ("file",))
        except UsageError:
            return None  # which the store says in its own words
        return path_of(locator) if locator.scheme == "file" else None


def signature_in(path: str) -> bytes:
    """A detached signature. :raises HostError: it cannot be read, or is too large for one."""
    from kurma_core.named_files import content

    return content(path, largest=8192)


__all__ = ["ImageCalls", "signature_in"]
