"""What may go from the store, and when: never what a pod uses, nor what that depends on (S3)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from kurma_core.errors import ImageError, StoreError
from kurma_core.images.needs import needed_trees, with_dependencies
from kurma_core.value import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.api.images import ImageGc
    from kurma_core.hookspecs.renderer import Renderer
    from kurma_core.image_store import ImageStore
    from kurma_core.images.known import KnownImages
    from kurma_core.images.policy import Policy
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
