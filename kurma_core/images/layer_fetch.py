"""Downloads the layers of a registry's image, in parallel, each once."""

from __future__ import annotations

import threading
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from typing import TYPE_CHECKING, BinaryIO, cast

from kurma_core.cancellation import Cancellation, current, governing
from kurma_core.errors import ArchiveError, FetchError
from kurma_core.image_store.records import layer_key
from kurma_core.models.image import LOCAL

if TYPE_CHECKING:
    from collections.abc import Callable

    from kurma_core.api.operations import Progress
    from kurma_core.fetching import Fetching
    from kurma_core.hookspecs.fetcher import RemoteBlobHooks, RemoteLayer, RemoteLayers
    from kurma_core.image_store import ImageStore

#: Layers fetched at once.
_PARALLEL = 4


def fetch_layers(
    store: ImageStore, fetching: Fetching, remote: RemoteLayers, progress: Progress | None
) -> tuple[str, ...]:
    """Brings the missing layers into the store; the first failure cancels the other downloads.

    :returns: keys of all layers, lowest first.
    :raises FetchError: :raises ArchiveError: :raises StoreError: the first that failed.
    :raises Cancelled: as :func:`kurma_core.cancellation.check`.
    """
    missing = {layer.diff_id: layer for layer in remote.layers if not store.has_layer(layer.diff_id)}
    if missing:
        keep = remote.transport != LOCAL
        shared = SharedProgress(progress, remote.locator, list(missing.values()), keep=keep)
        with (
            ThreadPoolExecutor(min(_PARALLEL, len(missing)), "kurma-layer") as pool,
            shared,
            # after a failure or Ctrl-C, the remaining downloads are cancelled wherever they wait
            current().part() as part,
        ):
            futures: list[Future[None]] = [
                pool.submit(copy_context().run, _fetch, store, fetching, layer, shared, part, keep)
                for layer in missing.values()
            ]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
            finally:
                for future in futures:
                    future.cancel()
    return tuple(layer_key(layer.diff_id) for layer in remote.layers)


def _fetch(
    store: ImageStore,
    fetching: Fetching,
    layer: RemoteLayer,
    shared: SharedProgress,
    part: Cancellation,
    keep: bool,
) -> None:
    """Downloads one layer from the first source that works; the next source resumes where the last one failed.

    :param part: the operation that this thread works for.
    """
    progress = shared.part()
    with governing(part):
        for blob in (layer.blob, *layer.others)[:-1]:
            try:
                return _fetch_from(blob, store, fetching, layer, progress, keep)
            except FetchError as error:
                fetching.note(f"{error}; trying the next source")
        last = (layer.blob, *layer.others)[-1]
        return _fetch_from(last, store, fetching, layer, progress, keep)


def _fetch_from(
    blob: RemoteBlobHooks,
    store: ImageStore,
    fetching: Fetching,
    layer: RemoteLayer,
    progress: Progress | None,
    keep: bool,
) -> None:
    what = f"layer {(blob.digest or layer.diff_id).partition(':')[2][:12]}"
    with fetching.download(blob, what, progress=progress, keep=keep) as download:
        if download.waited and store.has_layer(layer.diff_id):
            return
        try:
            store.add_layer(cast("BinaryIO", download), layer.diff_id)
        except ArchiveError as error:
            download.finish()  # raises if other bytes came than were requested: that is the real cause then
            error.message = f"{what}: {error.message}"
            raise
        download.finish()


class SharedProgress:
    """One report for all layers: begun once with their sizes together, advanced from any thread."""

    def __init__(
        self, progress: Progress | None, what: str, layers: list[RemoteLayer], *, keep: bool = False
    ) -> None:
        self._kind = "download" if keep and all(layer.blob.key is not None for layer in layers) else "bytes"
        self._progress = progress
        self._what = what
        sizes = [layer.blob.size for layer in layers]
        known = [size for size in sizes if size is not None]
        self._total = sum(known) if len(known) == len(sizes) else None
        self._lock = threading.Lock()

    def __enter__(self) -> SharedProgress:
        if self._progress is not None:
            self._progress.start(self._what, self._total, self._kind)
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.finish()

    def part(self) -> Progress | None:
        """The progress of one layer."""
        return None if self._progress is None else _LayerProgress(self._progress, self._lock)


class _LayerProgress:
    """One layer's share of a report that has begun already. A download that starts anew, from another place, does
    not count again the bytes that were counted.
    """

    def __init__(self, progress: Progress, lock: threading.Lock) -> None:
        self._progress = progress
        self._lock = lock
        self._position = 0
        self._counted = 0

    def start(self, what: str, total: int | None, kind: str = "bytes") -> None:
        self._position = 0

    def skip(self, count: int) -> None:
        self._move(count, self._progress.skip)

    def advance(self, count: int) -> None:
        self._move(count, self._progress.advance)

    def _move(self, count: int, report: Callable[[int], None]) -> None:
        self._position += count
        if self._position > self._counted:
            with self._lock:
                report(self._position - self._counted)
            self._counted = self._position

    def finish(self) -> None:
        """The other layers may go on."""
