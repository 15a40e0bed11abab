"""Image graphs as values, for tests of renderers: made by hand or by hypothesis, written to disk, merged in
memory."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from kurma_core.appc.image import ImageManifest
from kurma_core.hookspecs.renderer import ImageLayer, ImageNode
from kurma_core.models.image import RenderedLayer
from kurma_testing import trees
from kurma_testing.trees import Entry, Keep, Tree


@dataclass(frozen=True)
class LayerModel:
    """One layer: its name, its tree, the paths that it removes from lower layers of its image, and the directories
    without an entry of their own in its archive."""

    name: str
    tree: Tree
    removed: tuple[str, ...] = ()
    opaque: tuple[str, ...] = ()
    implied: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImageModel:
    """One image: ``root`` is its directory in the tree of the image that depends on it."""

    name: str
    layers: tuple[LayerModel, ...]
    dependencies: tuple[ImageModel, ...] = ()
    whitelist: tuple[str, ...] = ()
    root: str = "/"

    @property
    def id(self) -> str:
        return "sha512-" + hashlib.sha512(self.name.encode()).hexdigest()


def plain(name: str, tree: Tree, *dependencies: ImageModel, whitelist: tuple[str, ...] = ()) -> ImageModel:
    """An image of one layer."""
    return ImageModel(name, (LayerModel(name, tree),), dependencies, whitelist)


class Store:
    """Layers and rendered trees below one directory: a renderer's surroundings, without the image store."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.built = 0
        self.given: list[RenderedLayer] = []
        self.layers: dict[str, LayerModel] = {}
        for name in ("layers", "trees"):
            os.makedirs(os.path.join(directory, name))

    def node(self, image: ImageModel) -> ImageNode:
        """Writes the layers of ``image`` to disk, and returns it in the form for a renderer."""
        return ImageNode(
            image.id,
            ImageManifest(image.name, path_whitelist=image.whitelist),
            tuple(
                ImageLayer(layer.name, self._path(layer), layer.removed, layer.opaque, layer.implied)
                for layer in image.layers
            ),
            tuple(self.node(dependency) for dependency in image.dependencies),
            image.root,
        )

    def _path(self, layer: LayerModel) -> str:
        path = os.path.join(self.directory, "layers", layer.name.replace("/", "_"))
        if layer.name not in self.layers:
            os.mkdir(path)
            trees.write_tree(layer.tree, path)
            self.layers[layer.name] = layer
        return path

    def tree(self, key: str, build: Callable[[str], None]) -> RenderedLayer:
        """Implements :class:`kurma_core.hookspecs.renderer.RenderCache`."""
        identifier = "sha512-" + hashlib.sha512(key.encode()).hexdigest()
        path = os.path.join(self.directory, "trees", identifier)
        if not os.path.isdir(path):
            self.built += 1
            os.mkdir(path + ".new", 0o755)
            try:
                build(path + ".new")
            except BaseException:  # of a build that was cancelled nothing stays, as in the core's store
                shutil.rmtree(path + ".new")
                raise
            os.rename(path + ".new", path)
        self.given.append(RenderedLayer(identifier, path))
        return self.given[-1]

    def check_layers(self) -> None:
        """Checks that the stored layers are unchanged. :raises AssertionError: one has changed."""
        for layer in self.layers.values():
            found = trees.read_tree(self._path(layer))
            assert found == layer.tree, f"layer {layer.name} of the store was changed"
            assert trees.shared_names(found) == trees.shared_names(layer.tree)


def examples(usually: int) -> int:
    """Returns the number of examples of a hypothesis test: ``KURMA_EXAMPLES``, or ``usually`` if that is unset."""
    return int(os.environ.get("KURMA_EXAMPLES") or usually)


