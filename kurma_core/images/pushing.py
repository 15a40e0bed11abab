"""Makes the value that a fetcher writes of an image of the store: its layers, and those of its dependencies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.appc import layering
from kurma_core.errors import UsageError
from kurma_core.hookspecs.fetcher import StoredImage
from kurma_core.hookspecs.renderer import ImageLayer
from kurma_core.image_store.exporting import write_layer
from kurma_core.models.image import LOCAL, REGISTRY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import BinaryIO

    from kurma_core.hookspecs.renderer import ImageNode
    from kurma_core.models.image import ImageRecord, RenderedImage


def stored_image(node: ImageNode, render: Callable[[], RenderedImage]) -> StoredImage:
    """The image with its dependencies.

    :param render: renders the image: called if its layers cannot be stacked as they are.
    :raises RenderError: the graph cannot be rendered.
    """
    return StoredImage(node.manifest, tuple(map(_Layer, _layers(node, render))))


def _layers(node: ImageNode, render: Callable[[], RenderedImage]) -> Sequence[ImageLayer]:
    """Layers, lowest first, whose stack is the image's root filesystem."""
    parts = layering.applications(node)
    if len(parts) == 1 and parts[0].whole:
        return [
            ImageLayer(layer.key, layer.path, tuple(layer.removed), tuple(layer.opaque), tuple(layer.implied))
            for layer in parts[0].layers
        ]
    if layering.stackable(parts):
        # Each of the images has a single layer, and a layer removes files of its own image alone.
        return [
            ImageLayer(layer.key, layer.path, implied=tuple(layer.implied))
            for part in parts
            for layer in part.layers
        ]
    return [ImageLayer(layer.id, layer.path) for layer in reversed(render().layers)]


class _Layer:
    """See :class:`kurma_core.hookspecs.fetcher.StoredLayer`."""

    def __init__(self, layer: ImageLayer) -> None:
        self._layer = layer

    def write(self, out: BinaryIO) -> None:
        write_layer(self._layer, out.write)


def origin(record: ImageRecord) -> str:
    """The address in a registry that the image came from last. :raises UsageError: it came from none."""
    for came in reversed(record.provenance):
        if came.source == REGISTRY and came.transport != LOCAL:
            return came.locator
    raise UsageError(
        f"{record.name}: it came from no registry, so that a destination is needed",
        hint="kurma image push IMAGE DESTINATION",
    )
