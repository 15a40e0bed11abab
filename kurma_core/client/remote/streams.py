"""Standard streams of the caller, carried to kurmad in frames: pods in the foreground, commands in apps."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import select

from kurma_core.api.wire import ERROR, INPUT, LOG, MESSAGE, OUTPUT, WINDOW, FrameReader, frame
from kurma_core.errors import Cancelled, DaemonGoneError, Interrupted
from kurma_core.formats.small_json import decode, encode
from kurma_core.models.streams import LogText
from kurma_core.staging import caller_streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from kurma_core.client.remote.http import Connection
    from kurma_core.errors import KurmaError
    from kurma_core.linux.terminal import RawTerminal
    from kurma_core.models.streams import Stdio
    from kurma_core.signals import Signals

    Json = Any
    Tell = Callable[[Json], None]
_PIECE = 1 << 18
_INPUT_PIECE = 65536
#: Signals that say that the terminal has changed.
TERMINAL_SIGNALS = (_signal.SIGWINCH, _signal.SIGCONT)
#: The streams of each kind of frame, by their descriptors' numbers, and the names of these in messages.
_NUMBERS = {OUTPUT: 1, ERROR: 2}
_NAMES = {1: "stdout", 2: "stderr"}


class Stream:
    """The client's end of a connection that speaks frames. A context manager, which closes it at the end.

    :param tell: gets each message except the last.
    :param failure: makes the error of a message that the operation has failed.
    """

    def __init__(self, connection: Connection, tell: Tell, failure: Callable[[Json], KurmaError]) -> None:
        self._connection = connection
        self._tell = tell
        self._failure = failure
        self._reader = FrameReader()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def fileno(self) -> int:
        return self._connection.fileno()

    def say(self, **message: Json) -> None:
        """Sends a message. Ignores a closed connection: :meth:`receive` has the daemon's last message."""
        self._send(MESSAGE, encode(message).encode())

    def type(self, data: bytes) -> None:
        """Sends input; empty: the input has ended."""
        self._send(INPUT, data)

    def _send(self, kind: int, payload: bytes) -> None:
        try:
            self._connection.send(frame(kind, payload))
        except DaemonGoneError:
            return  # the daemon may have sent its reason for closing the connection, which is read later

    def receive(self) -> None:
        """Waits until more frames have arrived. :raises HostError: the daemon has ended."""
        self._reader.feed(self._connection.take(_PIECE))

    def waiting(self) -> bool:
        """Whether something was received that is not taken yet."""
        return self._connection.waiting()

    def frames(self) -> Iterator[tuple[int, Json]]:
        """The received frames: ``LOG`` and its bytes; ``MESSAGE`` and the result's value, the last one.

        :raises KurmaError: the operation has failed.
        :raises Cancelled: the daemon has given up the operation.
        """
        for kind, payload in self._reader.frames():
            if kind != MESSAGE:
                yield kind, payload
                continue
            message = decode(payload)
            if message["is"] == "result":
                yield MESSAGE, message["value"]
            elif message["is"] == "error":
                said = message["error"]
                raise Cancelled(said["message"]) if said["kind"] == "Cancelled" else self._failure(message)
            else:
                self._tell(message)


