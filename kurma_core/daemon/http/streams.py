"""Streams: frames (:mod:`kurma_core.api.wire`) in both directions on an upgraded connection, and the standard
input, output and error of a client in them. kurmad gets no descriptor of a client."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kurma_core.api.wire import (
    ERROR,
    INPUT,
    LIMIT,
    MESSAGE,
    OUTPUT,
    PROTOCOL,
    WINDOW,
    FrameError,
    FrameReader,
    error_to_json,
    frame,
)
from kurma_core.cancellation import governing
from kurma_core.daemon.http.error_status import Gone, told_error
from kurma_core.daemon.http.exchange import REQUEST_PATIENCE, json_line
from kurma_core.daemon.http.messages import Conversation, Messages, conversing
from kurma_core.daemon.process.threads import begin
from kurma_core.errors import Cancelled, UsageError
from kurma_core.json_text import loads
from kurma_core.models.streams import Stdio
from kurma_core.staging.relay import Relay, TooMuchInput

if TYPE_CHECKING:
    from kurma_core.cancellation import Cancellation
    from kurma_core.daemon.http.exchange import Exchange

Json = Any
Hear = Callable[[int, Any], None]
_PIECE = 65536
_LAST = ("result", "error")
_OUTPUT_KINDS = {1: OUTPUT, 2: ERROR}
_OUTPUT_NUMBERS = {"stdout": 1, "stderr": 2}


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
        """Sends a message; a result or an error is the last one. :raises Gone: the client has disconnected."""
        self.send(MESSAGE, json_line(message)[:-1], last=message["is"] in _LAST)

    def close(self) -> None:
        self._shut()
        if self._thread.ident is not None:
            self._thread.join()
        # They may refer to this stream: what refers to itself is freed late.
        del self._heard, self._left

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
                    raise FrameError(f"a client must not send frames of kind {kind}")
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
            raise FrameError("a frame is incomplete")


def _message(payload: bytes) -> dict[str, Json]:
    """:raises FrameError: it is malformed."""
    try:
        value = loads(payload, own=True)
    except ValueError as error:
        raise FrameError(f"cannot read a message: {error}") from None
    if not isinstance(value, dict) or not isinstance(value.get("is"), str):
        raise FrameError("a message lacks the key 'is'")
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
        with conversing(Conversation(messages.tell, exchange.headers)), governing(cancellation):
            last = _last(exchange, stream, handle)
        messages.end(last)
    except Gone:
        return
    finally:
        stream.close()


def _last(exchange: Exchange, stream: Stream, handle: Callable[[Stream], Json]) -> dict[str, Json]:
    """:raises Gone: the client has disconnected."""
    try:
        return {"is": "result", "value": handle(stream)}
    except Gone:
        raise
    except Cancelled:
        return {"is": "error", "error": {"kind": "Cancelled", "message": "given up", "exitCode": 130}}
    except Exception as error:  # noqa: BLE001 (the client gets one line; the log has the rest)
        return {"is": "error", **error_to_json(told_error(error, exchange.method, exchange.path))}


class Caller:
    """The client's end of a program's standard streams, in a ``with`` statement.

    :param stream: of an operation of kind ``stream``, and its arguments, which contain the size of a terminal.
    :param ends_input: the program's input ends when the client disconnects; else it is only asked to end.
    :param left: called once the client has disconnected.
    :param told: called with messages that are not about input, terminals and signals.
    """

    def __init__(
        self,
        stream: Stream | None,
        arguments: Mapping[str, Any],
        *,
        ends_input: bool = True,
        left: Callable[[], None] = lambda: None,
        told: Callable[[dict[str, Json]], None] | None = None,
    ) -> None:
        assert stream is not None
        self._left, self._told, self._ends_input = left, told or not_understood, ends_input
        self._stream = stream
        self._lock = threading.Lock()
        self._relay: Relay | None = None
        # Input that arrives before the streams are opened.
        self._early: list[bytes] = []
        self._size = (arguments["rows"], arguments["columns"]) if arguments["terminal"] else None
        self._client_gone = False
        signals, self._signals = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._to_pass_on = signals
        try:
            stream.listen(self._hear, self._gone)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()
        os.close(self._to_pass_on)
        if self._relay is not None:
            self._relay.close_program_ends()
            self._relay.finish()

    def open(self, *, terminal: bool, reads_input: bool = True) -> Stdio:
        """Makes the program's standard streams, and tells the client whether its input is read.

        :param terminal: its standard input is a pseudo-terminal, if the client has a terminal.
        :raises BusyError: no thread can be started. :raises Gone: the client has disconnected.
        """
        with self._lock:
            size = self._size if terminal and reads_input else None
            relay = Relay(self._send, size, taken=self._taken)
            relay.start(begin)
            self._relay = relay
            for data in self._early:
                relay.feed(data, WINDOW)
            self._early.clear()
            if self._client_gone and self._ends_input:
                relay.feed(b"", WINDOW)
        if reads_input:
            self._stream.tell({"is": "input", "terminal": relay.terminal})
        return Stdio(
            relay.stdin,
            relay.stdout,
            relay.stderr,
            terminal=relay.terminal,
            signals=self._to_pass_on,
            relayed=True,
        )

    def started(self) -> None:
        """Closes our copies of the program's descriptors, once it has them. Repeatable."""
        if self._relay is not None:
            self._relay.close_program_ends()

    def hang_up(self) -> None:
        """Ends the pipe of signals, which asks the program to end. Repeatable."""
        with self._lock:
            if self._signals >= 0:
                os.close(self._signals)
                self._signals = -1

    def _send(self, number: int, data: bytes) -> None:
        with contextlib.suppress(Gone):  # _gone asks the program to end
            self._stream.send(_OUTPUT_KINDS[number], data)

    def _taken(self, count: int) -> None:
        with contextlib.suppress(Gone):
            self._stream.tell({"is": "taken", "bytes": count})

    def _signal(self, number: int) -> None:
        with self._lock, contextlib.suppress(BlockingIOError, BrokenPipeError):  # it reads none
            if self._signals >= 0:
                os.write(self._signals, bytes([number]))

    def _gone(self) -> None:
        self.hang_up()
        with self._lock:
            self._client_gone = True
            if self._relay is not None and self._ends_input:
                self._relay.feed(b"", WINDOW)
        self._left()

    def _hear(self, kind: int, value: Any) -> None:
        if kind == INPUT:
            self._feed(value)
        elif kind == MESSAGE and value["is"] == "signal":
            self._signal(_whole(value, "number", 1, 64))
        elif kind == MESSAGE and value["is"] == "resize":
            self._resize(_whole(value, "rows", 0, 65535), _whole(value, "columns", 0, 65535))
            self._signal(signal.SIGWINCH)
        elif kind == MESSAGE and value["is"] == "closed":
            stream = value.get("stream")
            number = _OUTPUT_NUMBERS.get(stream) if isinstance(stream, str) else None
            if number is None:
                raise FrameError("a message 'closed' whose stream is neither stdout nor stderr")
            if self._relay is not None:
                self._relay.close_output(number)
        else:
            self._told(value)

    def _feed(self, data: bytes) -> None:
        try:
            with self._lock:
                if self._relay is not None:
                    self._relay.feed(data, WINDOW)
                    return
                self._early.append(data)
                if sum(map(len, self._early)) > WINDOW:
                    raise TooMuchInput
        except TooMuchInput:
            raise FrameError(f"more than {WINDOW} bytes of input are unread") from None

    def _resize(self, rows: int, columns: int) -> None:
        with self._lock:
            if self._relay is not None:
                self._relay.resize(rows, columns)
            elif self._size is not None:
                self._size = (rows, columns)


def not_understood(message: dict[str, Json]) -> None:
    """:raises FrameError: always."""
    raise FrameError(f"unknown message {message['is']!r:.40}")


def _whole(message: dict[str, Json], name: str, least: int, most: int) -> int:
    """:raises FrameError: the value is not a number in that range."""
    value = message.get(name)
    if type(value) is not int or not least <= value <= most:
        raise FrameError(f"a message {message['is']!r} whose {name} is not a number of {least} to {most}")
    return value