def expected(image: ImageModel) -> dict[str, Entry]:
    """Renders ``image`` in memory by the specification's rules."""
    whole: dict[str, Entry] = {}
    _lay_image(whole, image, "", ())
    whole.setdefault("", Entry("d", trees.IMPLIED_MODE, mtime=0))  # for a graph without layers
    return whole


def stored_identity(entry: Entry) -> object:
    """Returns the identity of the layer's file from which an entry of :func:`expected` was made."""
    return entry.identity[1] if isinstance(entry.identity, tuple) else entry


def _lay_image(whole: dict[str, Entry], image: ImageModel, root: str, keeps: tuple[Keep, ...]) -> None:
    if image.whitelist:
        keeps = (*keeps, _whitelisted(image.whitelist, root))
    for dependency in image.dependencies:
        _lay_image(whole, dependency, "/".join((root, dependency.root)).replace("//", "/").strip("/"), keeps)
    here = object()  # names share a file only within one application of the image
    own = {
        path: replace(entry, identity=(here, entry.identity)) if entry.identity is not None else entry
        for path, entry in _own_tree(image).items()
    }
    if own:
        implied = image.layers[0].implied if len(image.layers) == 1 else ()
        trees.lay(
            whole, own, root, lambda path, is_directory: all(keep(path, is_directory) for keep in keeps), implied
        )


def _whitelisted(whitelist: tuple[str, ...], root: str) -> Keep:
    listed = [f"{root}{path}".strip("/") for path in whitelist] + [root]

    def keep(path: str, is_directory: bool) -> bool:
        return any(
            path == one or (is_directory and f"{one}/".startswith(f"{path}/" if path else "")) for one in listed
        )

    return keep


def _own_tree(image: ImageModel) -> dict[str, Entry]:
    """Merges an image's own layers to one tree."""
    whole: dict[str, Entry] = {}
    for layer in image.layers:
        for path in layer.opaque:
            if whole.get(path, trees.file()).kind == "d":
                for one in [one for one in whole if one.startswith(f"{path}/" if path else "") and one != path]:
                    del whole[one]
        for path in layer.removed:
            trees.remove(whole, path)
        trees.lay(whole, layer.tree, implied=layer.implied)
    return whole


# --- strategies ------------------------------------------------------------------------------------------------

_ROOT = os.geteuid() == 0
_OWNERS = st.sampled_from((0, 1000, 2**21 + 5)) if _ROOT else st.just(os.geteuid())
_MODES = st.sampled_from((0o755, 0o644, 0o700, 0o4755, 0o2775, 0o1777, 0o400, 0o000 if _ROOT else 0o500))
#: From 1936 to 2106.
_TIMES = st.integers(-(2**30) * 10**9, 2**32 * 10**9)
_NAMES = st.sampled_from(("a", "b", "c", "Ω" * 127, "\udcff\n"))
_PATHS = st.lists(_NAMES, min_size=1, max_size=4).map("/".join)
_TARGETS = st.sampled_from((b"a", b"../b", b"/", b"/a/b", b".", b"nowhere"))
# version 2, effective, CAP_NET_RAW permitted
_CAPABILITY = bytes.fromhex("0100000200200000000000000000000000000000")
_ATTRIBUTES = st.dictionaries(st.sampled_from(("user.one", "user.two")), st.binary(max_size=20), max_size=2)
_ROOTS = ("/", "/", "/", "/a", "/b/c/", "/a/b/a")
_DEVICES = {"b": os.makedev(7, 300), "c": os.makedev(1, 3)}


