"""The order in which a graph of images is laid down, as values: which image, where, and which of its paths.

App Container Executor, Filesystem Setup (N1, N3). Pure: the renderers and the core share it, nothing here touches
a file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from kurma_core.errors import RenderError
from kurma_core.value import frozen

#: How many images may stand below one another, and how many places images may be applied at in one graph.
MOST_DEEP = 64
MOST_PLACES = 1000


class Manifest(Protocol):
    """What is asked of an image manifest."""

    @property
    def path_whitelist(self) -> Sequence[str]: ...


class Layer(Protocol):
    """What is asked of one extracted layer; see :class:`kurma_core.hookspecs.renderer.ImageLayer`."""

    @property
    def key(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def removed(self) -> Sequence[str]: ...
    @property
    def opaque(self) -> Sequence[str]: ...
    @property
    def implied(self) -> Sequence[str]: ...


class Image(Protocol):
    """What is asked of one node of a graph; see :class:`kurma_core.hookspecs.renderer.ImageNode`."""

    @property
    def id(self) -> str: ...
    @property
    def manifest(self) -> Manifest: ...
    @property
    def layers(self) -> Sequence[Layer]: ...
    @property
    def dependencies(self) -> Sequence[Image]: ...
    @property
    def root(self) -> str: ...


@frozen
class Filter:
    """What a path must be to be laid down. Paths are those of the finished tree, relative, "" for its root.

    :param paths: kept, whatever they are.
    :param directories: kept where they are directories: the whitelisted ones and all that lead to a listed path.
    """

    paths: frozenset[str]
    directories: frozenset[str]

    def __and__(self, other: Filter) -> Filter:
        return Filter(self.paths & other.paths, self.directories & other.directories)


@frozen
class Application:
    """One image laid down at one place.

    :param image: its ID.
    :param layers: its own, lowest first; what one of them takes away, it takes from those below it of this image.
    :param root: where its root comes to lie in the finished tree; "" for the root.
    :param filter: over its own whitelist and those of all the images above it; None: everything.
    """

    image: str
    layers: tuple[Layer, ...]
    root: str = ""
    filter: Filter | None = None

    @property
    def whole(self) -> bool:
        """Neither filtered nor moved."""
        return self.filter is None and not self.root

    @property
    def plain(self) -> bool:
        """Its one layer is its tree. Whether it can be stacked on others as it stands: see :func:`stackable`."""
        return self.whole and len(self.layers) == 1


def applications(
    image: Image, *, most_deep: int = MOST_DEEP, most_places: int = MOST_PLACES
) -> tuple[Application, ...]:
    """The images of a graph in the order in which they are laid down, the lowest first: dependencies before what
    depends on them, in listed order, depth first, a shared one at each place where it occurs.

    Of equal applications only the last stays: it replaces everything that the earlier ones would have laid down
    (unless its layer leaves the looks of directories to what is below).
    Images without any layer are left out.

    :raises RenderError: an image depends on itself, or the graph is deeper or wider than the limits.
    """
    found: list[Application] = []
    places = 0
    # (image, root, filter, the way to it): a second visit, with done=True, comes after its dependencies.
    todo: list[tuple[Image, str, Filter | None, tuple[str, ...], bool]] = [(image, "", None, (), False)]
    while todo:
        node, root, above, way, done = todo.pop()
        if done:
            if node.layers:
                found.append(Application(node.id, tuple(node.layers), root, above))
            continue
        places += 1
        if places > most_places:
            raise RenderError(
                f"cannot render image {image.id}: more than {most_places} images would be laid down, where one "
                "that several depend on counts at each of its places",
                hint="build one image of what several of them hold",
            )
        if node.id in way:
            raise RenderError(f"cannot render image {image.id}: image {node.id} depends on itself")
        if len(way) >= most_deep:
            raise RenderError(f"cannot render image {image.id}: dependencies more than {most_deep} levels deep")
        keep = _narrowed(above, node.manifest.path_whitelist, root)
        todo.append((node, root, keep, way, True))
        below = (*way, node.id)
        todo += [(one, _join(root, one.root), keep, below, False) for one in reversed(node.dependencies)]
    return _without_repeats(found)


def stackable(what: Sequence[Application]) -> bool:
    """Whether a union mount of the layers shows what laying them over one another would.

    A directory that an archive only implies would show its own looks there instead of those of the one below.
    """
    return bool(what) and all(
        one.plain and not (number and one.layers[0].implied) for number, one in enumerate(what)
    )


def _narrowed(above: Filter | None, whitelist: Sequence[str], root: str) -> Filter | None:
    if not whitelist:
        return above  # an empty list is the same as none
    paths = {root, *(_join(root, path) for path in whitelist)}
    directories = set(paths)
    for path in paths:
        while path:
            path = path.rpartition("/")[0]
            directories.add(path)
    own = Filter(frozenset(paths), frozenset(directories | {""}))
    return own if above is None else above & own


def _join(root: str, path: str) -> str:
    """``path`` as seen from the finished tree's root, in the one way to write it."""
    names = [name for name in path.split("/") if name not in ("", ".")]
    if ".." in names:
        raise RenderError(f"cannot render an image: the path {path!r} in its manifest leads upwards")
    return "/".join([root, *names] if root else names)


