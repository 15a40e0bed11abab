"""Garbage-collects and removes images: never one that a pod uses, nor what that one depends on."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from kurma_core.errors import ImageError, PluginError, StoreError
from kurma_core.images.dependencies import Graph
from kurma_core.models.image import RenderedLayer
from kurma_core.value import replace

if TYPE_CHECKING:
    from kurma_core.api.images import ImageGc
    from kurma_core.hookspecs.renderer import Renderer
    from kurma_core.image_store import ImageStore
    from kurma_core.images.locator_cache import KnownImages
    from kurma_core.images.trust_policy import Policy
    from kurma_core.journal import Journal


#: IDs of images, or what finds them at the moment they are needed.
Used = Collection[str] | Callable[[], Collection[str]]


class Removal:
    """:param policies: under any of which a pod may have been made: what it depends on may differ by that.
    :param renderers: makes them all, by name.
    """

    def __init__(
        self,
        store: ImageStore,
        known: KnownImages,
        policies: Sequence[Policy],
        renderers: Callable[[], Mapping[str, Renderer]],
        journal: Journal,
    ) -> None:
        self._journal = journal
        self._store = store
        self._known = known
        self._policies = policies
        self._renderers = renderers

    def remove(self, reference: str, used: Used, *, dry_run: bool) -> ImageGc:
        """See :meth:`ImageManager.remove`."""
        image_id, name = self._identify(reference)

        def unused() -> None:
            if image_id in self._with_dependencies(_now(used)):
                raise ImageError(
                    f"{name} ({image_id[:19]}): a pod uses it", hint="remove the pod first", image=image_id
                )

        report = self._store.remove(image_id, dry_run=dry_run, unused=unused)
        if not dry_run:
            self._known.forget({image_id})
            self._journal.tell("image", "removed", image_id, name)
        return report

    def _identify(self, reference: str) -> tuple[str, str]:
        """ID and name; one whose record is damaged has an ID at least."""
        from kurma_core.image_store.references import find_id

        try:
            record = self._store.find(reference)
        except StoreError:
            return find_id(self._store, reference), "a damaged image"
        return record.id, record.name

    def gc(self, used: Used, grace: float, dry_run: bool) -> ImageGc:
        """See :meth:`ImageManager.gc`."""
        now = time.time()
        stagers = self._known.images("built:")  # every source's last
        images = self._with_dependencies(_now(used)) | stagers
        report = self._store.gc(images | self.trees_of(images), grace, dry_run, now=now)
        leftovers = self._known.sweep(dry_run=dry_run)
        if not dry_run:
            removed = {one.name for one in report.removed if one.kind == "image"}
            self._known.forget(removed)
            for image_id in sorted(removed):
                self._journal.tell("image", "removed", image_id, "")
        return replace(report, removed=(*report.removed, *leftovers)) if leftovers else report

    def trees_of(self, images: set[str]) -> set[str]:
        """IDs of the trees that any renderer would make of those images, made or not."""
        drivers = self._renderers()
        return {tree for policy in self._policies for tree in needed_trees(images, self._store, policy, drivers)}

    def _with_dependencies(self, used: Collection[str]) -> set[str]:
        return {image for policy in self._policies for image in with_dependencies(used, self._store, policy)}


def _now(used: Used) -> Collection[str]:
    return used() if callable(used) else used


def with_dependencies(used: Collection[str], store: ImageStore, policy: Policy) -> set[str]:
    """The images and, as far as the store has them, all that they depend on."""
    found = set(used)
    for image_id in used:
        graph = Graph(store, policy)
        with contextlib.suppress(ImageError):  # incomplete: what it does have stays all the same
            graph.node(image_id)
        found.update(graph.manifests)
    return found


def needed_trees(
    images: Collection[str], store: ImageStore, policy: Policy, renderers: Mapping[str, Renderer]
) -> set[str]:
    """IDs of the trees that any renderer would make of these images. Nothing is made."""
    cache = _NamesOnly()
    for image_id in images:
        for renderer in renderers.values():
            try:
                renderer.render(Graph(store, policy).node(image_id), cache)
            except (ImageError, PluginError):
                continue  # it cannot be rendered, so no tree stands for it
    return cache.found


class _NamesOnly:
    """A :class:`kurma_core.hookspecs.renderer.RenderCache` that only learns which trees are asked for."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def tree(self, key: str, build: Callable[[str], None]) -> RenderedLayer:
        ident = f"sha512-{hashlib.sha512(key.encode('utf-8', 'surrogateescape')).hexdigest()}"
        self.found.add(ident)
        return RenderedLayer(ident, f"/nonexistent/{ident}")
