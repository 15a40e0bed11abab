"""Relays standard input, output and error between a caller and a program that is started inside a pod.

The program gets pipes, or a pseudo-terminal, of Kurma's own and never a descriptor of the caller: by
``/proc/self/fd`` it could open the caller's file once more, with other rights, and a process that it leaves behind
could read what is typed at the caller's terminal afterwards.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import threading
from typing import TYPE_CHECKING

from kurma_core.linux import terminal
from kurma_core.models.streams import Stdio
from kurma_core.staging import caller_streams

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType, TracebackType

    _Handler = signal.Handlers | int | Callable[[int, FrameType | None], object] | None

_PIECE = 65536
_FIONREAD = 0x541B
#: Bytes that are still read of a terminal whose program has ended: another process may write to it for ever.
_LAST = 1 << 18
#: Seconds that the last output has after an interruption.
_MOMENT = 0.5
_OUTPUT, _ERROR = 1, 2


class TooMuchInput(Exception):
    """More input than may be kept until the program takes it."""


class Relay:
    """Pipes or a pseudo-terminal, and the thread that carries what goes through. An output that blocks holds up
    the other streams of this relay, and nothing else.

    :param send: gets what the program writes: 1 or 2 for the stream, and the bytes. Raises BrokenPipeError where
        nobody reads that stream: the program then finds it closed.
    :param size: rows and columns of a pseudo-terminal that is the program's standard input; None: it is a pipe.
    :param source: a descriptor that input is read from, closed by the relay; -1: input comes by :meth:`feed`.
    :param readers: stream → descriptor to which it goes in the end: once nobody reads there, the stream is closed.
    :param taken: told how many bytes of input have gone on to the program.

    :attr:`stdin`, :attr:`stdout`, :attr:`stderr` are for the program; :meth:`close_program_ends` closes them.
    """

    def __init__(
        self,
        send: Callable[[int, bytes], None],
        size: tuple[int, int] | None = None,
        *,
        source: int = -1,
        readers: Mapping[int, int] | None = None,
        taken: Callable[[int], None] = lambda count: None,
    ) -> None:
        self._send = send
        self._taken = taken
        self._source = source
        self._readers = dict(readers or {})
        self.terminal = size is not None
        self._lock = threading.Lock()
        self._drained = threading.Event()
        self._held = bytearray()
        self._over = False  # no more input comes
        self._finishing = False
        self._unwanted: set[int] = set()
        self._outputs: dict[int, int] = {}
        self._program_ends: list[int] = []
        self._wake = self._input = -1
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        try:
            self._open(size)
        except BaseException:
            self._close_all()
            raise

    def _open(self, size: tuple[int, int] | None) -> None:
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        if size is None:
            self.stdin, self._input = os.pipe2(os.O_CLOEXEC)
        else:
            self._input, self.stdin = terminal.open_pair()
        self._program_ends.append(self.stdin)
        os.set_blocking(self._input, False)
        if size is not None:
            terminal.Held(self.stdin).raw()
            terminal.set_size(self._input, *size)
            self._outputs[self._input] = _OUTPUT
        for number in (_OUTPUT, _ERROR):
            ours, theirs = os.pipe2(os.O_CLOEXEC)
            self._program_ends.append(theirs)
            self._outputs[ours] = number
            os.set_blocking(ours, False)
        self.stdout, self.stderr = self._program_ends[1:]

    def start(self, begin: Callable[[threading.Thread], None] = threading.Thread.start) -> None:
        """Starts the thread, by ``begin``; if that raises, nothing is left open."""
        try:
            begin(self._thread)
        except BaseException:
            self._close_all()
            self._drained.set()
            raise

    def feed(self, data: bytes, most: int) -> None:
        """:param data: input; empty: there is no more.
        :param most: bytes that are kept until the program takes them. :raises TooMuchInput: these are more.
        """
        with self._lock:
            if not data:
                self._over = True
            elif not self._over:
                if len(self._held) + len(data) > most:
                    raise TooMuchInput
                self._held += data
            self._stir()

    def close_output(self, number: int) -> None:
        """Nobody reads that stream any more."""
        with self._lock:
            self._unwanted.add(number)
            self._stir()

    def resize(self, rows: int, columns: int) -> None:
        """The kernel tells whoever has the terminal by SIGWINCH."""
        with self._lock:
            if self.terminal and self._input >= 0:
                terminal.set_size(self._input, rows, columns)

    def close_program_ends(self) -> None:
        """The program has its descriptors by now, or never will. May be repeated."""
        while self._program_ends:
            os.close(self._program_ends.pop())

    def finish(self, timeout: float | None = None) -> bool:
        """The program has ended. Comes back once all that it wrote has been sent on; what a process that it left
        behind writes later goes nowhere. Input that came by :meth:`feed` and was not taken yet goes on to whoever
        else reads it.

        :returns: False: that takes longer.
        """
        with self._lock:
            self._finishing = self._over = True
            self._stir()
        return self._drained.wait(timeout)

    def _stir(self) -> None:
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    # -- the thread --

    def _run(self) -> None:
        try:
            while not self._finishing:
                self._turn()
            self._drain()
            self._give_back()
            self._drained.set()
            while self._input >= 0 and self._held and not self.terminal:
                self._turn()
        finally:
            self._drained.set()
            with self._lock:
                self._close_ours()

    def _turn(self) -> None:
        with self._lock:
            if self._over and not self._held and not self.terminal:
                self._close_input()
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        wanted = dict.fromkeys(self._outputs, select.POLLIN)
        if self._input >= 0 and self._held:
            wanted[self._input] = wanted.get(self._input, 0) | select.POLLOUT
        if self._source >= 0 and not self._held and not self._over:
            wanted[self._source] = select.POLLIN
        for fd, events in wanted.items():
            poll.register(fd, events)
        readers = {} if self._finishing else {fd: number for number, fd in self._readers.items()}
        for fd in readers:
            poll.register(fd, 0)
        for fd, events in poll.poll():
            if fd == self._wake:
                os.eventfd_read(self._wake)
            elif fd in readers:
                del self._readers[readers[fd]]
                self._unwanted.add(readers[fd])
            elif fd == self._source:
                self._read_source()
            else:
                if fd in self._outputs and events & ~select.POLLOUT:
                    self._read(fd)
                if fd == self._input and events & ~select.POLLIN:
                    self._write()
        if self._unwanted:
            self._close_unwanted()

    def _read_source(self) -> None:
        data = caller_streams.read(self._source, _PIECE)
        if data:
            self._held += data
        elif data is not None:
            # It stays open: what of it is not read is given back at the end.
            with self._lock:
                self._over = True
                if self.terminal:
                    # The caller's terminal was hung up, so is the program's.
                    self._outputs.pop(self._input, None)
                    self._close_input()

    def _read(self, fd: int, most: int = _PIECE) -> int:
        """:returns: how many bytes there were."""
        try:
            data = os.read(fd, most)
        except BlockingIOError:
            return 0
        except OSError:  # no process has the other side of the terminal open
            data = b""
        if not data:
            self._close_output(fd)
            return 0
        try:
            self._send(self._outputs[fd], data)
        except BrokenPipeError:
            self._unwanted.add(self._outputs[fd])
        return len(data)

    def _close_unwanted(self) -> None:
        for fd, number in list(self._outputs.items()):
            if number in self._unwanted:
                self._close_output(fd)

    def _close_output(self, fd: int) -> None:
        """A pipe is closed: its program is told by SIGPIPE. A terminal stays, for its input."""
        del self._outputs[fd]
        if fd != self._input:
            os.close(fd)

    def _drain(self) -> None:
        """Reads what was written until now, and no more: the descriptors may be held by others for ever."""
        for fd in list(self._outputs):
            left = _LAST if fd == self._input else _count(fd)
            while left > 0 and fd in self._outputs and self._outputs[fd] not in self._unwanted:
                count = self._read(fd, min(left, _PIECE))
                if not count:
                    break
                left -= count
        with self._lock:
            for fd in list(self._outputs):
                self._close_output(fd)

    def _give_back(self) -> None:
        """Input that the program has not read is still there for the next one that reads the caller's file."""
        if self._source < 0:
            return
        if not self.terminal and self._program_ends:
            unread = len(self._held) + _count(self.stdin)
            try:  # noqa: SIM105 - a pipe has no position
                os.lseek(self._source, -unread, os.SEEK_CUR)
            except OSError:
                pass
        self._held.clear()
        self._close_source()

    def _write(self) -> None:
        try:
            count = os.write(self._input, self._held[:_PIECE])
        except BlockingIOError:
            return
        except OSError:  # the program has closed its standard input
            with self._lock:
                count = len(self._held)
                self._held.clear()
                if not self.terminal:
                    self._close_input()
            self._close_source()
        else:
            with self._lock:
                del self._held[:count]
        self._taken(count)

    # -- closing --

    def _close_input(self) -> None:
        if self._input >= 0:
            os.close(self._input)
            self._input = -1
            self._over = True

    def _close_source(self) -> None:
        if self._source >= 0:
            os.close(self._source)
            self._source = -1

    def _close_ours(self) -> None:
        for fd in list(self._outputs):
            self._close_output(fd)
        self._close_input()
        self._close_source()
        if self._wake >= 0:
            os.close(self._wake)
            self._wake = -1

    def _close_all(self) -> None:
        self.close_program_ends()
        self._close_ours()


