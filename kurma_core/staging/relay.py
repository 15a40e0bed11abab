"""Relays standard input, output and error between a caller and a program that is started inside a pod.

The program gets pipes or a pseudo-terminal of Kurma, and never a descriptor of the caller: by ``/proc/self/fd`` it
could open the caller's file again, with other rights, and a process that it leaves behind could later read the
input at the caller's terminal.
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
#: Most bytes to read from a terminal whose program has ended: another process may write to it for ever.
_LAST = 1 << 18
#: Seconds to wait for the last output after an interruption.
_MOMENT = 0.5
_OUTPUT, _ERROR = 1, 2


class TooMuchInput(Exception):
    """There is more input than may be buffered for the program."""


class Relay:
    """Pipes or a pseudo-terminal, and the thread that copies the data. An output that blocks holds up the other
    streams of this relay, and no other relay.

    :param send: called with the stream (1 or 2) and the program's output. It raises BrokenPipeError if the
        stream's reader has gone: the program's stream is closed then.
    :param size: rows and columns of a pseudo-terminal as the program's standard input; None: it is a pipe.
    :param source: a descriptor to read input from, closed by the relay; -1: input comes by :meth:`feed`.
    :param readers: stream → the descriptor to which its output goes: if its reader closes it, the stream is
        closed.
    :param taken: called with the number of bytes of input that were written to the program.

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
        self._over = False  # the input has ended
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
        """Starts the thread, by ``begin``; if that raises, all descriptors are closed."""
        try:
            begin(self._thread)
        except BaseException:
            self._close_all()
            self._drained.set()
            raise

    def feed(self, data: bytes, most: int) -> None:
        """Adds input. :param data: empty: the end of input.

        :param most: bytes that may be buffered. :raises TooMuchInput: the limit is exceeded.
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
        """Closes that output stream of the program, since its reader has gone."""
        with self._lock:
            self._unwanted.add(number)
            self._stir()

    def resize(self, rows: int, columns: int) -> None:
        """Sets the size of the pseudo-terminal. The kernel sends SIGWINCH to its foreground processes."""
        with self._lock:
            if self.terminal and self._input >= 0:
                terminal.set_size(self._input, rows, columns)

    def close_program_ends(self) -> None:
        """Closes the relay's copies of the program's descriptors, after the program's start. It can be
        repeated."""
        while self._program_ends:
            os.close(self._program_ends.pop())

    def finish(self, timeout: float | None = None) -> bool:
        """Waits, after the program's end, until all of its output is sent. Later output of processes that it has
        left behind is lost. Unread input of :meth:`feed` stays available to other readers of the pipe.

        :returns: False: the timeout is over.
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
            # Keep the source open: _give_back() returns unread input to it at the end.
            with self._lock:
                self._over = True
                if self.terminal:
                    # The caller's terminal was hung up: hang up the program's.
                    self._outputs.pop(self._input, None)
                    self._close_input()

    def _read(self, fd: int, most: int = _PIECE) -> int:
        """Reads output and sends it. :returns: the number of bytes."""
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
        """Stops reading an output. A pipe is closed, and its writers get SIGPIPE; a terminal stays for its
        input."""
        del self._outputs[fd]
        if fd != self._input:
            os.close(fd)

    def _drain(self) -> None:
        """Reads the output that was written until now, and no more: other processes may hold the pipes for
        ever."""
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
        """Moves the position of the caller's file back over input that the program has not read, so that the next
        program reads it."""
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


#: Signals that end programs at a terminal, and are passed on to the program.
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)


class CallerRelay(Relay):
    """A relay between a program and the caller's own three descriptors, for a ``with`` statement.

    :param wants_terminal: the program can use a terminal: if the caller's standard input is one, the program gets
        a pseudo-terminal, and the caller's is in raw mode meanwhile.
    :param reads_input: the program gets the caller's input; else its input is at its end.
    :param passes_signals: signals are passed on to the program, if there is a terminal.

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
            # A wakeup descriptor, since a signal just before poll(2) runs its handler late. The program gets
            # SIGWINCH and SIGCONT by it, too, which do no harm.
            self._outer = signal.set_wakeup_fd(self._told, warn_on_full_buffer=False)
        for number in numbers:
            # Signals that were ignored at the command's start (nohup) stay ignored.
            if signal.getsignal(number) != signal.SIG_IGN:
                self._old[number] = signal.signal(number, self._came)

    def _came(self, number: int, _: FrameType | None) -> None:
        assert self._raw is not None
        if number in _PASSED_ON:
            return
        try:
            if number == signal.SIGCONT:
                self._raw.again()
            # Do not take the lock: the interrupted thread may hold it.
            size, master = self._raw.size(), self._input
            if size is not None and master >= 0:
                terminal.set_size(master, *size)
        except OSError:
            return  # the terminal was hung up

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            # After Ctrl-C, do not wait long for an output that blocks.
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
    """The number of bytes that can be read from a pipe."""
    return int.from_bytes(fcntl.ioctl(fd, _FIONREAD, bytes(4)), "little")
