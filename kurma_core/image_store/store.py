"""The image store's directory: content-addressed, shared by any number of processes, whole at any moment.

Under its root, which is root's alone (what images bring may be set-user-ID)::

    lock                       shared while something is put in place, exclusive while something is taken away
    tmp/                       work in progress; see :mod:`.durable`
    partial/                   downloads that can be resumed
    archives/ID.aci            archives as shipped
    layers/KEY/rootfs/         extracted once; KEY is an image's ID, or a layer's digest
    layers/KEY/{layer.json,files}
    images/ID/{manifest,image.json,used,managers}; of an early image, original-app and original-fileset
    trees/ID/{rootfs/,tree.json,files}

An image is there once ``images/ID`` is: its archive and its layers have been put in place, and synced, before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from kurma_core.cancellation import lock
from kurma_core.errors import (
    FormatVersionError,
    ImageNotFoundError,
    KurmaError,
    ManifestError,
    StoreError,
)
from kurma_core.hookspecs.renderer import ImageLayer
from kurma_core.image_store import records
from kurma_core.image_store.durable import Holds, guard, touch
from kurma_core.image_store.tar_entries import Limits
from kurma_core.linux import files
from kurma_core.models.image import Conventions, ImageRecord, Provenance

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

    from kurma_core.api.images import ImageGc, StoreUse
    from kurma_core.appc.image import ImageManifest
    from kurma_core.hookspecs.renderer import RenderCache
    from kurma_core.image_store.archive_stream import Decrypt
    from kurma_core.image_store.staging import StagedImage

_DIRECTORIES = ("tmp", "partial", "archives", "layers", "images", "trees")


def _no_step(name: str) -> None:
    """The default of the tests' seam."""


#: Parsed manifests by their bytes, so that a process parses each only once.
_known: dict[bytes, ImageManifest] = {}
_MOST_KNOWN = 64


def _parsed(text: bytes) -> ImageManifest:
    """The parsed manifest. :raises ManifestError: the text is something else."""
    found = _known.get(text)
    if found is None:
        from kurma_core.appc.image import ImageManifest

        found = ImageManifest.parse(text)
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[text] = found
    return found


