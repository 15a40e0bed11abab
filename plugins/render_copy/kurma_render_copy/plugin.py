"""The renderer ``copy``: every image becomes one flat tree of files of its own.

For file systems without hard links, and stagers or hosts without overlay. Files share their blocks with the
extracted layers where the file system has reflinks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kurma_core import cancellation
from kurma_core.appc import layering
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver
from kurma_core.hookspecs.renderer import RendererHooks
from kurma_core.trees import merging

if TYPE_CHECKING:
    from kurma_core.hookspecs.driver import DriverContext
    from kurma_core.hookspecs.renderer import ImageNode, RenderCache
    from kurma_core.models.image import RenderedLayer


class CopyRenderer(RendererHooks):
    """Stateless."""

    @hookimpl
    def render(self, image: ImageNode, cache: RenderCache) -> tuple[RenderedLayer, ...]:
        """One tree, whatever the graph (N5).

        :raises RenderError: a cycle, or a limit.
        :raises OSError: the tree cannot be made.
        """
        return (layering.merged("copy", layering.applications(image), cache.tree, _copy),)


def _copy(target: str, steps: Sequence[layering.Step]) -> None:
    merging.merge(target, steps, copy=True, check=cancellation.check, done=cancellation.step)


def _create(_: DriverContext) -> RendererHooks:
    return CopyRenderer()


@hookimpl
def kurma_renderer() -> Driver:
    return Driver(_create)
