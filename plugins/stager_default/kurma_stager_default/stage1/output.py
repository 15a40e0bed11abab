"""What apps write, on stage1's own standard output and error: at the reader's pace, without waiting for it."""

from __future__ import annotations

import os
import select

from kurma_stager_default.inside.streams import flow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from kurma_stager_default.inside.event_loop import Loop

#: Bytes that nobody has read yet, from which on no more is read from the apps.
_FULL = 1 << 18


class Output:
    """One of the two.

    :attr:`waiting` are called once there is room again. :attr:`held`: nothing is written just yet.
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
        """Whoever is not there to read it any more misses it."""
        if not self._gone:
            self._rest += data
            if not self.held:
                self._write()

    def release(self) -> None:
        """What was held back, and all that comes."""
        if self.held:
            self.held = False
            self._write()

    def _writable(self, _fd: int, _events: int) -> None:
        self._write(asked=True)

    def _write(self, asked: bool = False) -> None:
        """:param asked: there is room."""
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