@st.composite
def _entries(draw: st.DrawFn, serial: list[int]) -> Entry:
    kinds = "ddffffllp" + ("bc" if _ROOT else "")
    kind = draw(st.sampled_from(kinds))
    entry = Entry(kind, draw(_MODES), draw(_OWNERS), draw(_OWNERS) if _ROOT else os.getegid(), draw(_TIMES))
    attributes = draw(_ATTRIBUTES) if kind in "df" else {}
    if _ROOT and kind in "df" and draw(st.booleans()):
        attributes["trusted.one"] = b"1"
    if _ROOT and kind == "f" and draw(st.booleans()):
        attributes["security.capability"] = _CAPABILITY
    entry = replace(entry, xattrs=tuple(sorted(attributes.items())), rdev=_DEVICES.get(kind, 0))
    if kind == "d":
        return entry
    serial[0] += 1
    entry = replace(entry, identity=serial[0])
    if kind == "l":
        marks = (("trusted.one", b"1"),) if _ROOT and draw(st.booleans()) else ()
        return replace(entry, mode=0o777, content=draw(_TARGETS), xattrs=marks)
    return replace(entry, content=draw(st.binary(max_size=8))) if kind == "f" else entry


@st.composite
def layer_trees(draw: st.DrawFn, serial: list[int]) -> dict[str, Entry]:
    """Draws a small tree with few names, so that trees overlap; some names share a file, a link, or a device."""
    whole: dict[str, Entry] = {"": replace(Entry("d"), mode=draw(_MODES), mtime=draw(_TIMES))}
    for path in draw(st.lists(_PATHS, max_size=8)):
        ways = trees.parents(path)
        if path in whole or any(whole.get(way, trees.directory()).kind != "d" for way in ways):
            continue
        for way in ways:
            looks = replace(trees.directory(), mode=draw(_MODES), uid=draw(_OWNERS), mtime=draw(_TIMES))
            whole.setdefault(way, looks)
        files = [entry for entry in whole.values() if entry.kind != "d"]
        if files and draw(st.integers(0, 3)) == 0:
            whole[path] = draw(st.sampled_from(files))
        else:
            whole[path] = draw(_entries(serial))
    return whole


@st.composite
def graphs(draw: st.DrawFn, *, stacks: bool = False, archives: bool = False) -> ImageModel:
    """Draws an image with dependencies: some shared, filtered, moved, empty, or of several layers.

    :param stacks: only graphs whose layers can be stacked.
    :param archives: only graphs of App Container archives: one layer for each image, without removed paths.
    """
    serial = [0]
    layers: list[LayerModel] = []
    one_each = stacks or archives
    for number in range(draw(st.integers(1, 4))):
        whole = draw(layer_trees(serial))
        directories = sorted(path for path, entry in whole.items() if entry.kind == "d")
        lower = sorted({path for layer in layers for path in layer.tree if path})
        met = st.one_of(_PATHS, st.sampled_from(lower)) if lower else _PATHS
        layers.append(
            LayerModel(
                f"layer{number}",
                whole,
                () if archives else tuple(draw(st.lists(met, max_size=2))),
                () if archives else tuple(draw(st.lists(st.one_of(met, st.just("")), max_size=1))),
                () if one_each else tuple(draw(st.lists(st.sampled_from(directories), max_size=2, unique=True))),
            )
        )
    everything = sorted({path for layer in layers for path in layer.tree if path})
    listed = st.one_of(_PATHS, *[st.sampled_from(everything)] if everything else [])
    listed = st.one_of(listed.map("/{}".format), listed.map("/{}/".format), listed.map("/a/b/a/{}".format))
    whitelists = st.one_of(st.just([]), st.lists(listed, max_size=6))
    images: list[ImageModel] = []
    for number in range(draw(st.integers(1, 5))):
        below = draw(st.lists(st.sampled_from(images), min_size=1, max_size=3)) if images else []
        own = draw(
            st.lists(
                st.sampled_from(layers),
                min_size=1 if one_each else 0,
                max_size=1 if one_each else 3,
                unique_by=lambda layer: layer.name,
            )
        )
        images.append(
            ImageModel(
                f"example.com/image{number}",
                tuple(own),
                tuple(replace(one, root=draw(st.sampled_from(("/",) if stacks else _ROOTS))) for one in below),
                () if stacks else tuple(draw(whitelists)),
            )
        )
    return images[-1]
