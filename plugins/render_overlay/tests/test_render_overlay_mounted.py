"""What the kernel's overlay shows of rendered layers is what the specification says."""

from __future__ import annotations

import os
import tempfile

import pytest
from hypothesis import HealthCheck, given, settings
from kurma_render_overlay.plugin import MOST_LAYERS, OverlayRenderer
from kurma_testing import graphs, trees
from kurma_testing.graphs import ImageModel, Store, plain
from kurma_testing.renderers import check_same, render_model

from kurma_core.linux import mounts
from kurma_core.trees.overlay import mount_overlay

pytestmark = pytest.mark.root


def check_mounted(image: ImageModel, most_layers: int = MOST_LAYERS) -> int:
    """:returns: how many layers were mounted."""
    with tempfile.TemporaryDirectory() as place:
        layers = render_model(Store(place), OverlayRenderer(most_layers), image)
        target = os.path.join(place, "mounted")
        os.mkdir(target)
        fd = mount_overlay([layer.path for layer in layers])
        try:
            mounts.move_mount_to(fd, target)
        finally:
            os.close(fd)
        try:
            check_same(trees.read_tree(target), graphs.expected(image))
        finally:
            mounts.umount(target, mounts.MNT_DETACH)
    return len(layers)


@given(image=graphs.graphs(stacks=True))
@settings(max_examples=graphs.examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_stacked_layers(image: ImageModel) -> None:
    check_mounted(image)


@pytest.mark.full
@pytest.mark.parametrize(("images", "layers"), [(500, 500), (501, 1)])
def test_as_many_layers_as_the_kernel_takes(images: int, layers: int) -> None:
    """Every layer counts, the lowest and the top one; one image more, and it is one tree."""
    below = [
        plain(f"example.com/n{n}", trees.tree({f"f{n}": trees.file(), "last": trees.file(b"%d" % n)}))
        for n in range(images - 1)
    ]
    assert check_mounted(plain("example.com/a", trees.tree(), *below), 500) == layers