class CallerStreams:
    """The caller's three descriptors, connected to a stream: input is sent once the daemon wants it, output is
    written as it arrives. For a ``with`` statement, which restores a terminal that was in raw mode at its end.

    :param typed: a terminal's input is for an app: a process in the background stops until it is in the
        foreground.
    :raises UsageError: standard input cannot be read.
    """

    def __init__(self, stdio: Stdio, *, typed: bool) -> None:
        self._stdio = stdio
        self._outputs = caller_streams.Outputs(stdio.stdout, stdio.stderr)
        self._watched = [number for number, fd in self._outputs.fds.items() if _has_reader(fd)]
        self._stream: Stream | None = None
        self._wanted = False
        self._free = WINDOW
        self._raw: RawTerminal | None = None
        self._source = caller_streams.open_input(stdio.stdin)
        if typed and stdio.terminal:
            from kurma_core.linux import terminal

            terminal.Held(stdio.stdin).wait_front()

    def __enter__(self) -> CallerStreams:
        return self

    def __exit__(self, *_: object) -> None:
        self._close_source()
        if self._raw is not None:
            self._raw.__exit__()
            self._raw = None

    def size(self) -> dict[str, int]:
        """The size of the caller's terminal, if standard input is one, in the form of the operations'
        parameters."""
        if not self._stdio.terminal:
            return {}
        from kurma_core.linux import terminal

        rows, columns = terminal.get_size(self._stdio.stdin) or (24, 80)
        return {"terminal": True, "rows": rows, "columns": columns}

    def connect(self, stream: Stream) -> None:
        self._stream = stream

    def hear(self, message: Json) -> bool:
        """Whether a message was about these streams."""
        if message["is"] == "taken":
            self._free += message["bytes"]
        elif message["is"] == "input":
            self._wanted = True
            if message["terminal"]:
                self._go_raw()
        else:
            return False
        return True

    def _go_raw(self) -> None:
        from kurma_core.linux.terminal import RawTerminal

        self._raw = RawTerminal(self._stdio.stdin)
        self._raw.__enter__()
        self._outputs.raw = True

    def put(self, kind: int, data: bytes) -> None:
        """Writes the program's output. If it has no reader, the daemon closes the program's stream."""
        number = _NUMBERS[kind]
        try:
            self._outputs.write(number, data)
        except BrokenPipeError:
            self._closed(number)

    def check(self) -> None:
        """:raises HostError: something could not be written."""
        self._outputs.check()

    def _closed(self, number: int) -> None:
        assert self._stream is not None
        if number in self._watched:
            self._watched.remove(number)
        self._stream.say(**{"is": "closed", "stream": _NAMES[number]})

    def wait(self, signals: Signals, stdout: int = -1) -> list[int]:
        """Waits until frames, input or signals arrive, or an output is closed. Receives frames, and sends input.

        :param stdout: is also watched for its reader's end; -1: there is none.
        :returns: the descriptors that are ready.
        """
        assert self._stream is not None
        if self._wanted and self._source < 0:
            self._end()
        poll = select.poll()
        poll.register(self._stream, select.POLLIN)
        poll.register(signals, select.POLLIN)
        if self._wanted and self._source >= 0 and self._free > 0:
            poll.register(self._source, select.POLLIN)
        for fd in (*(self._outputs.fds[number] for number in self._watched), stdout):
            if fd >= 0:
                poll.register(fd, 0)
        ready = [fd for fd, _ in poll.poll(0 if self._stream.waiting() else None)]
        for number in list(self._watched):
            if self._outputs.fds[number] in ready:
                self._closed(number)
        if self._source >= 0 and self._source in ready:
            self._send_input(self._stream)
        if self._stream.waiting() or self._stream.fileno() in ready:
            self._stream.receive()
        return ready

    def _send_input(self, stream: Stream) -> None:
        data = caller_streams.read(self._source, min(self._free, _INPUT_PIECE))
        if data:
            self._free -= len(data)
            stream.type(data)
        elif data is not None:
            self._close_source()

    def _end(self) -> None:
        assert self._stream is not None
        self._wanted = False
        if self._raw is not None:
            # The terminal hung up. That is not an end of input that could be typed.
            self._stream.say(**{"is": "signal", "number": int(_signal.SIGHUP)})
        self._stream.type(b"")

    def signal(self, number: int) -> None:
        """Passes a signal on, or the terminal's new size."""
        assert self._stream is not None
        if number not in TERMINAL_SIGNALS:
            self._stream.say(**{"is": "signal", "number": number})
        elif self._raw is not None:
            if number == _signal.SIGCONT:
                self._raw.again()
            size = self._raw.size()
            if size is not None:
                self._stream.say(**{"is": "resize", "rows": size[0], "columns": size[1]})

    def _close_source(self) -> None:
        if self._source >= 0:
            os.close(self._source)
            self._source = -1


