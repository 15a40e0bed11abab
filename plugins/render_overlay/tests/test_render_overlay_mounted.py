"""What the kernel's overlay shows of rendered layers is what the specification says."""

from __future__ import annotations

import os
import tempfile

import pytest
from hypothesis import HealthCheck, given, settings
from kurma_render_overlay.plugin import OverlayRenderer

from kurma_core.linux import mounts
from kurma_core.linux.overlay import mount_overlay
from kurma_core.testing import graphs, trees
from kurma_core.testing.graphs import ImageModel, Store
from kurma_core.testing.renderers import check_same, render_model

pytestmark = pytest.mark.root


def check_mounted(image: ImageModel) -> None:
    with tempfile.TemporaryDirectory() as place:
        layers = render_model(Store(place), OverlayRenderer(), image)
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
            mounts.unmount_below(target)


@given(image=graphs.graphs(stacks=True))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_stacked_layers(image: ImageModel) -> None:
    check_mounted(image)


@given(image=graphs.graphs())
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_graph(image: ImageModel) -> None:
    check_mounted(image)
