"""The streams of one exec or attach, between the thread of a connection and those of a backend."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Protocol

from kurma_cri.streaming.wire import GoneError

#: Bytes of input to hold for a reader. A client that sends more than it may is not read from until there is room.
CAPACITY = 256 << 10
#: Seconds between two looks at a client that is not being read from.
_LOOK = 0.5
_LARGEST_RESIZE = 4096
_LARGEST_SIZE = 0xFFFF


class Sink(Protocol):
    """Takes what a client sends on one stream. Only the connection's thread calls it."""

    def put(self, data: bytes) -> None:
        """:raises GoneError: the client has gone, while this waited for room."""
        ...

    def end(self) -> None:
        """The client will send no more."""
        ...

    def abort(self) -> None:
        """The client has gone, or has reset the stream. Repeatable."""
        ...


class Output(Protocol):
    """A stream to the client. Any thread may use it."""

    def write(self, data: bytes) -> None:
        """Sends the data, as fast as the client reads. :raises BrokenPipeError: the client reads no more."""
        ...

    def close(self) -> None:
        """Ends the stream. Repeatable."""
        ...


class Dropped:
    """A sink that drops everything."""

    def put(self, data: bytes) -> None:
        pass

    def end(self) -> None:
        pass

    def abort(self) -> None:
        pass


class Input:
    """A sink whose data another thread reads.

    :param is_gone: whether the client has gone; called while :meth:`put` waits for room.
    :param taken: called with the number of bytes that were read, or dropped.
    """

    def __init__(
        self, is_gone: Callable[[], bool] = lambda: False, taken: Callable[[int], None] = lambda count: None
    ) -> None:
        self._is_gone = is_gone
        self._taken = taken
        self._changed = threading.Condition()
        self._data = bytearray()
        self._ended = self._aborted = self._closed = False
        self._on_abort: Callable[[], None] = lambda: None

    def put(self, data: bytes) -> None:
        with self._changed:
            while len(self._data) >= CAPACITY and not self._closed:
                if not self._changed.wait(_LOOK) and self._is_gone():
                    raise GoneError
            closed = self._closed
            if not closed:
                self._data += data
                self._changed.notify_all()
        if closed:
            self._taken(len(data))

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def abort(self) -> None:
        with self._changed:
            new, self._aborted = not self._aborted, True
            self._changed.notify_all()
            if new:
                self._on_abort()

    def on_abort(self, call: Callable[[], None]) -> None:
        """Calls ``call``, which must not wait, at :meth:`abort`; at once if that was called before."""
        with self._changed:
            self._on_abort = call
            if self._aborted:
                call()

    def read(self, most: int = 64 << 10) -> bytes:
        """Waits for data. :returns: empty: the end. :raises GoneError: the client has gone, or has reset it."""
        with self._changed:
            while not (self._data or self._ended or self._aborted or self._closed):
                self._changed.wait()
            if self._closed:
                return b""
            if self._aborted and not (self._data or self._ended):
                raise GoneError
            data = bytes(self._data[:most])
            del self._data[: len(data)]
            self._changed.notify_all()
        if data:
            self._taken(len(data))
        return data

    def close(self) -> None:
        """Reads no more: drops what comes, and ends a concurrent :meth:`read`. Repeatable."""
        with self._changed:
            self._closed = True
            count = len(self._data)
            self._data.clear()
            self._changed.notify_all()
        if count:
            self._taken(count)


class Streams:
    """The streams of one exec or attach, as a backend gets them.

    :ivar stdin: None: the client sends no input. :ivar stdout: None: the client does not read it.
    :ivar stderr: as ``stdout``.
    """

    def __init__(self) -> None:
        self.stdin: Input | None = None
        self.stdout: Output | None = None
        self.stderr: Output | None = None
        self._lock = threading.Lock()
        self._size: tuple[int, int] | None = None
        self._gone = False
        self._on_resize: Callable[[int, int], None] = lambda rows, columns: None
        self._on_gone: Callable[[], None] = lambda: None

    def on_resize(self, call: Callable[[int, int], None]) -> None:
        """Calls ``call`` with rows and columns: the last size at once, if there was any, and later ones as they
        come."""
        with self._lock:
            self._on_resize = call
            if self._size is not None:
                call(*self._size)

    def on_gone(self, call: Callable[[], None]) -> None:
        """Calls ``call`` when the client has gone, at once if it has already. It may be called in any thread, and
        must not wait."""
        with self._lock:
            self._on_gone = call
            if self._gone:
                call()

    def resize(self, rows: int, columns: int) -> None:
        """The client's terminal has a new size."""
        with self._lock:
            self._size = rows, columns
            self._on_resize(rows, columns)

    def hang_up(self) -> None:
        """The client has gone. Repeatable."""
        if self.stdin is not None:
            self.stdin.abort()
        with self._lock:
            if not self._gone:
                self._gone = True
                self._on_gone()


class Resizes:
    """A sink for sizes of a terminal, as JSON values one after the other: ``{"Width": 80, "Height": 24}``. After a
    malformed value it drops the rest.

    :param resized: called with rows and columns.
    """

    def __init__(self, resized: Callable[[int, int], None]) -> None:
        self._resized = resized
        self._text = ""
        self._broken = False

    def put(self, data: bytes) -> None:
        if self._broken:
            return
        self._text = (self._text + data.decode("latin-1")).lstrip()
        while self._text:
            try:
                value, end = json.JSONDecoder().raw_decode(self._text)
            except (ValueError, RecursionError):
                self._broken = len(self._text) > _LARGEST_RESIZE
                return
            self._text = self._text[end:].lstrip()
            size = _size(value)
            if size is not None:
                self._resized(*size)

    def end(self) -> None:
        pass

    def abort(self) -> None:
        pass


def _size(value: object) -> tuple[int, int] | None:
    """Rows and columns; None: the value has no size, or one that no terminal has."""
    if not isinstance(value, dict):
        return None
    rows, columns = value.get("Height"), value.get("Width")
    for number in (rows, columns):
        if type(number) is not int or not 0 < number <= _LARGEST_SIZE:
            return None
    return rows, columns  # type: ignore[return-value]