class ForegroundPod:
    """A pod in the foreground of this command: shows its logs, stops it on signals, returns its end; like
    :func:`kurma_core.pods.run.foreground.run_to_end`, but for a pod that kurmad owns.

    :param streams: connects the input of apps, and the output of a stager itself.
    :param output, stdout, ending: see there.
    """

    def __init__(
        self,
        stream: Stream,
        streams: CallerStreams,
        signals: Signals,
        output: Callable[[LogText], None],
        stdout: int,
        ending: Callable[[], None],
    ) -> None:
        from kurma_core.pods.run.foreground import Shown, Stops

        self._stream = stream
        self._signals = signals
        self._stops = Stops(self, signals, ending)
        self._shown = Shown(output)
        self._failed: BaseException | None = None
        self._early = 0  # the signal that came before it ran
        self._streams = streams
        self._stdout = stdout if _has_reader(stdout) else -1
        #: Whether it is up; set by the receiver of messages.
        self.runs = False

    def stop(self, *, force: bool) -> None:
        """Requests the pod's end; does not wait."""
        self._stream.say(**{"is": "stop", "force": force})

    def follow(self) -> Json:
        """The record of the pod, once it has ended. :raises Interrupted: a signal arrived before the pod ran, so
        that it will not run."""
        while True:
            for kind, value in self._frames():
                if kind == LOG:
                    self._show(value)
                elif kind != MESSAGE:
                    self._streams.put(kind, value)
                else:
                    self._stops.end()
                    if self._failed is not None:
                        raise self._failed
                    return value
            self._guarded(self._shown.flush)
            self._wait()

    def _frames(self) -> Iterator[tuple[int, Json]]:
        try:
            yield from self._stream.frames()
        except Cancelled:
            if self._early:
                raise Interrupted(self._early) from None
            raise

    def _guarded(self, show: Callable[..., None], *texts: LogText) -> None:
        """Shows output. An error, such as a full disk, ends the pod, and is raised at its end."""
        if self._failed is None:
            try:
                show(*texts)
            except Exception as error:  # noqa: BLE001 (raised at the end)
                self._failed = error
                self._shown.close()
                self._stops.end()
                self._stops.asked += 1
                self.stop(force=True)

    def _show(self, payload: bytes) -> None:
        for text in texts(payload):
            if self._shown.closed():
                break
            self._guarded(self._shown, text)
        self._look()

    def _wait(self) -> None:
        if self._shown.closed() and self.runs and not self._stops.asked:
            self._stops.ask()
        if self._stdout in self._streams.wait(self._signals, self._stdout):
            self._stdout = -1
            self._shown.close()
        self._look()

    def _look(self) -> None:
        for number in self._signals.numbers():
            if number in TERMINAL_SIGNALS:
                self._streams.signal(number)
            elif self.runs:
                self._stops.ask()
            elif self._early:
                raise Interrupted(number)
            else:
                self._early = number
                self.stop(force=False)


def call_in(stream: Stream, streams: CallerStreams, *, terminal: bool) -> int:
    """A command in an app, or an app that is attached to, until its end: its exit code.

    :param terminal: the caller's standard input is a terminal: signals are for the command. Else they end this
        process, and thereby the command.
    """
    from kurma_core.signals import Signals

    also = (*TERMINAL_SIGNALS, _signal.SIGQUIT)
    with Signals(taken=terminal, also=also) as signals:
        signals.settle()
        try:
            return _exit_code(stream, streams, signals)
        except KeyboardInterrupt:
            stream.say(**{"is": "signal", "number": int(_signal.SIGINT)})
            raise


def _exit_code(stream: Stream, streams: CallerStreams, signals: Signals) -> int:
    while True:
        for kind, value in stream.frames():
            if kind == MESSAGE:
                streams.check()
                return int(value["exitCode"])
            streams.put(kind, value)
        streams.wait(signals)
        for number in signals.numbers():
            streams.signal(number)


def _has_reader(fd: int) -> bool:
    from kurma_core.pods.run.foreground import has_reader

    return has_reader(fd)


def texts(payload: bytes) -> Iterator[LogText]:
    """The texts in a frame of logs."""
    at = 0
    while at < len(payload):
        end = at + 4 + int.from_bytes(payload[at : at + 4], "big")
        app, when, stream, part, text = payload[at + 4 : end].split(b" ", 4)
        yield LogText(app.decode(), when.decode(), stream.decode(), part == b"P", text)
        at = end
