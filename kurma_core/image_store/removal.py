"""Removes images, layers and trees from the store: one image, or everything unused.

The image is removed first, then its archive and layers, so that at any moment it is complete or gone. Each is
renamed into a work directory under the store's exclusive lock, and deleted afterwards.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable

from kurma_core import cancellation
from kurma_core.api.images import ImageGc, Removal
from kurma_core.errors import FormatVersionError, ImageError, ImageNotFoundError, StoreError
from kurma_core.image_store import records
from kurma_core.image_store.durable import Usage, WorkDirectory, guard, no_room, sync_directory, try_lock
from kurma_core.image_store.file_records import DIRECTORY_FLAGS
from kurma_core.linux.beneath import remove_tree
from kurma_core.value import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.image_store.durable import Store


def remove(store: Store, image_id: str, *, dry_run: bool, unused: Callable[[], object]) -> ImageGc:
    """See :meth:`.store.ImageStore.remove`."""
    path = store.path("images", records.checked_id(image_id))
    if not os.path.isdir(path):
        raise records.not_found(image_id)
    with guard("cannot remove an image"), _Sweep(store, dry_run=dry_run) as work:
        lock = try_lock(path)
        if lock is None:
            if not os.path.isdir(path):
                raise records.not_found(image_id)
            raise ImageError(
                f"image {image_id[:19]}: a command is at work with it",
                hint="try again in a moment",
                image=image_id,
            )
        try:
            unused()
            with store.locked(exclusive=True):
                layers = _layers(store, image_id) or (image_id,)
                work.take("image", "images", image_id, lock)
                store.step("image taken away")
                work.take_unneeded([f"{image_id}.aci"], layers)
                work.take_trees_without_layers()
                store.step("taken away")
        finally:
            os.close(lock)
        return work.report()


def gc(
    store: Store,
    used: Collection[str],
    grace: float,
    *,
    dry_run: bool,
    now: float | None,
    only: Collection[str] | None,
) -> ImageGc:
    """See :meth:`.store.ImageStore.gc`."""
    import time

    if not os.path.isdir(store.path("tmp")):
        return ImageGc((), dry_run)
    before = (time.time() if now is None else now) - grace
    with guard("cannot clean up the image store"), _Sweep(store, dry_run=dry_run, only=only) as work:
        for name in _names(store.path("tmp")):
            work.take("leftover", "tmp", name)
        store.step("leftovers taken away")
        with store.locked(exclusive=True):
            for image_id in store.ids():
                if image_id not in used:
                    work.take("image", "images", image_id, last_use=_last_use, before=before)
                    store.step("image taken away")
            for tree_id in _names(store.path("trees")):
                if tree_id not in used:
                    work.take("tree", "trees", tree_id, last_use=_last_use_of_tree, before=before)
                    store.step("tree taken away")
            old = (key for key in _names(store.path("layers")) if _time(_layer_record(store, key)) < before)
            work.take_unneeded(_names(store.path("archives")), old)
        for name in _names(store.path("partial")):
            if _time(store.path("partial", name)) < before:
                work.take("download", "partial", name)
        store.step("taken away")
        return work.report()


class _Sweep:
    """Renames what is removed into a work directory, and deletes it after all locks are released. The order is the
    same with ``dry_run``, so that the real run removes what the dry run has listed."""

    def __init__(self, store: Store, *, dry_run: bool, only: Collection[str] | None = None) -> None:
        self._store = store
        self._dry_run = dry_run
        self._only = only if only is None else frozenset(only)
        self._gone: set[str] = set()
        self._work: WorkDirectory | None = None
        self._usage = Usage()
        #: Each without its size; and its present path, or, if it is deleted already, its size.
        self._taken: list[tuple[Removal, str | int]] = []

    def __enter__(self) -> _Sweep:
        if not self._dry_run:
            self._make_work()
        return self

    def _make_work(self) -> None:
        """No work directory is made if the disk has no room for one: the sweep itself makes room."""
        try:
            self._work = WorkDirectory(self._store.path("tmp"))
        except OSError as error:
            if not no_room(error):
                raise

    def __exit__(self, *details: object) -> None:
        if self._work is not None:
            with cancellation.phase("removing files", self._usage.files or None):
                self._work.__exit__(*details)

    def take(
        self,
        kind: str,
        directory: str,
        name: str,
        held: int | None = None,
        *,
        last_use: Callable[[Store, str], float] | None = None,
        before: float = 0.0,
    ) -> None:
        """Takes ``directory/name`` away, unless it is missing, or held, or not among those to remove.

        :param held: the lock on it, where the caller has that.
        :param last_use: if given, only what was last used before ``before`` is taken. It is asked again with the
            lock held, because who holds a thing records its use just before the lock is released.
        """

        def kept() -> bool:
            return last_use is not None and last_use(self._store, name) >= before

        path = self._store.path(directory, name)
        one = Removal(kind, name, 0, _image_name(self._store, name) if kind == "image" else "")
        if self._only is not None and one.key not in self._only:
            return
        if kept():
            return
        lock = try_lock(path) if held is None else held
        if lock is None:
            return
        try:
            if kept():
                return
            if self._work is not None:
                away = f"{self._work.path}/{directory}-{name}"
                os.rename(path, away)
                self._taken.append((one, away))
            elif self._dry_run:
                self._taken.append((one, path))
            else:
                self._taken.append((one, self._remove(directory, name)))
            self._gone.add(f"{directory}/{name}")
        finally:
            if held is None:
                os.close(lock)

    def _remove(self, directory: str, name: str) -> int:
        """Without a work directory: removes it in place, with its lock held to the end. :returns: its size."""
        tmp = self._store.path("tmp")
        away = f"{os.getpid()}-{os.urandom(6).hex()}"
        os.rename(self._store.path(directory, name), f"{tmp}/{away}")
        sync_directory(self._store.path(directory))
        size = self._usage.add(f"{tmp}/{away}")
        fd = os.open(tmp, DIRECTORY_FLAGS)
        try:
            remove_tree(fd, away, cancellation.step)
        finally:
            os.close(fd)
        self._make_work()
        return size

    def take_unneeded(self, archives: Iterable[str], layers: Iterable[str]) -> None:
        """Takes, of these archives (file names) and layers (keys), those that no image uses any more."""
        images = {image_id for image_id in self._store.ids() if f"images/{image_id}" not in self._gone}
        if not self._dry_run and any(name.startswith("images/") for name in self._gone):
            sync_directory(self._store.path("images"))  # a power cut must not bring it back without its parts
        for name in archives:
            if name.removesuffix(".aci") not in images:
                self.take("archive", "archives", name)
                self._store.step("archive taken away")
        needed = set(images)
        for image_id in images:
            found = _layers(self._store, image_id)
            if found is None:
                return  # it might need any of them
            needed.update(found)
        for key in layers:
            if key not in needed:
                self.take("layer", "layers", key)
                self._store.step("layer taken away")

    def take_trees_without_layers(self) -> None:
        """Takes the rendered trees that were made of a layer taken before: they could not be rendered again, and a
        damaged one must not outlive its image."""
        gone = [name.removeprefix("layers/") for name in self._gone if name.startswith("layers/")]
        if not gone:
            return
        for tree_id in _names(self._store.path("trees")):
            if any(f'"{key}"' in _tree_key(self._store, tree_id) for key in gone):
                self.take("tree", "trees", tree_id)
                self._store.step("tree taken away")

    def report(self) -> ImageGc:
        """All that was taken, measured. Walking large trees takes its time, so no lock is held here."""
        with cancellation.phase("measuring"):
            removed = [
                replace(one, size=where if isinstance(where, int) else self._usage.add(where))
                for one, where in self._taken
            ]
        return ImageGc(tuple(removed), self._dry_run)


def _layers(store: Store, image_id: str) -> tuple[str, ...] | None:
    """Keys of its layers; None: its record is damaged."""
    try:
        return store.get(image_id).layers
    except (StoreError, ImageNotFoundError, FormatVersionError):
        return None


def _image_name(store: Store, image_id: str) -> str:
    """Its name; empty: its record is damaged."""
    try:
        return store.get(image_id).name
    except (StoreError, ImageNotFoundError, FormatVersionError):
        return ""


def _last_use(store: Store, image_id: str) -> float:
    """When it was last used, or else came in; infinite: a program manages it. A damaged record counts for none. A
    clock that was wrong then makes an image old, not immortal."""
    try:
        image = store.get(image_id)
    except (StoreError, ImageNotFoundError, FormatVersionError):
        return _time(store.path("images", image_id))
    if image.managers:
        return math.inf
    return max(_seconds(image.fetched_at), _time(store.path("images", image_id, "used")))


def _last_use_of_tree(store: Store, tree_id: str) -> float:
    return _time(store.path("trees", tree_id, "tree.json"))


def _seconds(moment: str) -> float:
    try:
        return records.seconds(moment)
    except ValueError:
        return 0.0


def _time(path: str) -> float:
    try:
        return os.stat(path, follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return 0.0


def _layer_record(store: Store, key: str) -> str:
    return store.path("layers", key, "layer.json")


def _tree_key(store: Store, tree_id: str) -> str:
    """The key that describes how the tree was made; empty if its document cannot be read."""
    path = store.path("trees", tree_id, "tree.json")
    try:
        with open(path, "rb") as file:
            return str(records.load(file.read(), path).get("key", ""))
    except (OSError, StoreError, FormatVersionError):
        return ""


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except FileNotFoundError:
        return []  # another process is just making the store
