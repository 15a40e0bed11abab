"""What the core lets a renderer return."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from kurma_testing import bound, trees
from kurma_testing.graphs import ImageModel, LayerModel, Store, plain

from kurma_core.errors import PluginError, RenderError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.renderer import ImageNode, RenderCache, RendererHooks
from kurma_core.models.image import RenderedImage, RenderedLayer
from kurma_core.rendering import render

Work = Callable[[ImageNode, RenderCache], tuple[RenderedLayer, ...]]


class Written:
    """A renderer that does what a test says."""

    def __init__(self, work: Work) -> None:
        self.work = work

    @hookimpl
    def render(self, image: ImageNode, cache: RenderCache) -> tuple[RenderedLayer, ...]:
        return self.work(image, cache)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


@pytest.fixture
def image(store: Store) -> ImageNode:
    return store.node(plain("example.com/a", trees.tree(), plain("example.com/b", trees.tree())))


def run(image: ImageNode, store: Store, work: Work) -> RenderedImage:
    manifests = {one.id: one.manifest.to_json() for one in (image, *image.dependencies)}
    return render(image, bound(RendererHooks, Written(work)), store, manifests)


def layer(image: ImageNode) -> RenderedLayer:
    return RenderedLayer(image.id, image.layers[0].path)


def test_layers_carry_the_manifests_of_their_images(image: ImageNode, store: Store) -> None:
    """A stack by image; a merged tree by the image that it stands for (N4)."""
    below = image.dependencies[0]
    stack = run(image, store, lambda image, cache: (layer(image), layer(below)))
    assert {key: value["name"] for key, value in stack.manifests.items()} == {
        image.id: "example.com/a",
        below.id: "example.com/b",
    }
    merged = run(image, store, lambda image, cache: (cache.tree("k", lambda directory: None),))
    assert [value["name"] for value in merged.manifests.values()] == ["example.com/a"]
    assert merged.id == image.id != merged.layers[0].id


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda image, cache: (), "no layer at all"),
        (lambda image, cache: (layer(image), layer(image)), "twice"),
        (lambda image, cache: (RenderedLayer("../etc", image.layers[0].path),), "whose ID is malformed"),
        (lambda image, cache: (RenderedLayer(image.id, "/etc"),), "neither of the graph nor cached"),
        (lambda image, cache: (RenderedLayer(image.id, image.dependencies[0].layers[0].path),), "neither of the"),
        (lambda image, cache: ("sha512-0",), "not tuple"),
        (lambda image, cache: None, "answered render with None"),
        (lambda image, cache: {}["x"], "KeyError"),
    ],
)
def test_broken_renderers_are_named(image: ImageNode, store: Store, work: Work, message: str) -> None:
    with pytest.raises(PluginError, match=message) as caught:
        run(image, store, work)
    assert "example.com/a" in caught.value.message
    assert caught.value.data["plugin"]


def test_an_image_of_several_layers_is_none_of_them(store: Store) -> None:
    layers = (LayerModel("l1", trees.tree()), LayerModel("l2", trees.tree()))
    image = store.node(ImageModel("example.com/d", layers))
    with pytest.raises(PluginError, match="neither of the graph nor cached"):
        run(image, store, lambda image, cache: (layer(image),))


def test_a_layer_that_is_gone(image: ImageNode, store: Store) -> None:
    os.rmdir(image.layers[0].path)
    with pytest.raises(RenderError, match=r"example\.com/a.*No such file") as caught:
        run(image, store, lambda image, cache: (layer(image),))
    assert caught.value.hint is not None


def test_a_link_is_no_layer(image: ImageNode, store: Store) -> None:
    os.rmdir(image.layers[0].path)
    os.symlink("/etc", image.layers[0].path)
    with pytest.raises(PluginError, match="is not a directory"):
        run(image, store, lambda image, cache: (layer(image),))


def test_a_file_system_that_fails(image: ImageNode, store: Store) -> None:
    def work(image: ImageNode, cache: RenderCache) -> tuple[RenderedLayer, ...]:
        raise OSError(28, "no space left on device", "usr/bin/x")

    with pytest.raises(
        RenderError, match=r"cannot render image example\.com/a .*: usr/bin/x: no space left"
    ) as caught:
        run(image, store, work)
    assert caught.value.data["errno"] == 28


def test_limits_hold_whatever_the_renderer_does(store: Store) -> None:
    image = store.node(plain("example.com/a", trees.tree(), plain("example.com/a", trees.tree())))
    with pytest.raises(RenderError, match="depends on itself"):
        run(image, store, lambda image, cache: (layer(image),))
