"""What the daemon does in front of somebody who is here: a pod in the foreground, a command in an app."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import select

from kurma_core.client import values
from kurma_core.client.frames import LOG, MESSAGE, FrameReader, frame
from kurma_core.errors import Cancelled, DaemonGoneError, Interrupted
from kurma_core.linux import terminal
from kurma_core.linux.smalljson import decode, encode
from kurma_core.models import LogText

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from kurma_core.client.wire import Connection
    from kurma_core.hookspecs import Stdio
    from kurma_core.pods.foreground import Signals

    Json = Any
    Tell = Callable[[Json], None]
_PIECE = 1 << 18
#: Signals that whoever has our terminal is to know of.
OF_TERMINALS = (_signal.SIGWINCH, _signal.SIGCONT)


class Stream:
    """The client's end of a connection that speaks frames. A context manager: at its end it is closed.

    :param tell: gets each message that comes but the last.
    """

    def __init__(self, connection: Connection, tell: Tell) -> None:
        self._connection = connection
        self._tell = tell
        self._reader = FrameReader()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def fileno(self) -> int:
        return self._connection.fileno()

    def say(self, **message: Json) -> None:
        """Who is not listened to any more is not told so here: :meth:`receive` has what the daemon said last."""
        self._send(message)

    def lend(self, stdio: Stdio) -> None:
        """The first that is said: the daemon may use these descriptors until the end."""
        message = {"is": "stdio", "terminal": stdio.terminal}
        fds = (stdio.stdin, stdio.stdout, stdio.stderr)
        self._send(message, fds)

    def _send(self, message: Json, fds: tuple[int, ...] = ()) -> None:
        try:
            self._connection.send(frame(MESSAGE, encode(message).encode()), fds)
        except DaemonGoneError:
            return  # it may have said why it closed the connection, which is still to be received

    def receive(self) -> None:
        """Waits until more has come. :raises HostError: the daemon has gone."""
        self._reader.feed(self._connection.take(_PIECE))

    def waiting(self) -> bool:
        """Whether something was received that is not taken yet."""
        return self._connection.waiting()

    def frames(self) -> Iterator[tuple[int, Json]]:
        """What has come: ``LOG`` and its bytes; ``MESSAGE`` and the result's value, the last one.

        :raises KurmaError: what the daemon had.
        :raises Cancelled: it has given up what it did.
        """
        for kind, payload in self._reader.frames():
            if kind != MESSAGE:
                yield kind, payload
                continue
            message = decode(payload)
            if message["is"] == "result":
                yield MESSAGE, message["value"]
            elif message["is"] == "error":
                raise values.failure(message["error"])
            else:
                self._tell(message)


class Shower:
    """A pod in the foreground here: its logs come out, signals stop it, its end is ours; as
    :func:`kurma_core.pods.foreground.run_to_end` has it for a pod that is this process's own.

    :param output, stdout, ending: see there.
    """

    def __init__(
        self,
        stream: Stream,
        signals: Signals,
        output: Callable[[LogText], None],
        stdout: int,
        ending: Callable[[], None],
    ) -> None:
        from kurma_core.pods.foreground import Shown, Stops, has_reader

        self._stream = stream
        self._signals = signals
        self._stops = Stops(self, signals, ending)
        self._shown = Shown(output)
        self._failed: BaseException | None = None
        self._early = 0  # the signal that came before it ran
        self._stdout = stdout
        self._poll = select.poll()
        self._poll.register(stream, select.POLLIN)
        self._poll.register(signals, select.POLLIN)
        if has_reader(stdout):
            self._poll.register(stdout, 0)
        #: Whether it is up; set by who hears of it.
        self.runs = False

    def stop(self, *, force: bool) -> None:
        """Asks for the pod's end; does not wait."""
        self._stream.say(**{"is": "stop", "force": force})

    def follow(self) -> Json:
        """The pod, once it has ended.

        :raises Interrupted: a signal came before it ran, and it does not.
        """
        while True:
            for kind, value in self._frames():
                if kind == LOG:
                    self._show(value)
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
        """What hinders the output, as a full disk, ends the pod first."""
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
        """Until more has come."""
        while True:
            if self._shown.closed() and self.runs and not self._stops.asked:
                self._stops.ask()
            ready = [fd for fd, _ in self._poll.poll(0 if self._stream.waiting() else None)]
            if self._stdout in ready:
                self._poll.unregister(self._stdout)
                self._shown.close()
            self._look()
            if self._stream.waiting() or self._stream.fileno() in ready:
                self._stream.receive()
                return

    def _look(self) -> None:
        for number in self._signals.numbers():
            if number in OF_TERMINALS:
                self._stream.say(**{"is": "signal", "number": number})
            elif self.runs:
                self._stops.ask()
            elif self._early:
                raise Interrupted(number)
            else:
                self._early = number
                self.stop(force=False)


def call_in(stream: Stream, stdio: Stdio) -> int:
    """A command in an app, or an app that is attached to, until its end: its exit code."""
    from kurma_core.pods.foreground import Signals

    if not stdio.terminal:
        try:
            return _exit_code(stream)
        except KeyboardInterrupt:
            stream.say(**{"is": "signal", "number": 2})
            raise
    with Signals(also=(*OF_TERMINALS, _signal.SIGQUIT)) as signals:
        signals.settle()
        poll = select.poll()
        poll.register(stream, select.POLLIN)
        poll.register(signals, select.POLLIN)
        while True:
            for _, value in stream.frames():
                return int(value["exitCode"])
            ready = [fd for fd, _ in poll.poll(0 if stream.waiting() else None)]
            for number in signals.numbers():
                stream.say(**{"is": "signal", "number": number})
            if stream.waiting() or stream.fileno() in ready:
                stream.receive()


def _exit_code(stream: Stream) -> int:
    while True:
        for _, value in stream.frames():
            return int(value["exitCode"])
        stream.receive()


class Lent:
    """A person's terminal in the daemon's hands, for a ``with`` statement: at the end it is as it was.

    :param typed: what is typed there is not for us: who is in the background waits until it is in front.
    """

    def __init__(self, stdio: Stdio, *, typed: bool) -> None:
        self._held = terminal.Held(stdio.stdin) if stdio.terminal else None
        if typed and self._held is not None:
            self._held.wait_front()

    def __enter__(self) -> None:
        return

    def __exit__(self, *_: object) -> None:
        if self._held is not None:
            self._held.restore()


def texts(payload: bytes) -> Iterator[LogText]:
    """What a frame of logs holds."""
    at = 0
    while at < len(payload):
        end = at + 4 + int.from_bytes(payload[at : at + 4], "big")
        app, when, stream, part, text = payload[at + 4 : end].split(b" ", 4)
        yield LogText(app.decode(), when.decode(), stream.decode(), part == b"P", text)
        at = end


__all__ = ["OF_TERMINALS", "Lent", "Shower", "Stream", "call_in", "texts"]
