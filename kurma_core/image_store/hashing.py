"""A digest computed in a thread of its own, while whoever feeds it goes on."""

from __future__ import annotations

from queue import SimpleQueue
from threading import Semaphore, Thread

#: Bytes that are handed over at once: hashing lets go of the interpreter's lock, worth it for large pieces.
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
        """Over everything; nothing can be added after it."""
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
