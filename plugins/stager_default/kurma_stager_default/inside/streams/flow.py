"""Copies bytes from one descriptor to another in an event loop, without blocking on either."""

from __future__ import annotations

import os
import select
import stat

from kurma_core.linux import terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from kurma_stager_default.inside.event_loop import Loop

CHUNK = 65536


class Flow:
    """Copies in one direction. It reads no more until all data that was read is written.

    :param source: a descriptor that no other handler of the loop watches; likewise ``target``.
    :param room: bytes that can be written to ``target`` without blocking when poll(2) reports it writable.
    :param look: a filter: it gets the data that was read, and returns the data to write.
    :param ended: called once, when the source has ended and all data is written.
    :param broken: called once, when the target cannot be written to any more.

    :attr:`over`: the copying has ended.
    """

    __slots__ = ("_broken", "_ended", "_last", "_look", "_loop", "_rest", "_room", "_source", "_target", "over")

    def __init__(
        self,
        loop: Loop,
        source: int,
        target: int,
        *,
        ended: Callable[[], None],
        broken: Callable[[], None],
        room: int = CHUNK,
        look: Callable[[bytes], bytes] | None = None,
    ) -> None:
        self._loop = loop
        self._source = source
        self._target = target
        self._room = room
        self._ended = ended
        self._broken = broken
        self._look = look
        self._rest = b""
        self._last = False
        self.over = False
        loop.watch(source, self._readable)

    def finish(self) -> None:
        """Ends the copying after the data that is in the source now: its writer has gone."""
        self._last = True
        if not self._rest and not self.over:
            self._readable(self._source, 0)

    def put(self, data: bytes) -> None:
        """Writes this data after the data that was read."""
        self._rest += data
        self._write()

    def close(self) -> None:
        """Stops, and closes both descriptors."""
        self.stop()
        os.close(self._source)
        os.close(self._target)

    def stop(self) -> None:
        """Stops the copying."""
        self.over = True
        self._loop.unwatch(self._source)
        self._loop.unwatch(self._target)

    def _readable(self, fd: int, _events: int) -> None:
        while not self.over:
            try:
                data = os.read(fd, CHUNK)
            except BlockingIOError:
                if not self._last:
                    return
                data = b""
            except OSError:
                data = b""  # EIO: the other side of a terminal has gone
            if not data:
                self._at_end()
                return
            self._rest = self._look(data) if self._look is not None else data
            self._write()
            if self._rest or not self._last:
                return

    def _at_end(self) -> None:
        self.stop()
        self._ended()

    def _writable(self, _fd: int, _events: int) -> None:
        self._write(asked=True)
        if not self._rest and not self.over and self._last:
            self._readable(self._source, 0)

    def _write(self, asked: bool = False) -> None:
        """Writes as much as possible. :param asked: poll(2) has reported the target writable."""
        try:
            while self._rest and not self.over:
                if self._room < CHUNK and not asked:
                    break  # a write may block: poll before each piece
                asked = False
                self._rest = self._rest[os.write(self._target, self._rest[: self._room]) :]
        except BlockingIOError:
            pass
        except OSError:
            self.stop()
            self._broken()
            return
        if self.over:
            return
        if self._rest:
            self._loop.unwatch(self._source)
            self._loop.watch(self._target, self._writable, select.POLLOUT)
        else:
            self._loop.unwatch(self._target)
            self._loop.watch(self._source, self._readable)


def reader(fd: int) -> int:
    """A new descriptor to read from ``fd``; that of a terminal does not block."""
    if os.isatty(fd):
        try:
            return terminal.reopen(fd)
        except OSError:
            pass  # a terminal that this process may not open: it is read when poll(2) reports data
    return os.dup(fd)


def writer(fd: int) -> tuple[int, int]:
    """A new descriptor to write to ``fd``, and the bytes that it takes without blocking when it is writable."""
    if os.isatty(fd):
        try:
            return terminal.reopen(fd), CHUNK
        except OSError:
            return os.dup(fd), 256
    regular = stat.S_ISREG(os.fstat(fd).st_mode)
    return os.dup(fd), CHUNK if regular else select.PIPE_BUF