class ImageStore:
    """The store in the directory ``root``, which is made at the first write.

    :param step: called with the name of each step of adding to or removing from the store; tests kill the process
        there.
    """

    def __init__(self, root: str, *, limits: Limits | None = None, step: Callable[[str], None] = _no_step) -> None:
        self.root = os.path.abspath(root)
        self.limits = limits or Limits()
        self.step = step
        self.holds = Holds(self.path)

    # --- putting in ----------------------------------------------------------------------------------------------

    def stage_archive(
        self, stream: BinaryIO, decrypt: Decrypt | None = None
    ) -> AbstractContextManager[StagedImage]:
        """Reads an image archive, once, to its end: unpacked, its ID known, but not yet in the store.

        Leaving the context without :meth:`StagedImage.commit` removes every trace.

        :param stream: the archive as shipped, compressed or not.
        :param decrypt: decrypts an encrypted one. It is kept decrypted; the shipped form exists while it is
            staged.
        :raises ArchiveError: the archive is not an image, or is broken.
        :raises HostileArchiveError: it is malicious.
        :raises ManifestError: its manifest violates the specification.
        :raises StoreError: the disk is full, …
        """
        from kurma_core.image_store.staging import stage

        return stage(self, stream, decrypt)

    def has_layer(self, diff_id: str) -> bool:
        """Whether the layer is extracted already. If so it stays until the block of :meth:`.durable.Holds.keeping`
        is left.

        :param diff_id: ``sha256:`` and 64 hex digits over its uncompressed tar.
        """
        return self.holds.hold_layer(records.layer_key(diff_id))

    def add_layer(self, stream: BinaryIO, diff_id: str) -> str:
        """Extract a registry's layer, once; whiteouts are noted and not extracted.

        :param stream: its tar, compressed or not.
        :returns: its key, for :meth:`add_layered`.
        :raises ArchiveError: it is broken, or not the one with that digest.
        """
        from kurma_core.image_store.staging import add_layer

        return add_layer(self, stream, diff_id)

    def add_layered(
        self,
        manifest: ImageManifest,
        layers: tuple[str, ...],
        provenance: Provenance,
        conventions: Conventions | None = None,
    ) -> ImageRecord:
        """Adds an image made of layers, lowest first. Its ID is that of the tar that :meth:`export` writes.

        :raises StoreError: a layer is missing.
        """
        from kurma_core.image_store.staging import add_layered

        return add_layered(self, manifest, layers, provenance, conventions or Conventions())

    # --- looking up ----------------------------------------------------------------------------------------------

    def get(self, image_id: str) -> ImageRecord:
        """:raises ImageNotFoundError: it is not in the store."""
        return records.read_image(self.path, image_id)

    def find(self, reference: str) -> ImageRecord:
        """The image that ``reference`` names: an ID by either algorithm, the start of one (6 digits or more, with
        or without ``sha512-`` or ``sha256-``), or ``NAME[:VERSION][,label=value…]``, of which the newest counts;
        ``NAME-VERSION``, as early documents write it, if no image has that name.

        :raises ImageNotFoundError: no image fits.
        :raises AmbiguousReferenceError: the start of several IDs.
        """
        from kurma_core.image_store.references import find

        return find(self, reference)

    def find_by_id(self, reference: str) -> ImageRecord | None:
        """As :meth:`find`, by ID or start of an ID alone. None: the store has no such image.

        :raises AmbiguousReferenceError: the start of several IDs.
        """
        from kurma_core.image_store.references import find_by_id

        return find_by_id(self, reference)

    def named(self, reference: str) -> Sequence[ImageRecord]:
        """All images that ``NAME[:VERSION][,label=value…]`` may mean; see :meth:`find`."""
        from kurma_core.image_store.references import named

        return named(self, reference)

    def list(self) -> tuple[ImageRecord, ...]:
        """All images, by name and then by age. Damaged ones are left out, so that they do not hide the others;
        :meth:`scan` has them."""
        return self.scan()[0]

    def scan(self) -> tuple[tuple[ImageRecord, ...], tuple[KurmaError, ...]]:
        """All images, by name and then by age; and the errors of images with damaged records, each with the ID as
        ``image``."""
        found = []
        damaged: list[KurmaError] = []
        for image_id in self.ids():
            try:
                found.append(self.get(image_id))
            except ImageNotFoundError:
                if records.is_id(image_id) and os.path.isdir(self.path("images", image_id)):
                    damaged.append(records.lost_record(self.path("images", image_id), image_id))
            except (StoreError, FormatVersionError) as error:
                error.data["image"] = image_id
                damaged.append(error)
        return tuple(sorted(found, key=lambda image: (image.name, image.age_order, image.id))), tuple(damaged)

    def ids(self) -> tuple[str, ...]:
        """IDs of all images, sorted."""
        try:
            return tuple(sorted(os.listdir(self.path("images"))))
        except FileNotFoundError:
            return ()

    def manifest(self, image_id: str) -> ImageManifest:
        """:raises ImageNotFoundError: it is not in the store. :raises StoreError: it is damaged."""
        text = self.manifest_bytes(image_id)
        try:
            return _parsed(text)
        except ManifestError as error:
            path = self.path("images", image_id, "manifest")
            raise StoreError(
                f"the image store is damaged: {path}: {error.message}",
                hint="remove the image and fetch it anew",
                image=image_id,
                path=path,
            ) from error

    def manifest_bytes(self, image_id: str) -> bytes:
        """The manifest as the archive has it, or the late form of an early image's documents.

        :raises ImageNotFoundError: it is not in the store.
        """
        return records.read_file(self.path("images", records.checked_id(image_id), "manifest"), image_id)

    def originals(self, image_id: str) -> Mapping[str, bytes]:
        """The documents of an early image, byte for byte as its archive has them, by name: ``app``, ``fileset`` or
        both. Empty for every other image.

        :raises ImageNotFoundError: it is not in the store.
        """
        return records.read_originals(self.path("images", records.checked_id(image_id)), image_id)

    def layers(self, image_id: str) -> tuple[ImageLayer, ...]:
        """Its extracted layers, lowest first. :raises ImageNotFoundError: it is not in the store."""
        with self.unless_removed(image_id):
            return tuple(self.layer(key) for key in self.get(image_id).layers)

    def layer(self, key: str) -> ImageLayer:
        """:raises StoreError: the store has lost it."""
        return records.read_layer(self.path, key)

    def archive_path(self, image_id: str) -> str | None:
        """Absolute path of the archive as shipped; None: the image was made of layers, and has none."""
        path = self.path("archives", f"{records.checked_id(image_id)}.aci")
        return path if os.path.exists(path) else None

    def touch(self, image_id: str) -> None:
        """Records that it is used now. :raises ImageNotFoundError: it is not in the store."""
        try:
            touch(self.path("images", records.checked_id(image_id), "used"))
        except (FileNotFoundError, NotADirectoryError):
            raise records.not_found(image_id) from None

    def hold_for(self, image_id: str, manager: str | None) -> None:
        """Records that a program manages the image. The caller holds it.

        :param manager: None: a person has fetched it, so that no manager has given it up.
        :raises StoreError: the disk is full, …
        """
        from kurma_core.image_store import image_managers

        image_managers.hold(self, image_id, manager)

    def release_for(self, image_id: str, manager: str) -> tuple[str, ...]:
        """Records that a program gives the image up. :returns: the managers that are left.

        :raises StoreError: the record cannot be changed.
        """
        from kurma_core.image_store import image_managers

        return image_managers.release(self, image_id, manager)

    def use(self) -> StoreUse:
        """Sums the sizes that its documents record."""
        from kurma_core.api.images import StoreUse

        size, files = records.recorded_sizes(self.path)
        path = self.root
        while not os.path.isdir(path):
            path = os.path.dirname(path)
        return StoreUse(path, size, files)

    # --- everything else -----------------------------------------------------------------------------------------

    @property
    def cache(self) -> RenderCache:
        """The cache of rendered trees."""
        from kurma_core.image_store.rendered_trees import TreeCache

        return TreeCache(self)

    def export(self, image_id: str, out: BinaryIO) -> None:
        """Write the image as an uncompressed archive with exactly that ID.

        :raises ImageNotFoundError: it is not in the store. :raises StoreError: it is damaged.
        """
        from kurma_core.image_store.exporting import export

        with self.unless_removed(image_id):
            export(self, image_id, out)

    def verify(self, image_id: str, *, deep: bool = False) -> None:
        """Compares the files on disk with those that were extracted; of a rendered tree too, by its ID.

        :param deep: read everything, and compute everything anew from the archive if there is one.
        :raises StoreError: something was changed, added or removed; names the first such file.
        :raises ImageNotFoundError: it is not in the store, or was removed meanwhile.
        """
        from kurma_core.image_store.verification import verify

        with self.unless_removed(image_id):
            verify(self, image_id, deep=deep)

    def remove(
        self, image_id: str, *, dry_run: bool = False, unused: Callable[[], object] = lambda: None
    ) -> ImageGc:
        """Removes the image, damaged or not, with its archive and the layers that no other image has.

        :param unused: called once no process can begin to use the image any more; raises if a pod uses it.
        :raises ImageNotFoundError: it is not in the store.
        :raises ImageError: a command holds it just now.
        """
        from kurma_core.image_store.removal import remove

        return remove(self, image_id, dry_run=dry_run, unused=unused)

    def gc(
        self,
        used: Collection[str],
        grace: float,
        dry_run: bool = False,
        *,
        now: float | None = None,
        only: Collection[str] | None = None,
    ) -> ImageGc:
        """Removes unused images and trees (not in ``used``), and leftovers.

        :param used: IDs of images and trees that pods need, dependencies included.
        :param grace: seconds for which an unused one is kept.
        :param now: seconds since the epoch, from before ``used`` was computed: later uses are not in it, and
            protect.
        :param only: keys of a :class:`kurma_core.api.images.Removal`: nothing else is removed.
        """
        from kurma_core.image_store.removal import gc

        return gc(self, used, grace, dry_run=dry_run, now=now, only=only)

    # --- for the rest of this package ----------------------------------------------------------------------------

    def path(self, *parts: str) -> str:
        """A path in the store, of parts that have been checked."""
        return "/".join((self.root, *parts))

    def prepare(self) -> None:
        """Make the store's directories. :raises StoreError: they cannot be made."""
        with guard(f"cannot make the image store {self.root}", self.root):
            os.makedirs(self.root, 0o700, exist_ok=True)
            for name in _DIRECTORIES:
                os.makedirs(self.path(name), 0o700, exist_ok=True)
            # Directories with many files are made there.
            files.spread(self.path("tmp"))

    @contextmanager
    def unless_removed(self, image_id: str) -> Iterator[None]:
        """Raises ImageNotFoundError for errors that come from a concurrent removal of the image.

        :raises ImageNotFoundError: in place of StoreError, if the image (or tree) is gone now.
        """
        try:
            yield
        except (StoreError, FileNotFoundError) as error:
            if any(os.path.isdir(self.path(kind, image_id)) for kind in ("images", "trees")):
                raise
            raise records.not_found(image_id) from error

    @contextmanager
    def locked(self, *, exclusive: bool = False) -> Iterator[None]:
        """Hold the store's lock, for moments only."""
        import fcntl

        fd = os.open(self.path("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            lock(fd, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            yield
        finally:
            os.close(fd)
