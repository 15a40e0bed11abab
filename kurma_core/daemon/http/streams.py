"""Streams: frames (:mod:`kurma_core.api.frames`) in both directions on an upgraded connection."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kurma_core.api.errors import error_to_json
from kurma_core.api.frames import INPUT, LIMIT, MESSAGE, PROTOCOL, FrameError, FrameReader, frame
from kurma_core.cancellation import governing
from kurma_core.daemon.http.exchange import REQUEST_PATIENCE, Gone
from kurma_core.daemon.http.messages import Messages, Operation, attempts_of, working
from kurma_core.daemon.process.threads import begin
from kurma_core.errors import Cancelled, KurmaError, UsageError
from kurma_core.json_text import loads

if TYPE_CHECKING:
    from kurma_core.cancellation import Cancellation
    from kurma_core.daemon.http.exchange import Exchange

Json = Any
Hear = Callable[[int, Any], None]
_PIECE = 65536
_LAST = ("result", "error")


class Stream:
    """A handler's connection to its client.

    One thread reads frames and calls the listener; any thread may send. A client that sends anything but whole
    frames gets an error and is disconnected.
    """

    def __init__(self, connected: socket.socket, first: bytes) -> None:
        self._socket = connected
        self._reader = FrameReader(first)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, name="stream", daemon=True)
        self._heard: Hear = lambda kind, value: None
        self._left: Callable[[], None] = lambda: None

    def listen(self, heard: Hear, left: Callable[[], None]) -> None:
        """Starts reading the client's frames, in another thread.

        :param heard: called with each frame: its kind, and bytes, or the JSON of a message; may raise FrameError.
        :param left: called once the client has disconnected.
        :raises BusyError: no thread can be started.
        """
        self._heard, self._left = heard, left
        begin(self._thread)

    def watch(self, poll: select.poll) -> int:
        """Wakes the poll once the client has disconnected. :returns: the descriptor that is ready then."""
        poll.register(self._socket, select.POLLRDHUP)
        return self._socket.fileno()

    def send(self, kind: int, payload: bytes, *, last: bool = False) -> None:
        """:param last: nothing is sent after it, by any thread. :raises Gone: the client has disconnected."""
        pieces = [payload[at : at + LIMIT] for at in range(0, len(payload), LIMIT)] or [b""]
        with self._lock:
            try:
                for piece in pieces:
                    self._socket.sendall(frame(kind, piece))
                if last:
                    self._socket.shutdown(socket.SHUT_WR)
            except OSError:
                raise Gone from None

    def tell(self, message: dict[str, Json]) -> None:
        """A message; a result or an error is the last one. :raises Gone: the client has disconnected."""
        payload = json.dumps(message, ensure_ascii=False, default=dict).encode()
        self.send(MESSAGE, payload, last=message["is"] in _LAST)

    def close(self) -> None:
        self._shut()
        if self._thread.ident is not None:
            self._thread.join()

    def _shut(self) -> None:
        with contextlib.suppress(OSError):  # the client has disconnected
            self._socket.shutdown(socket.SHUT_RDWR)

    # -- the reading thread --

    def _read(self) -> None:
        try:
            self._hear_all()
        except FrameError as error:
            with contextlib.suppress(Gone):
                self.tell({"is": "error", **error_to_json(UsageError(f"the stream is broken: {error}"))})
            self._shut()
        except (OSError, Gone):
            pass
        self._left()

    def _hear_all(self) -> None:
        deadline: float | None = None
        while True:
            for kind, payload in self._reader.frames():
                deadline = None
                if kind == INPUT:
                    self._heard(kind, payload)
                elif kind == MESSAGE:
                    self._heard(kind, _message(payload))
                else:
                    raise FrameError(f"a client sends no frames of kind {kind}")
            if not self._reader.inside:
                deadline = None
            elif deadline is None:
                deadline = time.monotonic() + REQUEST_PATIENCE
            self._wait(deadline)
            data = self._socket.recv(_PIECE)
            if not data:
                return
            self._reader.feed(data)

    def _wait(self, deadline: float | None) -> None:
        """Waits for bytes. :raises FrameError: none have arrived by the deadline."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if not poll.poll(None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000):
            raise FrameError("the rest of a frame does not come")


def _message(payload: bytes) -> dict[str, Json]:
    """:raises FrameError: it is malformed."""
    try:
        value = loads(payload, own=True)
    except ValueError as error:
        raise FrameError(f"cannot read a message: {error}") from None
    if not isinstance(value, dict) or not isinstance(value.get("is"), str):
        raise FrameError("a message that does not say what it is")
    return value


def serve(exchange: Exchange, cancellation: Cancellation, handle: Callable[[Stream], Json]) -> None:
    """Upgrades the connection and runs the handler. Its result, or its error, is the last message.

    :param cancellation: cancelled to give up the handler's work.
    """
    connected, first = exchange.upgrade(PROTOCOL)
    connected.settimeout(None)
    stream = Stream(connected, first)
    try:
        messages = Messages(connected, stream.tell)
        attempts = attempts_of(exchange.headers.get("kurma-passphrases"))
        operation = Operation(messages.tell, attempts=attempts, hears_progress=True)
        with working(operation), governing(cancellation):
            last = _last(exchange, stream, handle)
        messages.end(last)
    except Gone:
        return
    finally:
        stream.close()


def _last(exchange: Exchange, stream: Stream, handle: Callable[[Stream], Json]) -> dict[str, Json]:
    """:raises Gone: the client has disconnected."""
    from kurma_core.daemon.failures import logged

    try:
        return {"is": "result", "value": handle(stream)}
    except KurmaError as error:
        return {"is": "error", **error_to_json(error)}
    except Gone:
        raise
    except Cancelled:
        return {"is": "error", "error": {"kind": "Cancelled", "message": "given up", "exitCode": 130}}
    except Exception as error:  # noqa: BLE001 (the client gets one line; the log has the rest)
        return {"is": "error", **error_to_json(logged(error, exchange.method, exchange.path))}


__all__ = ["Stream", "serve"]
