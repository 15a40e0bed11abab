"""The renderer ``copy`` keeps the contract, and its trees share no file with the store."""

from __future__ import annotations

import os

import kurma_render_copy.plugin
import pytest
from kurma_testing import trees
from kurma_testing.graphs import Store, plain
from kurma_testing.renderers import RendererContract, render_model

from kurma_core.hookspecs.renderer import RendererHooks


@pytest.mark.kurma_driver(kurma_render_copy.plugin)
class TestCopy(RendererContract):
    def test_a_plain_image_is_a_tree_of_its_own(self, store: Store, driver: RendererHooks) -> None:
        image = plain("example.com/a", trees.tree({"f": trees.file(b"1")}))
        (layer,) = render_model(store, driver, image)
        stored = store.node(image).layers[0].path
        assert layer.id != image.id
        assert os.stat(f"{layer.path}/f").st_ino != os.stat(f"{stored}/f").st_ino
        assert os.stat(f"{stored}/f").st_nlink == 1
