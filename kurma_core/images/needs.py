"""What must stay when the store is swept: what pods' images depend on, and the trees rendered for them."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from kurma_core.errors import ImageError, PluginError
from kurma_core.images.graph import Graph
from kurma_core.models.image import RenderedLayer

if TYPE_CHECKING:
    from kurma_core.hookspecs.renderer import Renderer
    from kurma_core.image_store import ImageStore
    from kurma_core.images.policy import Policy


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
