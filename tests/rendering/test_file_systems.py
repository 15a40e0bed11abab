"""Rendered trees on other file systems: without reflinks, with them, with few links to a file (N5)."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from kurma_render_copy.plugin import CopyRenderer
from kurma_render_overlay.plugin import OverlayRenderer
from kurma_testing import graphs, trees
from kurma_testing.graphs import ImageModel, Store, plain
from kurma_testing.renderers import check_same, render_model, render_node
from kurma_testing.trees import file

from kurma_core.hookspecs.renderer import RendererHooks
from kurma_core.linux.beneath import remove_tree

pytestmark = pytest.mark.root

_MIB = 1 << 20


@contextmanager
def file_system(kind: str, place: Path) -> Iterator[str]:
    """A file system of its own; its top directory."""
    top = place / kind
    top.mkdir()
    if kind == "tmpfs":
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "kurma-test", top], check=True)
    else:
        image = place / f"{kind}.img"
        with image.open("wb") as out:
            out.truncate(320 * _MIB)  # as small as xfs may be; sparse
        subprocess.run([f"mkfs.{kind}", "-q", image], check=True)
        subprocess.run(["mount", "-o", "loop", image, top], check=True)
    try:
        yield str(top)
    finally:
        subprocess.run(["umount", top], check=True)


def used(top: str) -> int:
    os.sync()
    status = os.statvfs(top)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


@pytest.mark.parametrize("kind", ["tmpfs", "xfs"])
def test_trees_are_the_same_there(tmp_path: Path, kind: str) -> None:
    with file_system(kind, tmp_path) as top:

        @given(image=graphs.graphs())
        @settings(max_examples=graphs.examples(4), deadline=None, suppress_health_check=[HealthCheck.too_slow])
        def check(image: ImageModel) -> None:
            place = os.path.join(top, "store")
            os.mkdir(place)
            try:
                store = Store(place)
                for renderer in (OverlayRenderer(), CopyRenderer()):
                    layers = render_model(store, renderer, image)
                    found = trees.stacked(trees.read_tree(layer.path) for layer in layers)
                    check_same(found, graphs.expected(image))
                store.check_layers()
            finally:
                parent = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
                remove_tree(parent, "store")
                os.close(parent)

        check()


@pytest.mark.parametrize(("kind", "shares"), [("xfs", True), ("tmpfs", False)])
def test_copies_share_blocks_where_they_can(tmp_path: Path, kind: str, *, shares: bool) -> None:
    with file_system(kind, tmp_path) as top:
        store = Store(os.path.join(top, "store"))
        content = os.urandom(16 * _MIB)
        node = store.node(plain("example.com/a", trees.tree({"large": file(content)})))
        before = used(top)
        (layer,) = render_node(store, CopyRenderer(), node)
        assert (used(top) - before < _MIB) == shares
        made = Path(layer.path, "large")
        assert made.read_bytes() == content
        assert made.stat().st_ino != Path(node.layers[0].path, "large").stat().st_ino


def use_up_links(path: str, directory: str) -> None:
    for number in itertools.count():
        try:
            os.link(path, os.path.join(directory, str(number)))
        except OSError as error:
            if error.errno != errno.EMLINK:
                raise
            return


@pytest.mark.full
@pytest.mark.parametrize("renderer", [OverlayRenderer(), CopyRenderer()], ids=["overlay", "copy"])
def test_a_file_with_as_many_links_as_it_may_have(tmp_path: Path, renderer: RendererHooks) -> None:
    """32,000 by ext2's driver, 65,000 by ext4's: the next tree has a copy, whose names still share one file."""
    whole = trees.tree({"f": file(b"1", identity=1), "d/g": file(b"1", identity=1), "h": file(b"2")})
    with file_system("ext2", tmp_path) as top:
        store = Store(os.path.join(top, "store"))
        node = store.node(plain("example.com/a", whole, whitelist=("/f", "/d/g", "/h")))
        stored = os.path.join(node.layers[0].path, "f")
        use_up_links(stored, top)
        (layer,) = render_node(store, renderer, node)
        found = trees.read_tree(layer.path)
        assert found == whole
        assert trees.shared_names(found) == {frozenset({"f", "d/g"})}
        linked = os.stat(f"{layer.path}/h").st_ino == os.stat(f"{node.layers[0].path}/h").st_ino
        assert linked == isinstance(renderer, OverlayRenderer), "what can be linked is"
