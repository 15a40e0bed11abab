"""Renders an image graph to ordered read-only layers: a renderer plugin does it, the core checks it.

App Container Executor, Filesystem Setup.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping
from errno import EDQUOT, ENOSPC
from typing import TYPE_CHECKING, Any

from kurma_core.appc import layering
from kurma_core.errors import PluginError, RenderError
from kurma_core.models.image import RenderedImage, RenderedLayer
from kurma_core.plugins.calls import plugin_error

if TYPE_CHECKING:
    from kurma_core.hookspecs.renderer import ImageNode, RenderCache, RendererHooks

    Json = Any

_ID = re.compile(r"sha512-[0-9a-f]{128}")


def render(
    image: ImageNode, renderer: RendererHooks, cache: RenderCache, manifests: Mapping[str, Json]
) -> RenderedImage:
    """Have ``image`` and all that it depends on made ready to be stacked.

    :param manifests: image manifests as JSON values, by ID, of all images in the graph. A layer made of several
        images stands for ``image`` and is entered with its manifest.
    :raises RenderError: the graph cannot be rendered: a cycle, a limit, a file system's refusal.
    :raises PluginError: the renderer failed in a way of its own, or what it returned is not what it was asked for.
    """
    layering.applications(image)  # its limits hold whatever the renderer checks
    watched = _WatchedCache(cache)
    try:
        layers = renderer.render(image, watched)
    except PluginError as error:
        error.prefix(f"image {_named(image)}")
        raise
    except OSError as error:
        where = f": {error.filename}" if error.filename is not None else ""
        raise RenderError(
            f"cannot render image {_named(image)}{where}: {(error.strerror or str(error)).lower()}",
            hint="make room, perhaps by `kurma image gc`" if error.errno in (ENOSPC, EDQUOT) else None,
            image=image.id,
            errno=error.errno,
            path=error.filename,
        ) from error
    _check(image, renderer, layers, watched.made)
    return RenderedImage(
        image.id,
        layers,
        {layer.id: manifests.get(layer.id, manifests[image.id]) for layer in layers},
        tuple(manifests),
    )


class _WatchedCache:
    """The store's cache; remembers what it gave out."""

    def __init__(self, cache: RenderCache) -> None:
        self._cache = cache
        self.made: set[RenderedLayer] = set()

    def tree(self, key: str, build: Callable[[str], None]) -> RenderedLayer:
        layer = self._cache.tree(key, build)
        self.made.add(layer)
        return layer


def _check(
    image: ImageNode, renderer: RendererHooks, layers: tuple[RenderedLayer, ...], made: set[RenderedLayer]
) -> None:
    """Only layers of the store, each once: a stager gets them with the trust that their images have."""
    if not layers:
        raise _broken(renderer, image, "no layer at all")
    plain = _plain_layers(image)
    ids: set[str] = set()
    paths: set[str] = set()
    for layer in layers:
        if not _ID.fullmatch(layer.id):
            raise _broken(renderer, image, f"{layer!r}, whose ID is malformed")
        if layer not in made and layer not in plain:
            raise _broken(
                renderer,
                image,
                f"{layer.id} at {layer.path}, which is neither of the graph nor cached",
            )
        if layer.id in ids or layer.path in paths:
            raise _broken(renderer, image, f"{layer.id} at {layer.path} twice")
        ids.add(layer.id)
        paths.add(layer.path)
        try:
            if not stat.S_ISDIR(os.lstat(layer.path).st_mode):
                raise _broken(renderer, image, f"{layer.path}, which is not a directory")
        except OSError as error:
            raise RenderError(
                f"cannot render image {_named(image)}: layer {layer.path}: {error.strerror}",
                hint="the image store is damaged: remove every image that has these layers and fetch it anew",
                path=layer.path,
            ) from error


def _plain_layers(image: ImageNode) -> set[RenderedLayer]:
    """Layers that may be stacked under an image's own ID: those of images in the graph that have just one."""
    found = set()
    seen: set[int] = set()
    todo = [image]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        todo += node.dependencies
        if len(node.layers) == 1:
            found.add(RenderedLayer(node.id, node.layers[0].path))
    return found


def _named(image: ImageNode) -> str:
    return f"{image.manifest.name} ({image.id[:20]})"


def _broken(renderer: RendererHooks, image: ImageNode, returned: str) -> PluginError:
    return plugin_error(renderer, f"returned for image {_named(image)}: {returned}")
