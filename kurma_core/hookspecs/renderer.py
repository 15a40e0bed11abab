"""The contract of renderers: a graph of images becomes ordered, cached directories."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from kurma_core.value import frozen

if TYPE_CHECKING:
    from kurma_core.appc.image import ImageManifest
    from kurma_core.models.image import RenderedLayer


@frozen
class ImageLayer:
    """One extracted layer in the store: a directory, and what it takes away from the layers below it.

    :param path: of the directory; read-only by agreement: never written, hard-linked freely.
    :param removed: paths (relative, no leading slash) that it whites out.
    :param opaque: directories whose lower content it hides.
    :param implied: directories ("" is its root) that its archive did not name, only what lies in them: where a
        layer below has such a directory, that one's owner, mode, times and attributes stay.
    """

    key: str
    path: str
    removed: tuple[str, ...] = ()
    opaque: tuple[str, ...] = ()
    implied: tuple[str, ...] = ()


@frozen
class ImageNode:
    """One image of a dependency graph (a tree: a shared dependency stands at each place where it occurs).

    :param layers: its own, lowest first.
    :param dependencies: in listed order; each is applied before this image.
    :param root: where in the image above it its tree is placed (early documents); "/" otherwise.
    """

    id: str
    manifest: ImageManifest
    layers: tuple[ImageLayer, ...]
    dependencies: tuple[ImageNode, ...] = ()
    root: str = "/"


class RenderCache(Protocol):
    """The store's cache of rendered trees."""

    def tree(self, key: str, build: Callable[[str], None]) -> RenderedLayer:
        """The tree cached under ``key``; made, once and atomically, by ``build(empty_directory)``.

        :param key: any text that says wholly what makes the tree; its ID is a digest over it.
        """
        ...


class Renderer(Protocol):
    """Turns an image graph into ordered, read-only, cached directories."""

    def render(self, image: ImageNode, cache: RenderCache) -> tuple[RenderedLayer, ...]:
        """Top first. A plain image's layer keeps the image's own ID.

        :raises RenderError: the graph cannot be rendered.
        """
        ...
