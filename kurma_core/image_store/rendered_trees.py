"""Caches rendered trees in the store, by a key of their inputs."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable

from kurma_core.cancellation import phase
from kurma_core.errors import FormatVersionError, StoreError
from kurma_core.image_store import records
from kurma_core.image_store.durable import (
    WorkDirectory,
    guard,
    put_directory,
    share_lock,
    sync_directory,
    sync_file_system,
    write_new,
)
from kurma_core.image_store.file_records import open_tree, record_tree
from kurma_core.models.image import RenderedLayer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.image_store.durable import Store


#: A layer's key, in the key of a tree.
_LAYER = re.compile(r"sha(?:512|256)-[0-9a-f]+")


def tree_id(key: str) -> str:
    """The ID of the tree that is made by that key."""
    import hashlib

    return f"sha512-{hashlib.sha512(key.encode('utf-8', 'surrogateescape')).hexdigest()}"


class TreeCache:
    """The store's trees; see :class:`kurma_core.hookspecs.renderer.RenderCache`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def tree(self, key: str, build: Callable[[str], None]) -> RenderedLayer:
        """The tree for ``key``. If several processes want it at once, each may build it; one of the trees is kept.

        :param build: fills the empty directory that it gets; may set the directory's mode, owner and time, too.
        :raises StoreError: the disk is full, …; and whatever ``build`` raises.
        """
        store = self._store
        ident = tree_id(key)
        place = store.path("trees", ident)
        rendered = RenderedLayer(id=ident, path=f"{place}/rootfs")
        if self._used(place):
            return rendered
        store.prepare()
        with guard("cannot put a rendered tree into the store", store.root):
            work = WorkDirectory(store.path("tmp"))
        with work:
            made = f"{work.path}/tree"
            with guard("cannot put a rendered tree into the store", store.root):
                os.makedirs(f"{made}/rootfs", 0o755)
                os.chmod(f"{made}/rootfs", 0o755)  # noqa: S103 - as any root directory; the store is root's alone
            with phase("merging layers", self._files(key)):
                build(f"{made}/rootfs")
            with (
                phase("storing the merged layers"),
                guard("cannot put a rendered tree into the store", store.root),
            ):
                self._finish(made, ident, key)
                while True:
                    with store.locked():
                        put_directory(made, place)
                    store.step("tree placed")
                    if self._used(place):
                        break
                sync_directory(store.path("trees"))
        return rendered

    def _files(self, key: str) -> int | None:
        """The number of files and directories of the layers that the key names; None: it is not known."""
        total = 0
        for layer in _LAYER.findall(key):
            try:
                with open(self._store.path("layers", layer, "layer.json"), "rb") as file:
                    total += records.load(file.read(), layer).get("entries", 0)
            except (OSError, StoreError, FormatVersionError):
                return None
        return total or None

    def _used(self, place: str) -> bool:
        """Records the use of a tree; False: there is no such tree. The lock keeps a garbage collection from
        removing it meanwhile."""
        fd = share_lock(place)
        if fd is None:
            return False
        try:
            self._store.holds.hold_tree(os.path.basename(place))
            now = time.time_ns()  # exact, as a sweep's own clock is
            os.utime(f"{place}/tree.json", ns=(now, now))
        finally:
            os.close(fd)
        return True

    def _finish(self, made: str, ident: str, key: str) -> None:
        root = open_tree(f"{made}/rootfs")
        try:
            record, size, entries = record_tree(root, None, None)
            write_new(f"{made}/files", record)
            document = {"id": ident, "key": key, "size": size, "entries": entries}
            write_new(f"{made}/tree.json", records.dump(document))
            sync_file_system(root)
        finally:
            os.close(root)
        self._store.step("tree built")
