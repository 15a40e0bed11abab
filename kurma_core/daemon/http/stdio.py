"""Standard input, output and error of a client, carried in frames. No descriptor of a client comes here."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

from kurma_core.client.frames import ERROR, INPUT, MESSAGE, OUTPUT, WINDOW, FrameError
from kurma_core.daemon.http.exchange import Gone
from kurma_core.daemon.operations import Query
from kurma_core.daemon.process.threads import begin
from kurma_core.models.stdio import Stdio
from kurma_core.staging.relay import Relay, TooMuchInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from kurma_core.daemon.operations import Call

Json = Any
_KINDS = {1: OUTPUT, 2: ERROR}
_STREAMS = {"stdout": 1, "stderr": 2}
#: Parameters of the operations that have a caller.
STDIO = (
    Query("terminal", "flag", "the client's standard input is a terminal", default=False),
    Query("rows", "whole", "of that terminal", default=24, least=0, most=65535),
    Query("columns", "whole", "of that terminal", default=80, least=0, most=65535),
)


class Caller:
    """For a ``with`` statement: hears the client, and relays its input and output once they are opened.

    :param ends_input: a client that has gone ends the program's input; else the program is only asked to end.
    :param left: called once the client has gone.
    :param told: called with the messages that are none of input, terminals and signals.
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
        self._stream, self._query = call.stream, call.query
        self._lock = threading.Lock()
        self._relay: Relay | None = None
        # What the client says before its streams are opened.
        self._early: list[bytes] = []
        self._size = (int(call.query["rows"]), int(call.query["columns"])) if call.query["terminal"] else None
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
        """Pipes for a program in a pod; its standard input is a pseudo-terminal if ``terminal``, and if the client
        has one. The client is told whether its input is wanted.

        :raises BusyError: there are as many threads as there may be. :raises Gone: the client has gone.
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
        """The program has its descriptors by now. May be repeated."""
        if self._relay is not None:
            self._relay.close_program_ends()

    def hang_up(self) -> None:
        """What waits for signals is asked to end. May be repeated."""
        with self._lock:
            if self._signals >= 0:
                os.close(self._signals)
                self._signals = -1

    def _send(self, number: int, data: bytes) -> None:
        with contextlib.suppress(Gone):  # what runs is asked to end by other means
            self._stream.send(_KINDS[number], data)

    def _taken(self, count: int) -> None:
        with contextlib.suppress(Gone):
            self._stream.tell({"is": "taken", "bytes": count})

    def _signal(self, number: int) -> None:
        with self._lock, contextlib.suppress(BlockingIOError, BrokenPipeError):  # nobody waits for any
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
    """:raises FrameError: it is no such number."""
    value = message.get(name)
    if type(value) is not int or not least <= value <= most:
        raise FrameError(f"a message {message['is']!r} whose {name} is no number of {least} to {most}")
    return value


__all__ = ["STDIO", "Caller", "not_understood"]
