"""The order in which images are laid down, and the filters over them, as values."""

from __future__ import annotations

import json

import pytest

from kurma_core.appc import layering
from kurma_core.appc.image import ImageManifest
from kurma_core.errors import RenderError
from kurma_core.hookspecs.renderer import ImageLayer, ImageNode


def node(name: str, *below: ImageNode, whitelist: tuple[str, ...] = (), root: str = "/") -> ImageNode:
    manifest = ImageManifest(f"example.com/{name}", path_whitelist=whitelist)
    return ImageNode(name, manifest, (ImageLayer(name, f"/layers/{name}"),), below, root)


def order(image: ImageNode) -> list[str]:
    return [one.image for one in layering.applications(image)]


def test_depth_first_in_listed_order() -> None:
    """N1, the first example of the specification."""
    assert order(node("a", node("b"), node("c", node("d")))) == ["b", "d", "c", "a"]


def test_depth_first_three_deep() -> None:
    """N1: D, C, E, B before D, C, F, A by the letter; of what is laid down twice, the later one decides."""
    c = node("c", node("d"))
    assert order(node("a", node("b", c, node("e")), node("f", c))) == ["e", "b", "d", "c", "f", "a"]
    narrow = ImageNode("b", ImageManifest("example.com/b", path_whitelist=("/x",)), (ImageLayer("b", "/b"),), (c,))
    assert order(node("a", narrow, node("e"), node("f", c))) == ["d", "c", "b", "e", "d", "c", "f", "a"]


def test_an_earlier_repeat_with_the_same_filter_is_dropped() -> None:
    """N4: D, B, D, C, A; what the first D lays down the second replaces."""
    d = node("d")
    assert order(node("a", node("b", d), node("c", d))) == ["b", "d", "c", "a"]


def test_repeats_with_different_filters_stay() -> None:
    d = node("d")
    image = node("a", node("b", d, whitelist=("/x", "/z")), node("c", d, whitelist=("/y", "/z")))
    assert order(image) == ["d", "b", "d", "c", "a"]
    first, _, second, _, _ = layering.applications(image)
    assert first.filter is not None
    assert second.filter is not None
    assert first.filter.paths == {"", "x", "z"}
    assert second.filter.paths == {"", "y", "z"}


def test_one_layer_under_two_image_ids_is_one() -> None:
    """The same directory twice in a stack is refused by the kernel; the upper name stays."""
    twin = ImageNode("twin", ImageManifest("example.com/twin"), (ImageLayer("b", "/layers/b"),))
    assert order(node("a", node("b"), twin)) == ["twin", "a"]


def test_what_leaves_looks_to_others_is_not_dropped() -> None:
    """Nor stacked on anything: a union mount would show its own looks."""
    d = ImageNode("d", ImageManifest("example.com/d"), (ImageLayer("d", "/layers/d", implied=("x",)),))
    assert order(node("a", node("b", d), d)) == ["d", "b", "d", "a"]
    assert layering.stackable(layering.applications(node("a", d)))
    assert not layering.stackable(layering.applications(node("a", node("b"), d)))


def test_filters_of_all_ancestors_hold() -> None:
    """N3: with the directories that lead to what is listed."""
    bottom = node("c", whitelist=("/a/b/1", "/a/b/2"))
    image = node("a", node("b", bottom, whitelist=("/a/b/2", "/a/b/3")), whitelist=("/a/b/2", "/a/", "/q"))
    first = layering.applications(image)[0]
    assert first.filter == layering.Filter(frozenset({"", "a/b/2"}), frozenset({"", "a", "a/b", "a/b/2"}))


def test_an_empty_whitelist_is_none() -> None:
    (only,) = layering.applications(node("a"))
    assert only.filter is None
    assert only.plain


def test_roots_add_up_and_whitelists_are_meant_from_their_own() -> None:
    inner = node("c", whitelist=("/x",), root="/lib/")
    image = node("a", node("b", inner, root="/opt"))
    first = layering.applications(image)[0]
    assert first.root == "opt/lib"
    assert first.filter is not None
    assert first.filter.paths == {"opt/lib", "opt/lib/x"}
    assert not first.plain


def test_a_path_that_leads_upwards_is_refused() -> None:
    with pytest.raises(RenderError, match="leads upwards"):
        layering.applications(node("a", node("b", root="/../x")))


def test_an_image_that_depends_on_itself() -> None:
    with pytest.raises(RenderError, match="image a depends on itself"):
        layering.applications(node("a", node("b", node("a"))))


def test_limits() -> None:
    image = node("n0")
    for number in range(1, 80):
        image = node(f"n{number}", image)
    with pytest.raises(RenderError, match="more than 64 levels deep"):
        layering.applications(image)
    assert len(layering.applications(image, most_deep=80)) == 80
    assert len(layering.applications(node("a", *(node(f"m{number}") for number in range(999))))) == 1000
    with pytest.raises(RenderError, match="more than 1000 images"):
        layering.applications(node("a", *(node(f"m{number}") for number in range(1000))))


def test_the_key_of_a_tree_says_wholly_what_makes_it() -> None:
    def key(image: ImageNode, kind: str = "links") -> str:
        return layering.tree_key(kind, layering.applications(image))

    layers = (ImageLayer("l1", "/l1"), ImageLayer("l2", "/l2", removed=("x",)))
    docker = ImageNode("d", ImageManifest("example.com/d"), layers)
    other = ImageNode("d", ImageManifest("example.com/d"), layers[::-1])
    opaque = ImageNode("d", docker.manifest, (layers[0], ImageLayer("l2", "/l2", removed=("x",), opaque=("y",))))
    images = [
        docker,
        other,
        opaque,
        ImageNode("d", docker.manifest, (layers[0], ImageLayer("l2", "/l2", removed=("x",), implied=("y",)))),
        node("a"),
        node("a", whitelist=("/x",)),
        node("a", node("b")),
        node("a", node("b", root="/x")),
        node("a", node("b", whitelist=("/x",))),
    ]
    keys = {key(image) for image in images} | {key(docker, "copy")}
    assert len(keys) == len(images) + 1
    assert key(docker) == key(ImageNode("other", ImageManifest("example.com/e"), layers)), "not the image's name"
    assert all(json.loads(one) for one in keys)


def test_the_key_of_a_tree_is_the_same_in_every_process() -> None:
    """Sets have another order in each; a tree of another key would be made anew."""
    paths = [f"/{number}/{number}" for number in range(50)]
    image = node("a", whitelist=tuple(paths))
    (value,) = json.loads(layering.tree_key("links", layering.applications(image)))[2]
    kept, directories = value["filter"]
    assert kept == sorted(["", *(path[1:] for path in paths)])
    assert directories == sorted({*kept, *(path.split("/")[1] for path in paths)})


def test_a_shared_image_counts_at_each_of_its_places() -> None:
    """N4: sixteen images, and more than a thousand places: the sum is told as what it is."""
    image = node("last")
    for number in range(15):
        image = node(f"n{number}", image, image)
    with pytest.raises(
        RenderError, match="more than 1000 images would be laid down, where one that several"
    ) as caught:
        layering.applications(image)
    assert caught.value.hint