def _without_repeats(found: list[Application]) -> tuple[Application, ...]:
    seen: set[tuple[tuple[str, ...], str, Filter | None]] = set()
    kept = []
    for application in reversed(found):
        what = (tuple(layer.key for layer in application.layers), application.root, application.filter)
        # Implied directories may have got their looks from the earlier one.
        if what not in seen or any(layer.implied for layer in application.layers):
            seen.add(what)
            kept.append(application)
    return tuple(reversed(kept))


def tree_key(kind: str, what: Sequence[Application]) -> str:
    """A text that says wholly what makes a merged tree: equal texts, equal trees.

    :param kind: how it is made (``links``, ``copy``).
    """
    value = [
        {
            "layers": [
                [layer.key, sorted(layer.removed), sorted(layer.opaque), sorted(layer.implied)]
                for layer in one.layers
            ],
            "root": one.root,
            "filter": None if one.filter is None else [sorted(one.filter.paths), sorted(one.filter.directories)],
        }
        for one in what
    ]
    return json.dumps(["kurma tree 1", kind, value], separators=(",", ":"), sort_keys=True)


@frozen
class Step:
    """One directory to be laid over a tree that is being made. Fields as in :class:`Application` and
    :class:`Layer`."""

    path: str
    root: str = ""
    filter: Filter | None = None
    removed: tuple[str, ...] = ()
    opaque: tuple[str, ...] = ()
    implied: tuple[str, ...] = ()


class Tree(Protocol):
    """What is asked of a cached tree; see :class:`kurma_core.models.image.RenderedLayer`."""

    @property
    def path(self) -> str: ...


T = TypeVar("T", bound=Tree)


def merged(
    kind: str,
    what: Sequence[Application],
    tree: Callable[[str, Callable[[str], None]], T],
    merge: Callable[[str, Sequence[Step]], None],
) -> T:
    """One tree of all that is in ``what``.

    An image with several layers is made a tree of its own first, unless it is the whole: what its layers take away
    must be gone before anything else of the graph is below it.

    :param tree: the cache's: the tree for a key, made by a callback if need be.
    :param merge: lays steps over an empty directory, in order.
    """

    def build(steps: Sequence[Step]) -> Callable[[str], None]:
        return lambda directory: merge(directory, steps)

    if len(what) == 1 and what[0].whole:
        steps = [
            Step(one.path, removed=tuple(one.removed), opaque=tuple(one.opaque), implied=tuple(one.implied))
            for one in what[0].layers
        ]
        return tree(tree_key(kind, what), build(steps))
    steps = []
    for one in what:
        alone = Application(one.image, one.layers)
        if alone.plain:
            steps.append(Step(one.layers[0].path, one.root, one.filter, implied=tuple(one.layers[0].implied)))
        else:
            steps.append(Step(merged(kind, [alone], tree, merge).path, one.root, one.filter))
    return tree(tree_key(kind, what), build(steps))
