"""Garbage-collects and removes images; keeps images that pods use, and their dependencies."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from kurma_core.api.images import DiskUse, ImageGc
from kurma_core.errors import FormatVersionError, ImageError, ImageNotFoundError, PluginError, StoreError
from kurma_core.image_store.rendered_trees import tree_id
from kurma_core.images.dependencies import Graph
from kurma_core.models.image import RenderedLayer
from kurma_core.value import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.hookspecs.renderer import RendererHooks
    from kurma_core.image_store import ImageStore
    from kurma_core.images.locator_cache import LocatorCache
    from kurma_core.images.trust_policy import TrustPolicy
    from kurma_core.journal import Journal

#: Kinds of things of the store, and the directory of each.
_KEPT = (
    ("image", "images"),
    ("layer", "layers"),
    ("archive", "archives"),
    ("tree", "trees"),
    ("download", "partial"),
    ("leftover", "tmp"),
)
#: IDs of images, or a function that finds them at the moment when they are needed.
Used = Collection[str] | Callable[[], Collection[str]]


class GarbageCollector:
    """:param policies: trust policies with which pods may have been made, since dependencies may differ by them.
    :param renderers: gives all renderers, by name.
    """

    def __init__(
        self,
        store: ImageStore,
        known: LocatorCache,
        policies: Sequence[TrustPolicy],
        renderers: Callable[[], Mapping[str, RendererHooks]],
        journal: Journal,
    ) -> None:
        self._store = store
        self._known = known
        self._policies = policies
        self._renderers = renderers
        self._journal = journal

    def remove(self, reference: str, used: Used, *, dry_run: bool, managed: bool) -> ImageGc:
        """See :meth:`ImageManager.remove`."""
        image_id, name = self._identify(reference)
        managers = () if managed else self._managers(image_id)
        if managers:
            raise ImageError(
                f"{name} ({image_id[:19]}): {managers[0]} manages it",
                hint=f"let {managers[0]} remove it; or, against it: --force",
                image=image_id,
                manager=managers[0],
            )
        return self._remove(image_id, name, used, dry_run=dry_run)

    def release(self, reference: str, manager: str, used_by_others: Used, used: Used) -> ImageGc:
        """See :meth:`ImageManager.release`."""
        image_id, name = self._identify(reference)
        if image_id in self._with_dependencies(used_by_others):
            raise ImageError(
                f"{name} ({image_id[:19]}): a pod that {manager} does not manage uses it",
                hint="remove the pod first",
                image=image_id,
            )
        managers = set(self._managers(image_id)) - {manager}
        if not managers and image_id not in self._with_dependencies(used):
            try:
                return self._remove(image_id, name, used, dry_run=False)
            except (ImageNotFoundError, StoreError):
                raise
            except ImageError:
                pass  # a pod or a command has begun to use it
        self._store.release_for(image_id, manager)
        return ImageGc((), dry_run=False)

    def _managers(self, image_id: str) -> tuple[str, ...]:
        """The managers of an image; none if its record is damaged."""
        try:
            return self._store.get(image_id).managers
        except (StoreError, FormatVersionError, ImageNotFoundError):
            return ()

    def _remove(self, image_id: str, name: str, used: Used, *, dry_run: bool) -> ImageGc:

        def unused() -> None:
            if image_id in self._with_dependencies(used):
                raise ImageError(
                    f"{name} ({image_id[:19]}): a pod uses it", hint="remove the pod first", image=image_id
                )

        report = self._store.remove(image_id, dry_run=dry_run, unused=unused)
        if not dry_run:
            self._known.forget({image_id})
            self._journal.tell("image", "removed", image_id, name)
        return report

    def _identify(self, reference: str) -> tuple[str, str]:
        """ID and name; only the ID if the image's record is damaged."""
        from kurma_core.image_store.references import find_id

        try:
            record = self._store.find(reference)
        except StoreError:
            return find_id(self._store, reference), "a damaged image"
        return record.id, record.name

    def gc(
        self,
        used: Used,
        grace: float,
        dry_run: bool,
        *,
        replaced: bool = False,
        only: Collection[str] | None = None,
    ) -> ImageGc:
        """See :meth:`ImageManager.gc`."""
        now = time.time()  # first: a use after this moment protects what is not among the used ones
        stagers = self._known.images("built:")  # the last of every source
        ids = set(used() if callable(used) else used)
        ids |= {image.id for image in self._store.list() if image.managers}
        images = self._with_dependencies(ids | self._newest() if replaced else ids) | stagers
        report = self._store.gc(images | self.trees_of(images), grace, dry_run, now=now, only=only)
        leftovers = self._known.sweep(dry_run=dry_run, only=only)
        if not dry_run:
            removed = {one.name for one in report.removed if one.kind == "image"}
            self._known.forget(removed)
            for image_id in sorted(removed):
                self._journal.tell("image", "removed", image_id, "")
        return replace(report, removed=(*report.removed, *leftovers)) if leftovers else report

    def _newest(self) -> set[str]:
        """IDs of the images that came last from each of their locators."""
        newest: dict[str, tuple[str, str]] = {}
        for image in self._store.list():
            for came in image.provenance:
                newest[came.locator] = max(newest.get(came.locator, ("", "")), (came.fetched_at, image.id))
        return {image_id for _, image_id in newest.values()}

    def disk_use(self, used: Used) -> tuple[DiskUse, ...]:
        """See :meth:`ImageManager.disk_use`."""
        from kurma_core.image_store.durable import Usage

        unused = self.gc(used, 0.0, dry_run=True).removed
        usage, found = Usage(), []
        for kind, directory in _KEPT:
            path = self._store.path(directory)
            names = os.listdir(path) if os.path.isdir(path) else []
            size = sum([usage.add(f"{path}/{name}") for name in names])
            gone = [one for one in unused if one.kind == kind]
            found.append(DiskUse(kind, len(names), len(names) - len(gone), size, sum([one.size for one in gone])))
        return tuple(found)

    def trees_of(self, images: Collection[str]) -> set[str]:
        """IDs of the trees that any renderer would make of these images. Does not make them."""
        cache = _TreeNames()
        for renderer in self._renderers().values():
            for policy in self._policies:
                for image_id in images:
                    # An image that cannot be rendered has no tree.
                    with contextlib.suppress(ImageError, PluginError):
                        renderer.render(Graph(self._store, policy).node(image_id), cache)
        return cache.found

    def _with_dependencies(self, used: Used) -> set[str]:
        """The used images and, as far as the store has them, all that they depend on."""
        ids = used() if callable(used) else used
        found = set(ids)
        for policy in self._policies:
            for image_id in ids:
                graph = Graph(self._store, policy)
                with contextlib.suppress(ImageError):  # its own parts are kept all the same
                    graph.node(image_id)
                found.update(graph.manifests)
        return found


class _TreeNames:
    """A :class:`kurma_core.hookspecs.renderer.RenderCache` that only collects the IDs of trees."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def tree(self, key: str, build: Callable[[str], None]) -> RenderedLayer:
        ident = tree_id(key)
        self.found.add(ident)
        return RenderedLayer(ident, f"/nonexistent/{ident}")
