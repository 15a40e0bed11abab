"""Both renderers show an app the same tree of any graph of images: the one that the specification describes.

The overlay renderer's layers are looked at through the kernel's overlay mount, the copy renderer's tree as it is
(N1 to N5). More examples: ``KURMA_EXAMPLES=2000``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from kurma_render_copy.plugin import CopyRenderer
from kurma_render_overlay.plugin import OverlayRenderer
from kurma_testing import graphs, trees
from kurma_testing.graphs import ImageModel, Store
from kurma_testing.renderers import check_same, render_model

from kurma_core.hookspecs.renderer import RendererHooks
from kurma_core.image_store import ImageStore
from kurma_core.image_store.builder import build_archive
from kurma_core.images.dependencies import Graph
from kurma_core.images.trust_policy import TrustPolicy
from kurma_core.linux import mounts
from kurma_core.models.image import ImageRecord, Provenance, RenderedLayer
from kurma_core.rendering import render
from kurma_core.trees.overlay import mount_overlay

pytestmark = pytest.mark.root

_NOT_TOO_LONG = (HealthCheck.too_slow, HealthCheck.data_too_large)
_TRUSTING = TrustPolicy(dict.fromkeys(("named", "https", "http", "docker", "file"), "any"))


@contextmanager
def mounted(layers: tuple[RenderedLayer, ...]) -> Iterator[str]:
    """The layers as a stager stacks them, with an upper directory for the app's changes; its path."""
    with tempfile.TemporaryDirectory() as place:
        target, upper, work = (os.path.join(place, name) for name in ("mounted", "upper", "work"))
        for path in (target, upper, work):
            os.mkdir(path)
        looks = os.stat(layers[0].path)
        os.chown(upper, looks.st_uid, looks.st_gid)
        os.chmod(upper, looks.st_mode & 0o7777)
        fd = mount_overlay([layer.path for layer in layers], upper, work)
        try:
            mounts.move_mount_to(fd, target)
        finally:
            os.close(fd)
        try:
            yield target
        finally:
            mounts.umount(target, mounts.MNT_DETACH)


def seen(layers: tuple[RenderedLayer, ...]) -> dict[str, trees.Entry]:
    """What an app sees. The root directory is the stager's: its looks are the upper directory's."""
    with mounted(layers) as top:
        found = trees.read_tree(top)
    return {**found, "": trees.read_tree(layers[0].path)[""]}


def check_agreement(store: Store, image: ImageModel) -> dict[str, trees.Entry]:
    stack = render_model(store, OverlayRenderer(), image)
    (flat,) = render_model(store, CopyRenderer(), image)
    shown = seen(stack)
    copied = trees.read_tree(flat.path)
    assert shown == copied
    wanted = graphs.expected(image)
    check_same(shown, wanted)
    check_same(copied, wanted)
    store.check_layers()
    return shown


@given(image=graphs.graphs())
@settings(max_examples=graphs.examples(12), deadline=None, suppress_health_check=_NOT_TOO_LONG)
def test_any_graph(image: ImageModel) -> None:
    with tempfile.TemporaryDirectory() as place:
        check_agreement(Store(place), image)


# --- from archives, through the store ----------------------------------------------------------------------------


class Archived:
    """Images of a model, built as archives, in a real store."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.store = ImageStore(f"{directory}/images")
        self._records: dict[str, ImageRecord] = {}

    def record(self, image: ImageModel) -> ImageRecord:
        if image.name not in self._records:
            self._records[image.name] = self._stored(image)
        return self._records[image.name]

    def _stored(self, image: ImageModel) -> ImageRecord:
        dependencies = []
        for one in image.dependencies:
            root = {"kurma.io/root": one.root} if one.root != "/" else {}
            dependencies.append({"imageName": one.name, "imageID": self.record(one).id, **root})
        # A manifest is Unicode text: it cannot name a file whose name is none.
        listed = [path for path in image.whitelist if "\udcff" not in path]
        assert len(listed) == len(image.whitelist), "the model says what the archive cannot"
        manifest = {
            "acKind": "ImageManifest",
            "acVersion": "0.8.11",
            "name": image.name,
            "dependencies": dependencies,
            "pathWhitelist": listed,
        }
        number = len(self._records)
        rootfs, archive = f"{self.directory}/rootfs{number}", f"{self.directory}/{number}.aci"
        os.mkdir(rootfs)
        trees.write_tree(image.layers[0].tree, rootfs)
        with open(archive, "wb") as out:
            build_archive(rootfs, manifest, out)
        with open(archive, "rb") as stream, self.store.stage_archive(stream) as staged:
            return staged.commit(Provenance(locator=archive, fetched_at="2026-01-02T03:04:05Z", trust="local"))

    def render(self, image: ImageModel, renderer: RendererHooks) -> tuple[RenderedLayer, ...]:
        graph = Graph(self.store, _TRUSTING)
        node = graph.node(self.record(image).id)
        rendered = render(node, renderer, self.store.cache, graph.manifests)
        for layer in rendered.layers:
            # N4: an image keeps its manifest; what is made of several has the whole image's.
            own = layer.id if layer.id in graph.manifests else node.id
            assert rendered.manifests[layer.id] == graph.manifests[own]
        return rendered.layers

    def verify(self) -> None:
        for ident in (*self.store.ids(), *os.listdir(self.store.path("trees"))):
            self.store.verify(ident, deep=True)


def sayable(image: ImageModel) -> ImageModel:
    """``image`` without the whitelisted paths that JSON cannot say."""
    return replace(
        image,
        whitelist=tuple(path for path in image.whitelist if "\udcff" not in path),
        dependencies=tuple(sayable(one) for one in image.dependencies),
    )


@given(image=graphs.graphs(archives=True).map(sayable))
@settings(max_examples=graphs.examples(6), deadline=None, suppress_health_check=_NOT_TOO_LONG)
def test_any_graph_of_archives(image: ImageModel) -> None:
    """Built, read in, extracted, rendered, mounted; and after it every file is as its archive says."""
    with tempfile.TemporaryDirectory() as place:
        archived = Archived(place)
        stack = archived.render(image, OverlayRenderer())
        (flat,) = archived.render(image, CopyRenderer())
        shown = seen(stack)
        assert shown == trees.read_tree(flat.path)
        check_same(shown, graphs.expected(image))
        archived.verify()
