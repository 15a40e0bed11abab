"""The server's side of a SPDY/3.1 connection: streams that the client opens.

Clients of Kubernetes ignore windows: they never send WINDOW_UPDATE, and send more than they may. So the windows of
a client count only once it has shown that it knows them. In the other direction the server reports what was taken
of each stream, and stops to read from a client whose stream is full.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kurma_cri.streaming import spdy
from kurma_cri.streaming.streams import Dropped, Input
from kurma_cri.streaming.wire import GoneError

if TYPE_CHECKING:
    from kurma_cri.streaming.streams import Sink
    from kurma_cri.streaming.wire import Wire

#: Most streams that a client may have open.
_MOST_STREAMS = 512
_LARGEST_WINDOW = 0x7FFFFFFF


class RefusedError(Exception):
    """The stream cannot be opened. :param status: of the RST_STREAM frame."""

    def __init__(self, status: int = spdy.REFUSED_STREAM) -> None:
        super().__init__(status)
        self.status = status


class SpdyStream:
    """A stream that the client has opened; an :class:`.streams.Output`.

    :ivar sink: takes what the client sends.
    """

    def __init__(self, connection: SpdyConnection, number: int, headers: Mapping[str, str]) -> None:
        self._connection = connection
        self.number = number
        self.headers = headers
        self.sink: Sink = Dropped()
        # The connection's lock guards these.
        self.window = 0
        self.untold = 0
        self.sends = self.receives = True

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            count = self._connection.reserve(self, min(len(view), spdy.PIECE))
            try:
                self._connection.send(spdy.data(self.number, bytes(view[:count])))
            except GoneError:
                raise BrokenPipeError from None
            view = view[count:]

    def close(self) -> None:
        if self._connection.ends(self):
            with contextlib.suppress(GoneError):
                self._connection.send(spdy.data(self.number, b"", fin=True))

    def reset(self, status: int) -> None:
        """Ends both directions, also after :meth:`close`. Repeatable."""
        if self._connection.forgets(self):
            with contextlib.suppress(GoneError):
                self._connection.send(spdy.reset(self.number, status))
        self.sink.abort()

    def taken(self, count: int) -> None:
        """Reports to the client that so many bytes were taken."""
        self._connection.taken(self, count)


class SpdyConnection:
    """:param opened: called in the connection's thread for each new stream, after it was accepted; it sets the
    stream's sink. :raises RefusedError: the stream is reset.
    """

    def __init__(self, wire: Wire, opened: Callable[[SpdyStream], None]) -> None:
        self._wire = wire
        self._opened = opened
        self._reader = spdy.FrameReader()
        self._writer = spdy.FrameWriter()
        self._lock = threading.Condition()
        self._streams: dict[int, SpdyStream] = {}
        self._last = 0
        self._untold = 0
        self._window = self._first_window = spdy.WINDOW
        #: Whether the client uses windows of streams, and of the connection.
        self._windows = self._common_window = False
        self._over = False
        self._ended = threading.Event()

    def run(self) -> None:
        """Receives until the client has gone. Then aborts the sinks of all streams."""
        try:
            while data := self._wire.receive():
                for frame in self._reader.feed(data):
                    self._handle(frame)
        except spdy.SpdyError:
            with contextlib.suppress(GoneError):
                self.send(spdy.goaway(self._last, spdy.PROTOCOL_ERROR))
        except GoneError:
            pass
        finally:
            with self._lock:
                self._over = True
                streams = list(self._streams.values())
                self._streams.clear()
                self._lock.notify_all()
            self._ended.set()
            for stream in streams:
                stream.sink.abort()

    def leave(self, seconds: float) -> None:
        """Disconnects the client, in another thread than :meth:`run`, once it has disconnected itself or the time
        is over. Clients lose what they have not read yet when they are disconnected.
        """
        if not self._ended.wait(seconds):
            self._wire.hang_up()

    def is_gone(self) -> bool:
        return self._wire.is_gone()

    # -- for streams --

    def send(self, frame: bytes) -> None:
        """:raises GoneError: the client has gone."""
        self._wire.send(frame)

    def reserve(self, stream: SpdyStream, want: int) -> int:
        """Waits until the windows have room. :returns: how many bytes to send, at most ``want``.

        :raises BrokenPipeError: the stream takes no more.
        """
        with self._lock:
            while stream.sends and not self._over:
                room = want
                if self._windows:
                    room = min(room, stream.window)
                if self._common_window:
                    room = min(room, self._window)
                if room > 0:
                    stream.window -= room
                    self._window -= room
                    return room
                self._lock.wait()
        raise BrokenPipeError

    def ends(self, stream: SpdyStream) -> bool:
        """Notes that the server sends no more. :returns: whether that is new."""
        with self._lock:
            was, stream.sends = stream.sends, False
            self._forget_closed(stream)
            self._lock.notify_all()
            return was and not self._over

    def forgets(self, stream: SpdyStream) -> bool:
        """Notes that the stream was reset. :returns: whether the client must be told."""
        with self._lock:
            stream.sends = stream.receives = False
            self._lock.notify_all()
            return self._streams.pop(stream.number, None) is not None

    def taken(self, stream: SpdyStream, count: int) -> None:
        with self._lock:
            stream.untold += count
            self._untold += count
            frames = b""
            if stream.untold >= spdy.WINDOW // 2 and stream.receives:
                frames += spdy.window_update(stream.number, stream.untold)
                stream.untold = 0
            if self._untold >= spdy.WINDOW // 2:
                frames += spdy.window_update(0, self._untold)
                self._untold = 0
            if self._over:
                return
        if frames:
            with contextlib.suppress(GoneError):
                self.send(frames)

    def _forget_closed(self, stream: SpdyStream) -> None:
        if not stream.sends and not stream.receives:
            self._streams.pop(stream.number, None)

    # -- frames --

    def _handle(self, frame: spdy.Frame) -> None:
        if isinstance(frame, spdy.Data):
            self._data(frame)
        elif isinstance(frame, spdy.SynStream):
            self._open(frame)
        elif isinstance(frame, spdy.Ping):
            if frame.number & 1:  # even numbers are the server's own
                self.send(spdy.ping(frame.number))
        elif isinstance(frame, spdy.Reset):
            self._reset(frame.stream)
        elif isinstance(frame, spdy.WindowUpdate):
            self._widen(frame)
        elif isinstance(frame, spdy.Settings):
            self._set(frame.values)
        elif isinstance(frame, spdy.Headers) and frame.fin:
            self._data(spdy.Data(frame.stream, b"", fin=True))

    def _open(self, frame: spdy.SynStream) -> None:
        number = frame.stream
        if not number & 1 or number <= self._last:
            raise spdy.SpdyError(f"stream {number} after stream {self._last}")
        self._last = number
        stream = SpdyStream(self, number, frame.headers)
        with self._lock:
            if len(self._streams) >= _MOST_STREAMS:
                refused = True
            else:
                refused = False
                stream.window = self._first_window
                stream.sends = not frame.unidirectional
                self._streams[number] = stream
        if refused:
            self.send(spdy.reset(number, spdy.REFUSED_STREAM))
            return
        # Clients drop data of a stream that was not accepted yet: it may be sent once ``opened`` has the stream.
        self.send(self._writer.syn_reply(number, {}))
        try:
            self._opened(stream)
        except RefusedError as error:
            stream.reset(error.status)
            return
        if frame.fin:
            self._data(spdy.Data(number, b"", fin=True))

    def _data(self, frame: spdy.Data) -> None:
        with self._lock:
            stream = self._streams.get(frame.stream)
        if stream is None or not stream.receives:
            if frame.stream > self._last or not frame.stream & 1:
                self.send(spdy.reset(frame.stream, spdy.INVALID_STREAM))
            self._dropped(len(frame.data))
            return
        if frame.data:
            stream.sink.put(frame.data)
            if not isinstance(stream.sink, Input):  # an input reports what was read
                stream.taken(len(frame.data))
        if frame.fin:
            with self._lock:
                stream.receives = False
                self._forget_closed(stream)
            stream.sink.end()

    def _dropped(self, count: int) -> None:
        """Data of a closed stream counts for the connection's window."""
        with self._lock:
            self._untold += count

    def _reset(self, number: int) -> None:
        with self._lock:
            stream = self._streams.pop(number, None)
            if stream is None:
                return
            stream.sends = stream.receives = False
            self._lock.notify_all()
        stream.sink.abort()

    def _widen(self, frame: spdy.WindowUpdate) -> None:
        with self._lock:
            if frame.stream:
                self._windows = True
                stream = self._streams.get(frame.stream)
                if stream is not None:
                    stream.window = min(stream.window + frame.size, _LARGEST_WINDOW)
            else:
                self._common_window = True
                self._window = min(self._window + frame.size, _LARGEST_WINDOW)
            self._lock.notify_all()

    def _set(self, values: Mapping[int, int]) -> None:
        size = values.get(spdy.INITIAL_WINDOW_SIZE)
        if size is None:
            return
        with self._lock:
            self._windows = True
            change = min(size, _LARGEST_WINDOW) - self._first_window
            self._first_window += change
            for stream in self._streams.values():
                stream.window += change
            self._lock.notify_all()
