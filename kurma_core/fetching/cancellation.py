"""Giving up what several threads read."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO


class Cancellation(threading.Event):
    """Set once, from any thread. What is being read is closed then, so that who waits for bytes that do not come
    ends at once."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._open: list[BinaryIO] = []

    @contextlib.contextmanager
    def reading(self, source: BinaryIO) -> Iterator[None]:
        """While the source is read from."""
        with self._lock:
            self._open.append(source)
        try:
            yield
        finally:
            with self._lock:
                self._open.remove(source)

    def set(self) -> None:
        super().set()
        with self._lock:
            sources = tuple(self._open)
        for source in sources:
            # A plugin's part, which may raise anything; who reads it raises what is told.
            with contextlib.suppress(Exception):
                source.close()
