"""Computes the order in which the images of a graph are applied, with the root and the path filter of each.

App Container Executor, Filesystem Setup. The renderers and the core share it; it does no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from kurma_core.errors import RenderError
from kurma_core.value import frozen

#: Limits of a graph: depth of dependencies, and number of applications.
MOST_DEEP = 64
MOST_PLACES = 1000


class Manifest(Protocol):
    """The used part of an image manifest."""

    @property
    def path_whitelist(self) -> Sequence[str]: ...


class Layer(Protocol):
    """The used part of an extracted layer; see :class:`kurma_core.hookspecs.renderer.ImageLayer`."""

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
    """The used part of a node of a graph; see :class:`kurma_core.hookspecs.renderer.ImageNode`."""

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
    """A filter of paths by whitelists. Paths are relative to the root of the finished tree, whose path is "".

    :param paths: kept, of any kind.
    :param directories: kept if they are directories: the whitelisted paths and all their parents.
    """

    paths: frozenset[str]
    directories: frozenset[str]

    def __and__(self, other: Filter) -> Filter:
        return Filter(self.paths & other.paths, self.directories & other.directories)


@frozen
class Application:
    """One image applied at one place.

    :param image: its ID.
    :param layers: its own layers, lowest first; a layer removes paths only from lower layers of this image.
    :param root: the directory of the finished tree into which its root is put; "" for the root.
    :param filter: combines its own whitelist and those of all the images above it; None: all paths are kept.
    """

    image: str
    layers: tuple[Layer, ...]
    root: str = ""
    filter: Filter | None = None

    @property
    def whole(self) -> bool:
        """Whether it is neither filtered nor moved."""
        return self.filter is None and not self.root

    @property
    def plain(self) -> bool:
        """Whether its tree is its only layer. :func:`stackable` tells whether it can be stacked on others."""
        return self.whole and len(self.layers) == 1


def applications(
    image: Image, *, most_deep: int = MOST_DEEP, most_places: int = MOST_PLACES
) -> tuple[Application, ...]:
    """Returns the applications of a graph's images, the lowest first: dependencies before their dependents, in
    listed order, depth first, a shared dependency at each place where it occurs.

    Of equal applications only the last is kept, since it replaces all files of the earlier ones (unless its layer
    has implied directories, whose attributes come from below). Images without layers are left out.

    :raises RenderError: an image depends on itself, or the graph is deeper or wider than the limits.
    """
    found: list[Application] = []
    places = 0
    # (image, root, filter, path of IDs, done): a second visit, with done=True, comes after the dependencies.
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
    """Whether a union mount of the layers shows the same tree as merging them.

    It does not with implied directories: a union mount would show their own attributes instead of those from
    below.
    """
    return bool(what) and all(
        one.plain and not (number and one.layers[0].implied) for number, one in enumerate(what)
    )


def _narrowed(above: Filter | None, whitelist: Sequence[str], root: str) -> Filter | None:
    if not whitelist:
        return above  # an empty whitelist filters nothing
    paths = {root, *(_join(root, path) for path in whitelist)}
    directories = set(paths)
    for path in paths:
        while path:
            path = path.rpartition("/")[0]
            directories.add(path)
    own = Filter(frozenset(paths), frozenset(directories | {""}))
    return own if above is None else above & own


def _join(root: str, path: str) -> str:
    """Returns ``path`` relative to the finished tree's root, in canonical form."""
    names = [name for name in path.split("/") if name not in ("", ".")]
    if ".." in names:
        raise RenderError(f"cannot render an image: the path {path!r} in its manifest leads upwards")
    return "/".join([root, *names] if root else names)


def _without_repeats(found: list[Application]) -> tuple[Application, ...]:
    seen: set[tuple[tuple[str, ...], str, Filter | None]] = set()
    kept = []
    for application in reversed(found):
        what = (tuple(layer.key for layer in application.layers), application.root, application.filter)
        # Implied directories may have got their attributes from the earlier application.
        if what not in seen or any(layer.implied for layer in application.layers):
            seen.add(what)
            kept.append(application)
    return tuple(reversed(kept))


def tree_key(kind: str, what: Sequence[Application]) -> str:
    """Returns a text that determines a merged tree completely, for the cache.

    :param kind: the method of merging (``links``, ``copy``).
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
    """One directory to merge over an unfinished tree. Fields as in :class:`Application` and :class:`Layer`."""

    path: str
    root: str = ""
    filter: Filter | None = None
    removed: tuple[str, ...] = ()
    opaque: tuple[str, ...] = ()
    implied: tuple[str, ...] = ()


class Tree(Protocol):
    """The used part of a cached tree; see :class:`kurma_core.models.image.RenderedLayer`."""

    @property
    def path(self) -> str: ...


T = TypeVar("T", bound=Tree)


def merged(
    kind: str,
    what: Sequence[Application],
    tree: Callable[[str, Callable[[str], None]], T],
    merge: Callable[[str, Sequence[Step]], None],
) -> T:
    """Merges all applications in ``what`` to one tree.

    An image with several layers is first merged to a tree of its own, unless it is the only application: its
    layers must not remove paths of other images.

    :param tree: method of the cache: returns the tree for a key, and makes it by a callback if it is missing.
    :param merge: merges steps into an empty directory, in order.
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
