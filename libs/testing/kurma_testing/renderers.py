"""The contract suite for renderers (:class:`kurma_core.hookspecs.renderer.RendererHooks`), to be subclassed.

.. code-block:: python

    @pytest.mark.kurma_driver(my_plugin)
    class TestMyRenderer(RendererContract):
        pass

Needs pytest and hypothesis. As root it checks owners, devices and file capabilities too.
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kurma_core.errors import RenderError
from kurma_core.linux.beneath import remove_tree
from kurma_core.models.image import RenderedLayer
from kurma_testing import graphs, trees
from kurma_testing.contract import DriverContract, cancelled, cancelled_midway, nothing_left_open
from kurma_testing.graphs import ImageModel, LayerModel, Store, plain
from kurma_testing.trees import Entry, directory, file, link

if TYPE_CHECKING:
    from kurma_core.hookspecs.renderer import ImageNode, RendererHooks

_MANY = settings(
    # CI sets KURMA_EXAMPLES for more examples.
    max_examples=graphs.examples(20),
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,  # the renderer keeps no state
        HealthCheck.differing_executors,  # subclasses inherit the tests
        HealthCheck.too_slow,
    ],
)


def render_model(store: Store, renderer: RendererHooks, image: ImageModel) -> tuple[RenderedLayer, ...]:
    """Render ``image`` in ``store``."""
    return render_node(store, renderer, store.node(image))


def render_node(store: Store, renderer: RendererHooks, node: ImageNode) -> tuple[RenderedLayer, ...]:
    """Renders an image, and checks the layers as the core does: each must be a directory of the store, occur once,
    and have its own ID."""
    layers = renderer.render(node, store)
    allowed = set(store.given)
    todo = [node]
    while todo:
        one = todo.pop()
        todo += one.dependencies
        if len(one.layers) == 1:
            allowed.add(RenderedLayer(one.id, one.layers[0].path))
    assert layers
    assert allowed.issuperset(layers), "a layer is an image's only one under its ID, or a tree of the cache"
    assert len({layer.id for layer in layers}) == len({layer.path for layer in layers}) == len(layers)
    assert all(os.path.isdir(layer.path) for layer in layers)
    return layers


def check_same(found: trees.Tree, wanted: trees.Tree) -> None:
    """Checks that two trees are equal: in all entries with all their attributes, and in the names that share a
    file.

    If one layer is applied at two places, names of the two places may share a file or not.

    :raises AssertionError: they differ.
    """
    assert dict(found) == dict(wanted)
    shared = trees.shared_names(found)
    assert all(any(names <= more for more in shared) for names in trees.shared_names(wanted))
    for names in shared:
        assert len({graphs.stored_identity(wanted[path]) for path in names}) == 1, f"{names} must not share a file"


class RendererContract(DriverContract):
    """Subclasses have the mark ``kurma_driver``."""

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        # not tmp_path: pytest's clean-up fails on very deep trees
        place = tempfile.mkdtemp()
        yield Store(place)
        parent = os.open(os.path.dirname(place), os.O_RDONLY | os.O_DIRECTORY)
        remove_tree(parent, os.path.basename(place))
        os.close(parent)

    def check(self, store: Store, driver: RendererHooks, image: ImageModel) -> dict[str, Entry]:
        """Renders ``image`` twice, compares the tree with the model, and returns it, as a stager would see it."""
        layers = render_model(store, driver, image)
        found = trees.stacked(trees.read_tree(layer.path) for layer in layers)
        check_same(found, graphs.expected(image))
        store.check_layers()
        built = store.built
        assert render_model(store, driver, image) == layers
        assert store.built == built, "a rendered tree is made once"
        return found

    @given(image=st.data())
    @_MANY
    def test_any_graph(self, driver: RendererHooks, image: st.DataObject) -> None:
        with tempfile.TemporaryDirectory() as place:
            self.check(Store(place), driver, image.draw(graphs.graphs()))

    def test_plain_image(self, store: Store, driver: RendererHooks) -> None:
        self.check(store, driver, plain("example.com/a", trees.tree({"bin/sh": file(b"x", mode=0o4755)})))

    def test_order_is_depth_first_in_listed_order(self, store: Store, driver: RendererHooks) -> None:
        """N1: A → [B, C], C → [D] overrides in the order B, D, C, A."""
        names = {"d": "dca", "c": "ca", "a": "a", "b": "bdca"}
        image = {
            name: trees.tree({f"over-{other}": file(name.encode()) for other in "abcd" if name in names[other]})
            for name in "abcd"
        }
        d = plain("example.com/d", image["d"])
        c = plain("example.com/c", image["c"], d)
        b = plain("example.com/b", image["b"])
        found = self.check(store, driver, plain("example.com/a", image["a"], b, c))
        assert {path: found[path].content for path in found if path} == {f"over-{one}": b"a" for one in "abcd"}
        found = self.check(store, driver, ImageModel("example.com/e", (), (b, c)))
        assert found["over-b"].content == b"c"
        assert found["over-d"].content == b"c"

    def test_shared_dependency_is_applied_where_it_occurs(self, store: Store, driver: RendererHooks) -> None:
        """The order is D, B, D, C, A: D through B brings one file only, D through C all; C's files win over
        B's."""
        d = plain("example.com/d", trees.tree({"one": file(b"d"), "two": file(b"d")}))
        b = plain("example.com/b", trees.tree({"one": file(b"b"), "three": file(b"b")}), d, whitelist=("/one",))
        c = plain("example.com/c", trees.tree({"four": file(b"c")}), d, whitelist=("/two", "/four"))
        found = self.check(store, driver, plain("example.com/a", trees.tree(), b, c))
        assert {path: found[path].content for path in found if path} == {"one": b"b", "two": b"d", "four": b"c"}

    def test_link_in_the_way_is_replaced_never_followed(
        self, store: Store, driver: RendererHooks, tmp_path: Path
    ) -> None:
        """N2: links of a lower image are replaced, so no file is written at their targets, inside or outside."""
        outside = tmp_path / "outside"
        outside.mkdir()
        below = plain(
            "example.com/below",
            trees.tree({"etc": link(str(outside)), "lib": link("usr/lib"), "usr/lib/x": file(b"x")}),
        )
        top = plain("example.com/top", trees.tree({"etc/passwd": file(b"root"), "lib/y": file(b"y")}), below)
        filtered = ImageModel(
            "example.com/f", top.layers, top.dependencies, ("/etc/passwd", "/lib/y", "/usr/lib/x")
        )
        for image in (top, filtered):
            found = self.check(store, driver, image)
            assert found["etc"].kind == found["lib"].kind == "d"
        assert list(outside.iterdir()) == []

    def test_whitelist_keeps_implied_directories(self, store: Store, driver: RendererHooks) -> None:
        """N3: they keep the owner, mode, times and attributes of the image; an empty whitelist filters nothing."""
        looks = directory(mode=0o700, mtime=7, xattrs=(("user.k", b"v"),))
        content = {
            "etc": looks,
            "etc/ssl": looks,
            "etc/ssl/ca": file(b"1"),
            "etc/ssl/key": file(b"2"),
            "srv": looks,
        }
        found = self.check(
            store, driver, plain("example.com/a", trees.tree(content), whitelist=("/etc/ssl/ca", "/srv"))
        )
        assert sorted(found) == ["", "etc", "etc/ssl", "etc/ssl/ca", "srv"]
        assert found["etc"] == found["srv"] == looks

    def test_dependency_at_a_root_of_its_own(self, store: Store, driver: RendererHooks) -> None:
        """An early document's ``root``: the dependency's own whitelist is relative to it."""
        libs = ImageModel(
            "example.com/libs",
            (LayerModel("libs", trees.tree({"x.so": file(b"x"), "y.so": file(b"y")})),),
            whitelist=("/x.so",),
            root="/opt/libs",
        )
        found = self.check(store, driver, plain("example.com/a", trees.tree({"bin": directory()}), libs))
        assert found["opt/libs/x.so"].content == b"x"
        assert "opt/libs/y.so" not in found
        assert (found["opt"].mode, found["opt"].mtime) == (0o755, 0)

    def test_way_to_a_root_inherits_nothing(self, store: Store, driver: RendererHooks) -> None:
        """The directories on the way to a root are plain, also below a set-group-ID directory."""
        below = trees.tree({"opt": directory(mode=0o2775, gid=1000 if os.geteuid() == 0 else os.getegid())})
        libs = ImageModel("example.com/libs", (LayerModel("libs", trees.tree({"x": file()})),), root="/opt/a/libs")
        image = ImageModel("example.com/top", (), (plain("example.com/below", below), libs))
        found = self.check(store, driver, image)
        assert found["opt"] == below["opt"]
        assert found["opt/a"] == directory(mtime=0)

    def test_root_deeper_than_can_be_made(self, store: Store, driver: RendererHooks) -> None:
        libs = ImageModel("example.com/libs", (LayerModel("libs", trees.tree()),), root="/a" * 200)
        with pytest.raises(OSError, match="name too long"):
            render_model(store, driver, plain("example.com/top", trees.tree(), libs))

    def test_layers_and_whiteouts_become_one_tree(self, store: Store, driver: RendererHooks) -> None:
        """R2: a layer removes and re-creates a path; the stager gets one tree without whiteouts."""
        first = trees.tree(
            {"keep": file(b"1"), "gone": file(b"1"), "again/old": file(b"1"), "hidden/old": file(b"1")}
        )
        second = trees.tree({"again/new": file(b"2"), "hidden/new": file(b"2")})
        image = ImageModel(
            "example.com/layered",
            (
                LayerModel("first", first),
                LayerModel("second", second, removed=("gone", "again", "never/there"), opaque=("hidden",)),
            ),
        )
        found = self.check(store, driver, image)
        assert sorted(found) == ["", "again", "again/new", "hidden", "hidden/new", "keep"]
        assert len(render_model(store, driver, image)) == 1

    def test_whiteouts_hide_nothing_of_other_images(self, store: Store, driver: RendererHooks) -> None:
        base = plain("example.com/base", trees.tree({"shared": file(b"base")}))
        docker = ImageModel(
            "example.com/layered",
            (
                LayerModel("l1", trees.tree({"shared": file(b"1")})),
                LayerModel("l2", trees.tree(), removed=("shared",)),
            ),
        )
        found = self.check(store, driver, plain("example.com/a", trees.tree(), base, docker))
        assert found["shared"].content == b"base"

    def test_implied_directory_keeps_the_looks_of_the_one_below(self, store: Store, driver: RendererHooks) -> None:
        """A layer with only ``var/tmp/f`` in its archive does not change owner, mode and times of ``var/tmp``."""
        sticky = directory(mode=0o1777, mtime=5, xattrs=(("user.k", b"v"),))
        below = trees.tree({"var": directory(mode=0o700), "var/tmp": sticky, "etc": file()})
        above = LayerModel(
            "above", trees.tree({"var/tmp/f": file(), "etc/g": file()}), implied=("", "var", "var/tmp", "etc")
        )
        docker = ImageModel("example.com/d", (LayerModel("below", below), above))
        stack = ImageModel("example.com/s", (above,), (plain("example.com/below", below),))
        for image in (docker, stack):
            found = self.check(store, driver, image)
            assert found["var/tmp"] == sticky
            assert found["var"].mode == 0o700
            assert found["etc"].kind == "d"
        found = self.check(store, driver, ImageModel("example.com/o", (above,)))
        assert found == above.tree

    def test_default_acl_marks_nothing(self, store: Store, driver: RendererHooks) -> None:
        """A directory's default ACL is kept, and files that are put into the directory do not inherit it."""
        entry = struct.Struct("<HHI")
        acl = struct.pack("<I", 2) + b"".join(
            entry.pack(tag, perm, who)
            for tag, perm, who in (
                (1, 7, 2**32 - 1),
                (2, 7, 1),
                (4, 5, 2**32 - 1),
                (16, 7, 2**32 - 1),
                (32, 5, 2**32 - 1),
            )
        )
        looks = directory(xattrs=(("system.posix_acl_default", acl),))
        below = plain("example.com/below", trees.tree({"d": looks, "d/f": file(b"1"), "d/e": directory()}))
        above = trees.tree({"d": looks, "d/g": file(b"2"), "d/h/i": file(b"3")})
        self.check(
            store, driver, plain("example.com/a", above, below, whitelist=("/d/f", "/d/e", "/d/g", "/d/h/i"))
        )

    def test_sparse_file_stays_small(self, store: Store, driver: RendererHooks) -> None:
        node = store.node(plain("example.com/a", trees.tree({"image": file()}), whitelist=("/image",)))
        with open(os.path.join(node.layers[0].path, "image"), "r+b") as out:
            out.truncate(1 << 30)
            out.seek(1 << 29)
            out.write(b"data")
        (layer,) = render_node(store, driver, node)
        status = os.stat(os.path.join(layer.path, "image"))
        assert status.st_size == 1 << 30
        assert status.st_blocks * 512 < 1 << 20
        with open(os.path.join(layer.path, "image"), "rb") as made:
            made.seek(1 << 29)
            assert made.read(6) == b"data\0\0"

    def test_deep_tree(self, store: Store, driver: RendererHooks) -> None:
        """A tree deeper than the limits of path length and of open descriptors."""
        depth = 3000
        image = ImageModel(
            "example.com/deep",
            (LayerModel("first", trees.tree({"x": file()})), LayerModel("second", trees.tree({"y": file()}))),
        )
        node = store.node(image)
        fd = os.open(node.layers[1].path, os.O_RDONLY | os.O_DIRECTORY)
        for _ in range(depth):
            os.mkdir("directory", dir_fd=fd)
            below = os.open("directory", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = below
        os.symlink("target", "bottom", dir_fd=fd)
        os.close(fd)
        (layer,) = render_node(store, driver, node)
        fd = os.open(layer.path, os.O_RDONLY | os.O_DIRECTORY)
        for _ in range(depth):
            below = os.open("directory", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = below
        assert os.readlink("bottom", dir_fd=fd) == "target"
        os.close(fd)

    def test_more_images_than_a_mount_takes(self, store: Store, driver: RendererHooks) -> None:
        below = [
            plain(f"example.com/n{n}", trees.tree({f"f{n}": file(), "last": file(b"%d" % n)})) for n in range(140)
        ]
        image = plain("example.com/a", trees.tree(), *below)
        found = self.check(store, driver, image)
        assert found["last"].content == b"139"
        assert len(render_model(store, driver, image)) <= 100

    def test_hostile_names(self, store: Store, driver: RendererHooks) -> None:
        """Names of files are bytes, as an archive's author chose them."""
        names = ("a\nb", "\x1b[31m", "-rf", " ", "~", "$(id)", "\udcff\udcfe", "%s", "a" * 255, ".wh", "...")
        below = plain("example.com/below", trees.tree({f"d/{name}": file(b"1") for name in names}))
        above = trees.tree({f"d/{name}/f": file(b"2") for name in names[:5]})
        found = self.check(store, driver, plain("example.com/a", above, below))
        assert {path for path in found if path.startswith("d/") and path.count("/") == 1} == {
            f"d/{name}" for name in names
        }

    def test_a_cancelled_operation_ends(self, store: Store, driver: RendererHooks) -> None:
        """By Cancelled, or as ever; afterwards the image can be rendered."""
        image = plain(
            "example.com/a", trees.tree({"f": file(b"1")}), plain("example.com/b", trees.tree({"g": file()}))
        )
        with cancelled():
            driver.render(store.node(image), store)
        self.check(store, driver, image)
        with nothing_left_open(), cancelled():
            driver.render(store.node(image), store)

    def test_it_can_be_cancelled_at_any_point(self, store: Store, driver: RendererHooks) -> None:
        """Afterwards the image can be rendered."""
        tried: list[ImageModel] = []

        def render() -> None:
            number = len(tried)
            below = plain(f"example.com/b{number}", trees.tree({"g": file(b"1"), "h": file(b"2")}))
            tried.append(plain(f"example.com/a{number}", trees.tree({"f": file(b"1"), "g": file()}), below))
            driver.render(store.node(tried[-1]), store)

        cancelled_midway(render, lambda: self.check(store, driver, tried[-1]))

    def test_image_without_layers(self, store: Store, driver: RendererHooks) -> None:
        (layer,) = render_model(store, driver, ImageModel("example.com/nothing", ()))
        assert trees.read_tree(layer.path) == {"": directory(mtime=0)}

    def test_image_that_depends_on_itself(self, store: Store, driver: RendererHooks) -> None:
        inner = plain("example.com/a", trees.tree())
        with pytest.raises(RenderError, match="depends on itself"):
            driver.render(store.node(plain("example.com/a", trees.tree(), inner)), store)

    def test_graph_without_bounds(self, store: Store, driver: RendererHooks) -> None:
        """Few images, each listed twice by the next: 2**60 applications."""
        node = store.node(plain("example.com/n", trees.tree()))
        for number in range(60):
            node = type(node)(f"n{number}", node.manifest, node.layers, (node, node))
        with pytest.raises(RenderError, match="more than"):
            driver.render(node, store)
