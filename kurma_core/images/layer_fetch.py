"""The layers of one image: fetched in parallel, each once, whoever else asks for it (R2, S5)."""

from __future__ import annotations

import threading
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, BinaryIO, cast

from kurma_core.image_store.documents import layer_key

if TYPE_CHECKING:
    from kurma_core.fetching import Fetching
    from kurma_core.hookspecs import Progress, RemoteLayer, RemoteLayers
    from kurma_core.image_store import ImageStore

#: Layers fetched at once.
_PARALLEL = 4


def fetch_layers(
    store: ImageStore, fetching: Fetching, remote: RemoteLayers, progress: Progress | None
) -> tuple[str, ...]:
    """Brings the missing layers into the store; the first failure gives up the others.

    :returns: keys of all layers, lowest first.
    :raises FetchError: :raises ArchiveError: :raises StoreError: the first that failed.
    """
    missing = {layer.diff_id: layer for layer in remote.layers if not store.has_layer(layer.diff_id)}
    if missing:
        shared = SharedProgress(progress, remote.locator, list(missing.values()))
        cancelled = threading.Event()
        keep = remote.transport != "file"
        with ThreadPoolExecutor(min(_PARALLEL, len(missing)), "kurma-layer") as pool, shared:
            futures: list[Future[None]] = [
                pool.submit(_fetch, store, fetching, layer, shared, cancelled, keep) for layer in missing.values()
            ]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
            finally:
                # The others notice at their next piece; on Ctrl-C too.
                cancelled.set()
                for future in futures:
                    future.cancel()
    return tuple(layer_key(layer.diff_id) for layer in remote.layers)


def _fetch(
    store: ImageStore,
    fetching: Fetching,
    layer: RemoteLayer,
    progress: Progress,
    cancelled: threading.Event,
    keep: bool,
) -> None:
    what = f"layer {(layer.blob.digest or layer.diff_id).partition(':')[2][:12]}"
    with fetching.download(layer.blob, what, progress=progress, keep=keep, cancelled=cancelled) as download:
        if download.waited and store.has_layer(layer.diff_id):
            return
        store.add_layer(cast("BinaryIO", download), layer.diff_id)
        download.finish()


class SharedProgress:
    """One report for all layers: begun once with their sizes together, advanced from any thread."""

    def __init__(self, progress: Progress | None, what: str, layers: list[RemoteLayer]) -> None:
        self._progress = progress
        self._what = what
        sizes = [layer.blob.size for layer in layers]
        known = [size for size in sizes if size is not None]
        self._total = sum(known) if len(known) == len(sizes) else None
        self._lock = threading.Lock()

    def __enter__(self) -> SharedProgress:
        if self._progress is not None:
            self._progress.start(self._what, self._total)
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.finish()

    def start(self, what: str, total: int | None) -> None:
        """One layer begins: the whole has begun already."""

    def finish(self) -> None:
        """One layer has ended."""

    def advance(self, count: int) -> None:
        if self._progress is not None:
            with self._lock:
                self._progress.advance(count)
