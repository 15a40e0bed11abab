"""Standard input, output and error of somebody who is in another process: lent by them, or carried in frames."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from typing import TYPE_CHECKING, Any

from kurma_core.client.frames import ERROR, INPUT, MESSAGE, OUTPUT, WINDOW, FrameError
from kurma_core.daemon.exchange import Gone
from kurma_core.daemon.operations import Query
from kurma_core.daemon.threads import begin
from kurma_core.errors import BusyError
from kurma_core.hookspecs import Stdio
from kurma_core.linux import terminal

if TYPE_CHECKING:
    from collections.abc import Callable

    from kurma_core.daemon.operations import Call
    from kurma_core.daemon.streams import Stream

Json = Any
_PIECE = 65536
#: Parameters of the operations that have a caller.
STDIO = (
    Query(
        "stdio",
        "text",
        "how the three descriptors come: in frames, or lent with the first message",
        choices=("frames", "lent"),
        default="frames",
    ),
    Query("terminal", "flag", "with frames: what the client has is a terminal", default=False),
    Query("rows", "whole", "of that terminal", default=24, least=0, most=65535),
    Query("columns", "whole", "of that terminal", default=80, least=0, most=65535),
)


class Caller:
    """For a ``with`` statement: what is done inside is done with the caller's descriptors, and heard from them.

    :param left: called once the client has gone.
    :param told: called with the messages that are none of input, terminals and signals.
    """

    def __init__(
        self,
        call: Call,
        *,
        left: Callable[[], None] = lambda: None,
        told: Callable[[dict[str, Json]], None] = lambda message: None,
    ) -> None:
        assert call.stream is not None
        self._left, self._told = left, told
        self._lock = threading.Lock()
        signals, self._signals = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._to_pass_on = signals
        self._theirs: list[int] = []
        self._carrier: _Carrier | None = None
        try:
            if call.query["stdio"] == "lent":
                fds, person = call.stream.lent()
                self._theirs += fds
            else:
                size = (call.query["rows"], call.query["columns"]) if call.query["terminal"] else None
                self._carrier = _Carrier(call.stream, size)
                self._carrier.start()
                fds, person = self._carrier.theirs, size is not None
                self._theirs += set(fds)
            self.stdio = Stdio(*fds, terminal=person, signals=signals)
            call.stream.listen(self._hear, self._gone)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self.started()
        self.hang_up()
        os.close(self._to_pass_on)
        if self._carrier is not None:
            self._carrier.finish()

    def started(self) -> None:
        """Whoever is to have the descriptors has them by now. May be repeated."""
        while self._theirs:
            os.close(self._theirs.pop())

    def hang_up(self) -> None:
        """What waits for signals is asked to end. May be repeated."""
        with self._lock:
            if self._signals >= 0:
                os.close(self._signals)
                self._signals = -1

    def _signal(self, number: int) -> None:
        with self._lock, contextlib.suppress(BlockingIOError, BrokenPipeError):  # nobody waits for any
            if self._signals >= 0:
                os.write(self._signals, bytes([number]))

    def _gone(self) -> None:
        self.hang_up()
        if self._carrier is not None:
            self._carrier.feed(b"")
        self._left()

    def _hear(self, kind: int, value: Any) -> None:
        if kind == INPUT:
            if self._carrier is None:
                raise FrameError("input comes by the descriptor that was lent")
            self._carrier.feed(value)
        elif kind == MESSAGE and value["is"] == "signal":
            self._signal(_whole(value, "number", 1, 64))
        elif kind == MESSAGE and value["is"] == "resize":
            if self._carrier is not None:
                self._carrier.resize(_whole(value, "rows", 0, 65535), _whole(value, "columns", 0, 65535))
            self._signal(signal.SIGWINCH)
        else:
            self._told(value)


class _Carrier:
    """Pipes, or a terminal, whose other ends are here, and the thread that carries what goes through them. The
    output of a client that does not read waits, and its input with it: nothing else does.

    :param size: rows and columns of the terminal; None: pipes.
    """

    def __init__(self, stream: Stream, size: tuple[int, int] | None) -> None:
        self._stream = stream
        self._gone = False
        self._terminal = size is not None
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._outputs: dict[int, int] = {}
        self._held = bytearray()
        self._lock = threading.Lock()
        self._over = False  # no more input comes
        self._finishing = False
        self._drained = threading.Event()
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, self._wake)
            if size is not None:
                self._input, slave = _opened(undo, terminal.open_pair())
                terminal.Held(slave).raw()
                terminal.set_size(slave, *size)
                self._outputs[self._input] = OUTPUT
                self.theirs = (slave, slave, slave)
            else:
                stdin, self._input = _opened(undo, _pipe())
                out, stdout = _opened(undo, _pipe(reading=True))
                err, stderr = _opened(undo, _pipe(reading=True))
                self._outputs = {out: OUTPUT, err: ERROR}
                self.theirs = (stdin, stdout, stderr)
            self._ours = {self._input, *self._outputs}
            self._thread = threading.Thread(target=self._run, name="carrier", daemon=True)
            undo.pop_all()

    def start(self) -> None:
        """:raises BusyError: there are as many threads as there may be; nothing is left open."""
        try:
            begin(self._thread)
        except BusyError:
            _close(*set(self.theirs), *self._ours, self._wake)
            self._wake = -1
            self._drained.set()
            raise

    def feed(self, data: bytes) -> None:
        """:param data: empty: there is no more. :raises FrameError: it is more than is free."""
        with self._lock:
            if not data:
                self._over = True
            elif not self._over:
                if len(self._held) + len(data) > WINDOW:
                    raise FrameError(f"more than {WINDOW} bytes of input that were not taken yet")
                self._held += data
            self._stir()

    def resize(self, rows: int, columns: int) -> None:
        with self._lock:
            if self._terminal and self._input >= 0:
                terminal.set_size(self._input, rows, columns)

    def finish(self) -> None:
        """Nothing more is written there; comes back once all that was has been sent. Input that was not taken goes
        on to whoever reads it."""
        with self._lock:
            self._finishing = self._over = True
            self._stir()
        self._drained.wait()

    def _stir(self) -> None:
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        try:
            while not self._finishing:
                self._turn()
            for fd in list(self._outputs):
                self._read(fd, whole=True)
            self._outputs.clear()
            self._drained.set()
            while self._input >= 0 and self._held and not self._terminal:
                self._turn()
        finally:
            self._drained.set()
            with self._lock:
                self._close_input()
                _close(*self._ours, self._wake)
                self._wake = -1

    def _turn(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        events = dict.fromkeys(self._outputs, select.POLLIN)
        if self._held and self._input >= 0:
            events[self._input] = events.get(self._input, 0) | select.POLLOUT
        for fd, event in events.items():
            poll.register(fd, event)
        for fd, event in poll.poll():
            if fd == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
                continue
            if fd in self._outputs and event & ~select.POLLOUT:
                self._read(fd)
            if fd == self._input and event & ~select.POLLIN:
                self._write()
        with self._lock:
            if self._over and not self._held and not self._terminal:
                self._close_input()

    def _read(self, fd: int, *, whole: bool = False) -> None:
        """:param whole: all that is there."""
        while True:
            try:
                data = os.read(fd, _PIECE)
            except BlockingIOError:
                return
            except OSError:  # the other side of the terminal was closed
                data = b""
            if not data:
                self._outputs.pop(fd, None)
                return
            if not self._gone:
                try:
                    self._stream.send(self._outputs[fd], data)
                except Gone:
                    self._gone = True
            if not whole:
                return

    def _write(self) -> None:
        try:
            count = os.write(self._input, self._held[:_PIECE])
        except BlockingIOError:
            return
        except OSError:  # who was to read it has closed it
            with self._lock:
                count = len(self._held)
                self._held.clear()
                if not self._terminal:
                    self._close_input()
        else:
            with self._lock:
                del self._held[:count]
        with contextlib.suppress(Gone):
            self._stream.tell({"is": "taken", "bytes": count})

    def _close_input(self) -> None:
        if self._input >= 0:
            self._ours.discard(self._input)
            os.close(self._input)
            self._input = -1
            self._over = True


def _opened(undo: contextlib.ExitStack, ends: tuple[int, int]) -> tuple[int, int]:
    """Both ends, which are closed if it comes to that."""
    undo.callback(_close, *ends)
    return ends


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)


def _pipe(*, reading: bool = False) -> tuple[int, int]:
    """:param reading: the reading end is ours; ours does not block."""
    ends = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(ends[0 if reading else 1], False)
    return ends


def _whole(message: dict[str, Json], name: str, least: int, most: int) -> int:
    """:raises FrameError: it is no such number."""
    value = message.get(name)
    if type(value) is not int or not least <= value <= most:
        raise FrameError(f"a message {message['is']!r} whose {name} is no number of {least} to {most}")
    return value


__all__ = ["STDIO", "Caller"]
