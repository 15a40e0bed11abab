"""The contract of renderers: a graph of images becomes ordered, cached directories."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from typing import Protocol

from kurma_core.hookspecs import Hooks, hookspec
from kurma_core.value import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from kurma_core.appc.image import ImageManifest
    from kurma_core.models.image import RenderedLayer

_WHERE = {"RenderedLayer": "kurma_core.models.image"}


@frozen
class ImageLayer:
    """One extracted layer in the store: a directory, and the paths that it removes from the layers below it.

    :param key: identifies the layer's content.
    :param path: the directory. Its files are hard-linked, so they must never be written to.
    :param removed: paths (relative, no leading slash) that it whites out.
    :param opaque: directories whose content in lower layers it hides.
    :param implied: directories ("" is its root) without an entry of their own in the layer's archive. If a lower
        layer has such a directory, its owner, mode, times and attributes count.
    """

    key: str
    path: str
    removed: tuple[str, ...] = ()
    opaque: tuple[str, ...] = ()
    implied: tuple[str, ...] = ()


@frozen
class ImageNode:
    """One image of a dependency graph (a tree: a shared dependency is repeated at each place where it occurs).

    :param id: ``sha512-…``. :param manifest: the image's manifest.
    :param layers: its own layers, lowest first.
    :param dependencies: in listed order; each is applied before this image.
    :param root: the directory of the dependent image into which its tree is placed (early documents); "/"
        otherwise.
    """

    id: str
    manifest: ImageManifest
    layers: tuple[ImageLayer, ...]
    dependencies: tuple[ImageNode, ...] = ()
    root: str = "/"


class RenderCache(Protocol):
    """The store's cache of rendered trees, given by the core."""

    def tree(self, key: str, build: Callable[[str], None]) -> RenderedLayer:
        """Returns the tree cached under ``key``. If it is not cached, ``build(empty_directory)`` makes it, once
        and atomically.

        :param key: any text that determines the tree completely; the tree's ID is a digest of it.
        :param build: fills the empty directory whose path it gets.
        :raises OSError: the store cannot be written, or ``build`` raised it.
        """
        ...


class RendererHooks(Hooks):
    """Turns an image graph into ordered, read-only, cached directories."""

    @hookspec(required=True, raises=(OSError,))
    def render(self, image: ImageNode, cache: RenderCache) -> tuple[RenderedLayer, ...]:
        """Turns the image and its dependencies into directories. It makes no writable copy, as the stager does,
        and must not write to directories of the store.

        A plain image keeps its own ID. A graph that cannot be stacked becomes a tree that ``cache.tree`` keeps.

        :called: when a pod is prepared, for each image of its apps
        :param image: the image, with its dependencies.
        :param cache: keeps the trees that the renderer makes.
        :returns: the layers, top first.
        :raises RenderError: the graph cannot be rendered.
        :raises OSError: a tree cannot be made.
        """
