"""The renderer ``overlay``: layers as they are extracted, wherever stacking them says the same as merging them.

A plain image, and dependencies that are plain, are stacked: nothing is written. A merged tree of hard links is
made for what a stack cannot say: path whitelists, dependencies at a root of their own, images of several layers
(whose whiteouts no stager needs to know), and more layers than a mount can be trusted to take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core import cancellation
from kurma_core.appc import layering
from kurma_core.errors import ConfigError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, Option
from kurma_core.hookspecs.renderer import RendererHooks
from kurma_core.models.image import RenderedLayer
from kurma_core.trees import merging

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kurma_core.hookspecs.driver import DriverContext
    from kurma_core.hookspecs.renderer import ImageNode, RenderCache

#: A stager that passes ``/layers/sha512-…`` names to mount(2) fits 25 of them into the kernel's one page.
MOST_LAYERS = 24
#: The kernel takes no more (OVL_MAX_STACK).
_KERNELS_MOST = 500


class OverlayRenderer(RendererHooks):
    """:param most_layers: a longer stack is merged into one tree."""

    def __init__(self, most_layers: int = MOST_LAYERS) -> None:
        self.most_layers = most_layers

    @hookimpl
    def render(self, image: ImageNode, cache: RenderCache) -> tuple[RenderedLayer, ...]:
        """The images' own layers, top first, or one tree made of them (N4).

        :raises RenderError: a cycle, or a limit.
        :raises OSError: the tree cannot be made.
        """
        what = layering.applications(image)
        if len(what) <= self.most_layers and layering.stackable(what):
            return tuple(RenderedLayer(one.image, one.layers[0].path) for one in reversed(what))
        return (layering.merged("links", what, cache.tree, _link),)


def _link(target: str, steps: Sequence[layering.Step]) -> None:
    merging.merge(target, steps, check=cancellation.check)


def _create(context: DriverContext) -> RendererHooks:
    most = context.config.get("most_layers", MOST_LAYERS)
    if not 1 <= most <= _KERNELS_MOST:
        raise ConfigError(
            f"renderer overlay: most_layers: expected a number from 1 to {_KERNELS_MOST}, not {most}",
            hint="the kernel stacks no more layers than that; longer stacks are merged into one tree",
        )
    return OverlayRenderer(most)


@hookimpl
def kurma_renderer() -> Driver:
    most = Option("most_layers", int, MOST_LAYERS, "a longer stack of layers is merged into one tree")
    return Driver(_create, options=(most,))
