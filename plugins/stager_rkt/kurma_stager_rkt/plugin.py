"""The hook of the stager kind ``rkt``: stage1 images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.hookspecs import Driver, DriverContext, hookimpl
from kurma_stager_rkt.settings import OPTIONS

if TYPE_CHECKING:
    from kurma_core.hookspecs import Stager, StagerOfImages


class Stage1Images:
    """Implements :class:`kurma_core.hookspecs.StagerOfImages`."""

    def __init__(self, context: DriverContext) -> None:
        self._context = context

    def of_image(self, name: str, locator: str) -> Stager:
        from kurma_stager_rkt.driver import Stage1Stager

        return Stage1Stager(name, locator, self._context)


def _create(context: DriverContext) -> StagerOfImages:
    return Stage1Images(context)


@hookimpl
def kurma_stager() -> Driver[StagerOfImages]:
    """Pods under stage1 images: ``--stager rkt:IMAGE``."""
    return Driver(create=_create, options=OPTIONS)
