"""The hook of the stager kind ``rkt``: stage1 images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, DriverContext
from kurma_core.hookspecs.stager import StagerFeatures, StagerHooks, StagerOfImagesHooks
from kurma_stager_rkt.settings import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Collection

    from kurma_stager_rkt.pod_directories import Places


_IN_PART = {
    "os/linux/privileged": "stage1 lifts its restrictions, from interface version 3 on; devices it gives none"
}


class Stage1Images(StagerOfImagesHooks):
    """Makes the drivers of stage1 images, and frees what pods without a directory have left."""

    def __init__(self, context: DriverContext) -> None:
        self._context = context

    @hookimpl
    def features(self) -> StagerFeatures:
        return StagerFeatures(isolators_in_part=_IN_PART)

    @hookimpl
    def of_image(self, name: str, locator: str) -> StagerHooks:
        from kurma_stager_rkt.driver import Stage1Stager

        return Stage1Stager(name, locator, self._context)

    @hookimpl
    def remains(self) -> Collection[str]:
        return self._places().uuids()

    @hookimpl
    def discard_gone(self, uuid: str) -> tuple[str, ...] | None:
        from kurma_stager_rkt import removal

        return removal.discard(self._context.start_program, self._places(), uuid)

    def _places(self) -> Places:
        from kurma_stager_rkt.pod_directories import Places

        return Places.of(self._context)


def _create(context: DriverContext) -> StagerOfImagesHooks:
    return Stage1Images(context)


@hookimpl
def kurma_stager() -> Driver:
    """Pods under stage1 images: ``--stager rkt:IMAGE``."""
    return Driver(create=_create, options=OPTIONS)
