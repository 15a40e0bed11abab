"""The renderer ``overlay`` keeps the contract, and writes nothing where stacking is enough."""

from __future__ import annotations

import os

import kurma_render_overlay.plugin
import pytest
from kurma_testing import trees
from kurma_testing.contract import MakeDriver
from kurma_testing.graphs import ImageModel, LayerModel, Store, plain
from kurma_testing.renderers import RendererContract, render_model

from kurma_core.errors import ConfigError
from kurma_core.hookspecs.renderer import RendererHooks


@pytest.mark.kurma_driver(kurma_render_overlay.plugin)
class TestOverlay(RendererContract):
    def test_plain_images_are_stacked_under_their_own_ids(self, store: Store, driver: RendererHooks) -> None:
        """N4: nothing is built; the shared dependency stands once, where it counts."""
        d = plain("example.com/d", trees.tree({"f": trees.file(b"d")}))
        b = plain("example.com/b", trees.tree({"f": trees.file(b"b")}), d)
        c = plain("example.com/c", trees.tree(), d)
        a = plain("example.com/a", trees.tree(), b, c)
        layers = render_model(store, driver, a)
        assert [layer.id for layer in layers] == [a.id, c.id, d.id, b.id]
        assert store.built == 0
        assert self.check(store, driver, a)["f"].content == b"d"

    def test_one_docker_layer_is_itself(self, store: Store, driver: RendererHooks) -> None:
        """What it removes lies below it, and there is nothing."""
        image = ImageModel("example.com/a", (LayerModel("l", trees.tree(), removed=("x",)),))
        (layer,) = render_model(store, driver, image)
        assert layer.id == image.id
        assert store.built == 0

    def test_a_merged_tree_is_links_into_the_store(self, store: Store, driver: RendererHooks) -> None:
        image = plain("example.com/a", trees.tree({"f": trees.file(b"1"), "g": trees.file()}), whitelist=("/f",))
        (layer,) = render_model(store, driver, image)
        stored = store.node(image).layers[0].path
        assert os.stat(f"{layer.path}/f").st_ino == os.stat(f"{stored}/f").st_ino
        store.check_layers()

    def test_the_admin_says_how_many_layers(self, store: Store, make_driver: MakeDriver) -> None:
        renderer = make_driver(most_layers=2)
        below = [plain(f"example.com/n{n}", trees.tree()) for n in range(2)]
        assert len(render_model(store, renderer, plain("example.com/a", trees.tree(), below[0]))) == 2
        assert len(render_model(store, renderer, plain("example.com/b", trees.tree(), *below))) == 1

    @pytest.mark.parametrize("most", [0, -1, 501])
    def test_a_number_that_no_mount_takes(self, make_driver: MakeDriver, most: int) -> None:
        with pytest.raises(ConfigError, match=r"most_layers: expected a.* from 1 to 500"):
            make_driver(most_layers=most)
