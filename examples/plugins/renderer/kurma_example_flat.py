"""The renderer ``flat``: whatever the image graph, one tree of hard links into the extracted layers."""

from __future__ import annotations

from kurma_core.appc import layering
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver
from kurma_core.hookspecs.renderer import ImageNode, RenderCache
from kurma_core.models.image import RenderedLayer
from kurma_core.trees import merging


class Flat:
    @hookimpl
    def render(self, image: ImageNode, cache: RenderCache) -> tuple[RenderedLayer, ...]:
        return (layering.merged("links", layering.applications(image), cache.tree, merging.merge),)


@hookimpl
def kurma_renderer() -> Driver:
    return Driver(lambda context: Flat())
