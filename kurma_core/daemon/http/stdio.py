"""Standard input, output and error of a client, carried in frames. kurmad gets no descriptor of a client."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

from kurma_core.api.frames import ERROR, INPUT, MESSAGE, OUTPUT, WINDOW, FrameError
from kurma_core.daemon.http.exchange import Gone
from kurma_core.daemon.process.threads import begin
from kurma_core.models.stdio import Stdio
from kurma_core.staging.relay import Relay, TooMuchInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from kurma_core.daemon.http.calls import Call

Json = Any
_KINDS = {1: OUTPUT, 2: ERROR}
_STREAMS = {"stdout": 1, "stderr": 2}


class Caller:
    """The client's end of a program's standard streams, in a ``with`` statement.

    :param ends_input: the program's input ends when the client disconnects; else it is only asked to end.
    :param left: called once the client has disconnected.
    :param told: called with messages that are not about input, terminals and signals.
    """

    def __init__(
        self,
        call: Call,
        *,
        ends_input: bool = True,
        left: Callable[[], None] = lambda: None,
        told: Callable[[dict[str, Json]], None] | None = None,
    ) -> None:
        assert call.stream is not None
        self._left, self._told, self._ends_input = left, told or not_understood, ends_input
        self._stream, given = call.stream, call.arguments
        self._lock = threading.Lock()
        self._relay: Relay | None = None
        # Input that arrives before the streams are opened.
        self._early: list[bytes] = []
        self._size = (given["rows"], given["columns"]) if given["terminal"] else None
        self._client_gone = False
        signals, self._signals = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._to_pass_on = signals
        try:
            call.stream.listen(self._hear, self._gone)
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
            self._stream.send(_KINDS[number], data)

    def _taken(self, count: int) -> None:
        with contextlib.suppress(Gone):
            self._stream.tell({"is": "taken", "bytes": count})

    def _signal(self, number: int) -> None:
        with (
            self._lock,
            contextlib.suppress(BlockingIOError, BrokenPipeError),
        ):  # it reads none
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
            number = _STREAMS.get(value.get("stream"))
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
            raise FrameError(f"more than {WINDOW} bytes of input that were not taken yet") from None

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
        raise FrameError(f"a message {message['is']!r} whose {name} is no number of {least} to {most}")
    return value


__all__ = ["Caller", "not_understood"]
