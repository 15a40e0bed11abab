"""Copies the apps' output to stage1's own standard output and error, at the reader's pace and without blocking."""

from __future__ import annotations

import os
import select

from kurma_stager_default.inside.streams import flow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from kurma_stager_default.inside.event_loop import Loop

#: Unread bytes from which on no more is read from the apps.
_FULL = 1 << 18


class Output:
    """Standard output or error.

    :attr:`waiting` are functions to call when there is room again. :attr:`held`: data is kept, and not written
        yet.
    """

    def __init__(self, loop: Loop, fd: int) -> None:
        self._loop = loop
        self._fd, self._room = flow.writer(fd)
        os.set_inheritable(self._fd, False)
        self._rest = bytearray()
        self._gone = False
        self.held = False
        self.waiting: list[Callable[[], None]] = []

    @property
    def full(self) -> bool:
        return len(self._rest) >= _FULL

    @property
    def empty(self) -> bool:
        return not self._rest

    def put(self, data: bytes) -> None:
        """Writes or keeps data; drops it if the reader has closed its end."""
        if not self._gone:
            self._rest += data
            if not self.held:
                self._write()

    def release(self) -> None:
        """Writes the data that was held back, and all that follows."""
        if self.held:
            self.held = False
            self._write()

    def _writable(self, _fd: int, _events: int) -> None:
        self._write(asked=True)

    def _write(self, asked: bool = False) -> None:
        """Writes as much as possible. :param asked: poll(2) has reported the descriptor writable."""
        try:
            while self._rest and (asked or self._room >= flow.CHUNK):
                asked = False
                del self._rest[: os.write(self._fd, self._rest[: self._room])]
        except BlockingIOError:
            pass
        except OSError:
            self._gone = True
            self._rest.clear()
        if self._rest:
            self._loop.watch(self._fd, self._writable, select.POLLOUT)
        else:
            self._loop.unwatch(self._fd)
        if not self.full:
            waiting, self.waiting = self.waiting, []
            for call in waiting:
                call()
