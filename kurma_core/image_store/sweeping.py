"""Taking things out of the store: one image, or whatever nothing needs (S3).

The reverse of putting in: the image first, then its archive and layers, so that at any moment it is wholly there
or not at all. What goes is first renamed into a work directory, under the store's exclusive lock, and removed
after.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator

from kurma_core.errors import ImageNotFoundError, StoreError
from kurma_core.image_store import documents
from kurma_core.image_store.durable import WorkDirectory, disk_usage, sweep, try_lock
from kurma_core.image_store.store import ImageStore, guard
from kurma_core.value import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@frozen
class Removal:
    """One thing that was removed, or would be.

    :ivar kind: ``image``, ``tree``, ``layer``, ``archive``, ``download`` or ``leftover``.
    :ivar name: an ID, a key, or a file's name. :ivar size: bytes on disk.
    """

    kind: str
    name: str
    size: int

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.name, "size": self.size}


@frozen
class GcReport:
    """What a sweep removed, or with ``dry_run`` would."""

    removed: tuple[Removal, ...]
    dry_run: bool = False

    @property
    def freed(self) -> int:
        """Bytes on disk."""
        return sum(removal.size for removal in self.removed)

    def to_json(self) -> dict[str, Any]:
        return {
            "dryRun": self.dry_run,
            "freed": self.freed,
            "removed": [removal.to_json() for removal in self.removed],
        }


def remove(store: ImageStore, image_id: str) -> None:
    """See :meth:`.store.ImageStore.remove`."""
    documents.checked_id(image_id)
    if not os.path.isdir(store.path("images", image_id)):
        raise documents.not_found(image_id)
    with guard("cannot remove an image"), _Sweep(store, dry_run=False) as work:
        with store.locked(exclusive=True):
            layers = _layers(store, image_id) or (image_id,)
            work.take("image", "images", image_id)
            store.step("image taken away")
            work.take_unneeded([f"{image_id}.aci"], layers)


def gc(store: ImageStore, used: Collection[str], grace: float, *, dry_run: bool) -> GcReport:
    """See :meth:`.store.ImageStore.gc`."""
    import time

    if not os.path.isdir(store.path("tmp")):
        return GcReport((), dry_run)
    before = time.time() - grace
    with guard("cannot clean up the image store"):
        found = [Removal("leftover", name, size) for name, size in sweep(store.path("tmp"), dry_run=dry_run)]
        with _Sweep(store, dry_run=dry_run) as work:
            with store.locked(exclusive=True):
                for image_id in store.ids():
                    if image_id not in used and _last_use(store, image_id) < before:
                        work.take("image", "images", image_id)
                        store.step("image taken away")
                for tree_id in _names(store.path("trees")):
                    if tree_id not in used and _time(store.path("trees", tree_id, "tree.json")) < before:
                        work.take("tree", "trees", tree_id)
                archives = list(_names(store.path("archives")))
                layers = [
                    key
                    for key in _names(store.path("layers"))
                    if _time(store.path("layers", key, "layer.json")) < before
                ]
                work.take_unneeded(archives, layers)
                for name in _names(store.path("partial")):
                    if _time(store.path("partial", name)) < before:
                        work.take("download", "partial", name)
            found += work.removed
    return GcReport(tuple(found), dry_run)


class _Sweep:
    """A work directory for what goes away. Used under the store's exclusive lock, left without it."""

    def __init__(self, store: ImageStore, *, dry_run: bool) -> None:
        self._store = store
        self._dry_run = dry_run
        self._gone: set[str] = set()
        self._work: WorkDirectory | None = None
        self.removed: list[Removal] = []

    def __enter__(self) -> _Sweep:
        if not self._dry_run:
            self._work = WorkDirectory(self._store.path("tmp"))
        return self

    def __exit__(self, *details: object) -> None:
        if self._work is not None:
            self._work.__exit__(*details)

    def take(self, kind: str, directory: str, name: str) -> bool:
        """Take ``directory/name`` away; False: it is not there, or somebody holds it."""
        path = self._store.path(directory, name)
        lock = try_lock(path)
        if lock is None:
            return False
        try:
            self.removed.append(Removal(kind, name, disk_usage(path)))
            self._gone.add(f"{directory}/{name}")
            if self._work is not None:
                os.rename(path, f"{self._work.path}/{directory}-{name}")
        finally:
            os.close(lock)
        return True

    def take_unneeded(self, archives: Iterable[str], layers: Iterable[str]) -> None:
        """Of these archives (file names) and layers (keys), take those that no image has any more."""
        images = [image_id for image_id in self._store.ids() if f"images/{image_id}" not in self._gone]
        for name in archives:
            if name.removesuffix(".aci") not in images:
                self.take("archive", "archives", name)
        needed = set(images)
        for image_id in images:
            found = _layers(self._store, image_id)
            if found is None:
                return  # it might need any of them
            needed.update(found)
        for key in layers:
            if key not in needed:
                self.take("layer", "layers", key)


def _layers(store: ImageStore, image_id: str) -> tuple[str, ...] | None:
    """Keys of its layers; None: it is damaged, so that nobody knows."""
    try:
        return store.get(image_id).layers
    except StoreError:
        return None


def _last_use(store: ImageStore, image_id: str) -> float:
    """When it was last used, or else came in. A clock that was wrong then makes an image old, not immortal."""
    try:
        image = store.get(image_id)
    except ImageNotFoundError:
        return 0.0  # of its directory, nothing is left but that
    except StoreError:
        return _time(store.path("images", image_id))
    moments = [image.fetched_at] if image.last_used is None else [image.fetched_at, image.last_used]
    return max(_seconds(moment) for moment in moments)


def _seconds(moment: str) -> float:
    try:
        return documents.seconds(moment)
    except ValueError:
        return 0.0


def _time(path: str) -> float:
    try:
        return os.stat(path, follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return 0.0


def _names(path: str) -> Iterator[str]:
    yield from sorted(os.listdir(path))
