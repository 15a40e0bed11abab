"""The merged view of layers with whiteouts, walked without making a copy of anything (R2, A4)."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from kurma_core.hookspecs.renderer import ImageLayer
from kurma_core.image_store.trees import open_tree, walk
from kurma_core.linux.beneath import open_beneath

_NEVER = 1 << 30


class MergedFile(NamedTuple):
    """One file of the merged view. A named tuple, for there may be millions of them.

    :ivar parent: descriptor of the directory it lies in as ``name``; good until the next file is asked for.
    """

    path: bytes
    parent: int
    name: bytes
    status: os.stat_result


def merged(layers: Sequence[ImageLayer]) -> Iterator[MergedFile]:
    """Every file of the merged view: a directory before what it holds, names in the order of their bytes.

    A whiteout hides what the layers below have, never what its own layer has. A directory that is only implied
    shows the owner, mode and time that a layer below gives it, where one does.

    :param layers: lowest first.
    :returns: the root first, with an empty path and the name ``.``.
    :raises OSError: as the kernel says.
    """
    if len(layers) == 1 and not (layers[0].removed or layers[0].opaque or layers[0].implied):
        yield from _alone(layers[0])
        return
    view = _View(layers)
    try:
        yield from view.walk()
    finally:
        view.close()


def _alone(layer: ImageLayer) -> Iterator[MergedFile]:
    """The view of one layer that hides nothing: the same, in less time."""
    root = open_tree(layer.path)
    try:
        for found in walk(root):
            yield MergedFile(*found)
    finally:
        os.close(root)


class _View:
    """Layers are known by their number here, 0 being the topmost."""

    def __init__(self, layers: Sequence[ImageLayer]) -> None:
        top_first = list(reversed(layers))
        self._removed = _topmost(layer.removed for layer in top_first)
        self._opaque = _topmost(layer.opaque for layer in top_first)
        self._implied = [frozenset(os.fsencode(path) for path in layer.implied) for layer in top_first]
        self._roots: list[int] = []
        #: Directories of the current level, of the layers that take part in it.
        self._here: list[tuple[int, int]] = []
        for layer in top_first:
            self._roots.append(open_tree(layer.path))

    def close(self) -> None:
        self._leave()
        for fd in self._roots:
            os.close(fd)
        self._roots = []

    def walk(self) -> Iterator[MergedFile]:
        numbers = range(len(self._roots))
        shown = self._shown(
            b"", [(number, self._roots[number], os.fstat(self._roots[number])) for number in numbers]
        )
        yield MergedFile(b"", shown[0], b".", shown[1])
        stack = [self._level(b"", [number for number in numbers if number <= self._opaque.get(b"", _NEVER)])]
        while stack:
            path, taking_part, names = stack[-1]
            if not names:
                stack.pop()
                self._leave()
                continue
            if not self._here:
                self._enter(path, taking_part)
            name = names.pop()
            below = path + b"/" + name if path else name
            holders = self._holders(name, below)
            if not holders:
                continue
            shown = self._shown(below, holders)
            yield MergedFile(below, shown[0], name, shown[1])
            if stat.S_ISDIR(shown[1].st_mode):
                cut = self._opaque.get(below, _NEVER)
                stack.append(self._level(below, [number for number, _, _ in holders if number <= cut]))

    def _level(self, path: bytes, taking_part: list[int]) -> tuple[bytes, list[int], list[bytes]]:
        """A directory, the layers that make it, and its names, last first."""
        self._enter(path, taking_part)
        names = {os.fsencode(name) for _, fd in self._here for name in os.listdir(fd)}
        return path, taking_part, sorted(names, reverse=True)

    def _enter(self, path: bytes, taking_part: list[int]) -> None:
        """Only one level is held open: there may be more levels times layers than descriptors."""
        self._leave()
        for number in taking_part:
            flags = os.O_RDONLY | os.O_DIRECTORY
            self._here.append((number, open_beneath(self._roots[number], os.fsdecode(path), flags)))

    def _leave(self) -> None:
        for _, fd in self._here:
            os.close(fd)
        self._here = []

    def _holders(self, name: bytes, path: bytes) -> list[tuple[int, int, os.stat_result]]:
        """What makes ``path``: the topmost file of that name, or all directories down to where they are cut."""
        holders: list[tuple[int, int, os.stat_result]] = []
        hidden_below = self._removed.get(path, _NEVER)
        for number, fd in self._here:
            if number > hidden_below:
                break
            try:
                status = os.lstat(name, dir_fd=fd)
            except FileNotFoundError:
                continue
            directory = stat.S_ISDIR(status.st_mode)
            if directory or not holders:
                holders.append((number, fd, status))
            if not directory:
                break
        return holders

    def _shown(self, path: bytes, holders: list[tuple[int, int, os.stat_result]]) -> tuple[int, os.stat_result]:
        """Whose owner, mode and time a directory shows."""
        for number, fd, status in holders:
            if path not in self._implied[number]:
                return fd, status
        return holders[0][1:]


def _topmost(paths: Iterable[Sequence[str]]) -> dict[bytes, int]:
    """By path, the topmost layer that names it."""
    found: dict[bytes, int] = {}
    for number, named in enumerate(paths):
        for path in named:
            found.setdefault(os.fsencode(path), number)
    return found
