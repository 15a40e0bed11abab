"""Remembers which image a locator gave last time, and the validator by which its source knows it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Collection

from kurma_core.errors import StoreError
from kurma_core.image_store.durable import room_hint
from kurma_core.json_text import loads
from kurma_core.linux.files import replace_file
from kurma_core.models.image import LOCAL
from kurma_core.schema import COUNT, fit
from kurma_core.value import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kurma_core.api.images import Removal

_VERSION = 2
#: Nanoseconds after which a change is sure to be seen by the directory's time.
_SETTLED = 1_000_000_000
#: Shape of an entry.
_ENTRY = {
    "version": COUNT,
    "locator": str,
    "image": str,
    "key": (str, None),
    "fetched": float,
    "maxAge": COUNT,
    "transport": str,
}


@frozen
class KnownImage:
    """An image that was fetched by a locator, as the cache records it.

    :param key: the source's identification of the content: a validator, a digest, a file's stamps; None: there was
        none.
    :param fetched: seconds since the epoch, when the source was last asked.
    :param max_age: seconds for which the source called its answer fresh.
    :param transport: of the bytes, as the fetcher said.
    """

    image: str
    key: str | None
    fetched: float
    max_age: int = 0
    transport: str = LOCAL

    def fresh(self, now: float) -> bool:
        return self.fetched <= now < self.fetched + self.max_age


def _read(path: str) -> dict[str, Any] | None:
    """An entry; None: it is not there, or damaged."""
    try:
        with open(path, "rb") as file:
            value: dict[str, Any] = loads(file.read(), own=True)
        fit(value, _ENTRY, "the entry")
    except (OSError, ValueError):
        return None
    return value


class LocatorCache:
    """One small file per locator and platform. It only saves work: whether an image may be used is asked of the
    store, each time.

    :param directory: made when something is first written.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        #: Result of :meth:`last`, and the time of the directory's change then.
        self._last: tuple[int, dict[str, tuple[str, ...]]] | None = None

    def get(self, locator: str, platform: str) -> KnownImage | None:
        """None: never fetched, or the entry is damaged."""
        value = _read(self._path(locator, platform))
        if value is None or value["version"] != _VERSION or value["locator"] != locator:
            return None
        return KnownImage(value["image"], value["key"], value["fetched"], value["maxAge"], value["transport"])

    def put(self, locator: str, platform: str, known: KnownImage) -> None:
        """:raises StoreError: the disk is full, …"""
        value = {
            "version": _VERSION,
            "locator": locator,
            "platform": platform,
            "image": known.image,
            "key": known.key,
            "fetched": known.fetched,
            "maxAge": known.max_age,
            "transport": known.transport,
        }
        path = self._path(locator, platform)
        try:
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            replace_file(path, json.dumps(value).encode())
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise StoreError(
                f"{path}: cannot be written: {reason}", hint=room_hint(error), path=path, errno=error.errno
            ) from None

    def images(self, prefix: str) -> set[str]:
        """IDs of the images that locators with that prefix gave last."""
        entries = [_read(path) for path in self._files()]
        return {entry["image"] for entry in entries if entry is not None and entry["locator"].startswith(prefix)}

    def last(self) -> dict[str, tuple[str, ...]]:
        """By image ID, the locators that gave this image last, of any platform."""
        try:
            changed = os.stat(self.directory).st_mtime_ns
        except FileNotFoundError:
            return {}
        if self._last is None or self._last[0] != changed:
            found: dict[str, list[str]] = {}
            for entry in [_read(path) for path in self._files()]:
                if entry is not None and entry["version"] == _VERSION:
                    found.setdefault(entry["image"], []).append(entry["locator"])
            last = {image: tuple(dict.fromkeys(locators)) for image, locators in found.items()}
            if time.time_ns() - changed < _SETTLED:
                changed = -1  # another change may have the same time
            self._last = changed, last
        return self._last[1]

    def forget(self, images: Collection[str]) -> None:
        """Drops the entries of those images, and damaged entries."""
        for path in self._files() if images else ():
            entry = _read(path)
            if entry is None or entry["image"] in images:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)

    def sweep(self, *, dry_run: bool, only: Collection[str] | None = None) -> list[Removal]:
        """Removes the half-written files of processes that are dead.

        :param only: keys of the only ones to remove; None: all.
        """
        from kurma_core.api.images import Removal

        found = []
        for name in self._names():
            pid = name.removesuffix(".tmp").rpartition(".")[2]
            if not name.endswith(".tmp") or (pid.isdigit() and os.path.exists(f"/proc/{pid}")):
                continue
            path = os.path.join(self.directory, name)
            with contextlib.suppress(FileNotFoundError):
                one = Removal("leftover", name, os.stat(path).st_blocks * 512)
                if only is not None and one.key not in only:
                    continue
                found.append(one)
                if not dry_run:
                    os.unlink(path)
        return found

    def _names(self) -> list[str]:
        try:
            return sorted(os.listdir(self.directory))
        except FileNotFoundError:
            return []

    def _files(self) -> list[str]:
        names = [name for name in self._names() if not name.endswith((".lock", ".tmp"))]
        return [os.path.join(self.directory, name) for name in names]

    def _path(self, locator: str, platform: str) -> str:
        name = hashlib.sha256(f"{platform} {locator}".encode(errors="surrogateescape")).hexdigest()[:40]
        return os.path.join(self.directory, name)
