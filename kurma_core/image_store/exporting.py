"""Exports images as archives, and single layers: merges layers, applies whiteouts, computes the image ID."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import NamedTuple

from kurma_core.cancellation import check, step
from kurma_core.errors import ArchiveError, StoreError
from kurma_core.hookspecs.renderer import ImageLayer
from kurma_core.image_store.builder import TarWriter, add_file, add_manifest
from kurma_core.image_store.durable import guard
from kurma_core.image_store.file_records import open_tree, walk
from kurma_core.image_store.tar_entries import FILE, Entry, show
from kurma_core.linux.beneath import open_beneath

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

    from kurma_core.image_store.durable import Store


def export(store: Store, image_id: str, out: BinaryIO) -> None:
    """See :meth:`.store.ImageStore.export`."""
    store.get(image_id)  # raises if only the archive is left, which is not an image
    archive = store.archive_path(image_id)
    found = (
        _write_layered(out.write, store.manifest_bytes(image_id), store.layers(image_id))
        if archive is None
        else _unpack(archive, out)
    )
    if found != image_id:
        raise StoreError(
            f"the image store is damaged: what was exported of {image_id} is {found}",
            hint="remove the image and fetch it anew",
            image=image_id,
        )


def layered_id(manifest: bytes, layers: Sequence[ImageLayer]) -> str:
    """The ID of an image made of layers: that of the tar which :func:`export` would write.

    :raises ArchiveError: a file cannot be read as it is. :raises OSError: as the kernel says.
    """
    return _write_layered(_nowhere, manifest, layers)


def _nowhere(data: bytes) -> None:
    """A sink for bytes that only need to be hashed."""


def _write_layered(write: Callable[[bytes], object], manifest: bytes, layers: Sequence[ImageLayer]) -> str:

    with BackgroundHash("sha512") as digest:

        def put(data: bytes) -> None:
            digest.update(data)
            write(data)

        writer = TarWriter(digest.update if write is _nowhere else put)
        add_manifest(writer, manifest)
        first: dict[tuple[int, int], bytes] = {}
        for file in merged(layers):
            check()
            path = b"rootfs/" + file.path if file.path else b"rootfs"
            add_file(writer, path, file.parent, file.name, file.status, first)
        writer.close()
        return f"sha512-{digest.hexdigest()}"


def _unpack(archive: str, out: BinaryIO) -> str:
    """The archive as shipped, without its compression."""
    import hashlib

    from kurma_core.image_store.compression import unpacked

    digest = hashlib.sha512()
    with guard("cannot read an archive of the image store"):
        for piece in unpacked(archive):
            check()
            digest.update(piece)
            out.write(piece)
    return f"sha512-{digest.hexdigest()}"


#: Names with this beginning remove files of lower layers.
_WHITEOUT = b".wh."


def write_layer(layer: ImageLayer, write: Callable[[bytes], object]) -> None:
    """Writes one layer as a tar that :func:`.archive_layout.read_layer` reads as the same layer. The same layer
    always gives the same bytes. Implied directories get no entry, so that those below keep their attributes.

    :raises ArchiveError: a file cannot be written as it is. :raises OSError: as the kernel says.
    """
    hidden: dict[bytes, list[bytes]] = {}
    for removed in sorted(map(os.fsencode, layer.removed)):
        parent, _, name = removed.rpartition(b"/")
        hidden.setdefault(parent, []).append(_WHITEOUT + name)
    for opaque in map(os.fsencode, layer.opaque):
        hidden.setdefault(opaque, []).insert(0, _WHITEOUT + b".wh..opq")
    implied = frozenset(map(os.fsencode, layer.implied))
    first: dict[tuple[int, int], bytes] = {}
    writer = TarWriter(write)
    root = open_tree(layer.path)
    try:
        for path, parent_fd, name, status in walk(root):
            if name.startswith(_WHITEOUT):
                raise ArchiveError(f"'{show(path)}' would remove files in a layer", path=show(path))
            if path not in implied or not stat.S_ISDIR(status.st_mode):
                add_file(writer, path or b".", parent_fd, name, status, first)
            _add_whiteouts(writer, path, hidden)
            step()
    finally:
        os.close(root)
    for path in sorted(hidden):  # of directories that the layer lacks
        _add_whiteouts(writer, path, hidden)
    writer.close()


def _add_whiteouts(writer: TarWriter, directory: bytes, hidden: dict[bytes, list[bytes]]) -> None:
    for name in hidden.pop(directory, ()):
        writer.add(Entry(directory + b"/" + name if directory else name, FILE, mode=0o644))


_NEVER = 1 << 30


class MergedFile(NamedTuple):
    """One file of the merged view. A named tuple, since there may be millions of them.

    :ivar parent: descriptor of the directory that contains it as ``name``; valid until the next file is requested.
    """

    path: bytes
    parent: int
    name: bytes
    status: os.stat_result


def merged(layers: Sequence[ImageLayer]) -> Iterator[MergedFile]:
    """Every file of the merged view: a directory before its contents, names in the order of their bytes.

    A whiteout hides files of the layers below, but never files of its own layer. A directory without an entry of
    its own gets owner, mode and time from a layer below that has one.

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
    """The view of a single layer, which hides nothing: the same result, in less time."""
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
        """Only one level is open at a time: levels times layers may exceed the limit of descriptors."""
        self._leave()
        for number in taking_part:
            flags = os.O_RDONLY | os.O_DIRECTORY
            self._here.append((number, open_beneath(self._roots[number], os.fsdecode(path), flags)))

    def _leave(self) -> None:
        for _, fd in self._here:
            os.close(fd)
        self._here = []

    def _holders(self, name: bytes, path: bytes) -> list[tuple[int, int, os.stat_result]]:
        """The entries that make ``path``: the topmost file, or all directories down to an opaque one."""
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
        """The topmost entry that gives the path an owner, mode and time."""
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


#: Bytes that are hashed at once: hashing releases the interpreter's lock, which pays off for large pieces.
_LARGE = 1 << 18
#: Pieces on the way.
_AHEAD = 4


class BackgroundHash:
    """Used as a context manager, which ends the thread.

    :param algorithm: as :func:`hashlib.new` knows it.
    """

    def __init__(self, algorithm: str) -> None:
        import hashlib

        self._hash = hashlib.new(algorithm)
        self._buffer = bytearray()
        self._pieces: SimpleQueue[bytes | bytearray | None] = SimpleQueue()
        self._room = Semaphore(_AHEAD)
        self._thread = Thread(target=self._work, name="kurma-hash", daemon=True)
        self._thread.start()

    def __enter__(self) -> BackgroundHash:
        return self

    def __exit__(self, *_: object) -> None:
        self._pieces.put(None)
        self._thread.join()

    def update(self, data: bytes) -> None:
        """Takes the next bytes."""
        if len(data) < _LARGE:
            self._buffer += data
            if len(self._buffer) >= _LARGE:
                self._hand_over()
            return
        self._hand_over()
        self._put(data)

    def hexdigest(self) -> str:
        """The digest of everything; nothing can be added after it."""
        self._hand_over()
        self._pieces.put(None)
        self._thread.join()
        return self._hash.hexdigest()

    def _hand_over(self) -> None:
        if self._buffer:
            full, self._buffer = self._buffer, bytearray()
            self._put(full)

    def _put(self, data: bytes | bytearray) -> None:
        self._room.acquire()
        self._pieces.put(data)

    def _work(self) -> None:
        while (piece := self._pieces.get()) is not None:
            self._hash.update(piece)
            self._room.release()