#: Signals that end what runs at a terminal: its program is to know of them.
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)


class CallerRelay(Relay):
    """Between a program and the caller's own three descriptors, for a ``with`` statement.

    :param wants_terminal: the program serves a terminal: where the caller's standard input is one, it gets
        a pseudo-terminal, and the caller's is in raw mode meanwhile.
    :param reads_input: what comes in is for the program; else it finds the end of its input.
    :param passes_signals: signals that come meanwhile go to the program, if there is a terminal.

    :attr:`stdio` is for the program.

    :raises UsageError: standard input cannot be read. :raises HostError: at the end: output could not be written.
    """

    def __init__(
        self, stdio: Stdio, *, wants_terminal: bool, reads_input: bool = True, passes_signals: bool = True
    ) -> None:
        self._caller = caller_streams.Outputs(stdio.stdout, stdio.stderr)
        self._old: dict[int, _Handler] = {}
        self._outer: int | None = None
        self._passes_signals = passes_signals
        self._signals = self._told = -1
        self._raw = None
        size = None
        source = caller_streams.open_input(stdio.stdin) if reads_input else -1
        if wants_terminal and stdio.terminal and reads_input:
            from kurma_core.linux.terminal import RawTerminal

            self._raw = RawTerminal(stdio.stdin)
            size = self._raw.size() or (0, 0)
        super().__init__(self._caller.write, size, source=source, readers=self._caller.fds)
        self._caller.raw = self.terminal
        self._over = source < 0

    def __enter__(self) -> CallerRelay:
        try:
            if self._raw is not None:
                self._raw.__enter__()
                self._take_signals()
        except BaseException:
            self._restore()
            self._close_all()
            raise
        try:
            self.start()
        except BaseException:
            self._restore()
            raise
        self.stdio = Stdio(
            self.stdin, self.stdout, self.stderr, terminal=self.terminal, signals=self._signals, relayed=True
        )
        return self

    def _take_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        numbers: tuple[int, ...] = (signal.SIGWINCH, signal.SIGCONT)
        if self._passes_signals:
            self._signals, self._told = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            numbers += _PASSED_ON
            # The interpreter writes there, not the handler: a signal that comes just before poll(2) does not
            # interrupt it. The program gets SIGWINCH and SIGCONT as well, which do it no harm.
            self._outer = signal.set_wakeup_fd(self._told, warn_on_full_buffer=False)
        for number in numbers:
            # A command that was started with a signal ignored (nohup) goes on ignoring it.
            if signal.getsignal(number) != signal.SIG_IGN:
                self._old[number] = signal.signal(number, self._came)

    def _came(self, number: int, _: FrameType | None) -> None:
        assert self._raw is not None
        if number in _PASSED_ON:
            return
        try:
            if number == signal.SIGCONT:
                self._raw.again()
            # No lock: this thread may hold it.
            size, master = self._raw.size(), self._input
            if size is not None and master >= 0:
                terminal.set_size(master, *size)
        except OSError:
            return  # it has gone

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            # After Ctrl-C, an output that blocks is not waited for.
            if self.finish(None if kind is None or issubclass(kind, Exception) else _MOMENT):
                self.close_program_ends()
        finally:
            self._restore()
        if kind is None:
            self._caller.check()

    def _restore(self) -> None:
        for number, old in self._old.items():
            signal.signal(number, old)
        self._old.clear()
        if self._outer is not None:
            signal.set_wakeup_fd(self._outer)
            self._outer = None
        for fd in (self._signals, self._told):
            if fd >= 0:
                os.close(fd)
        self._signals = self._told = -1
        if self._raw is not None:
            self._raw.__exit__()


def _count(fd: int) -> int:
    """Bytes that are there to be read of a pipe."""
    return int.from_bytes(fcntl.ioctl(fd, _FIONREAD, bytes(4)), "little")
