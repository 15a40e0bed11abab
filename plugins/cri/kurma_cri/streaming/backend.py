"""Does exec, attach and port-forward by Kurma's client API."""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import os
import select
import signal
import socket
import termios
import threading
import tty
from typing import TYPE_CHECKING

from kurma_core.api.pods import EnterRequest
from kurma_core.errors import HostError, PodStateError
from kurma_core.linux.namespaces import in_network_namespace
from kurma_core.models.streams import Stdio
from kurma_cri.streaming.wire import GoneError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from kurma_core.api.operations import Api
    from kurma_cri.streaming.requests import AttachStreams, ExecStreams
    from kurma_cri.streaming.streams import Output, Streams

_PIECE = 64 << 10
#: Most bytes to read from a terminal whose program has ended: another process may write to it for ever.
_LAST = 256 << 10
#: Seconds that a command has to end after SIGTERM, once its client has gone.
_PATIENCE = 10.0
#: Seconds until a connection to a port of a pod must be made.
_CONNECTING = 10.0
_END_OF_FILE = b"\x04"


class ClientBackend:
    """A :class:`.requests.Backend` on top of the client API.

    A command whose client has gone gets SIGTERM, or SIGHUP if it has a terminal, and is killed after ten seconds:
    no client could see its output or its end. An app to which a client was attached goes on.

    :param client: of kurmad.
    """

    def __init__(self, client: Api) -> None:
        self._client = client

    def exec(self, request: ExecStreams, streams: Streams) -> int:
        command = EnterRequest(exec=request.command, app=request.app, tty=request.tty)
        with StreamRelay(streams, terminal=request.tty, types_end=True) as relay:
            return self._client.enter(request.pod, command, relay.stdio)

    def attach(self, request: AttachStreams, streams: Streams) -> None:
        with StreamRelay(streams, terminal=request.tty) as relay:
            self._client.attach(request.pod, request.app, relay.stdio, stdin=request.stdin, detach_keys="")

    def port_forward(self, pod: str, port: int) -> socket.socket:
        record = self._client.pod(pod)
        if record.state != "running":
            raise PodStateError(
                f"cannot connect to port {port} of pod {record.name}: it is {record.state}", pod=pod
            )
        try:
            if record.network_namespace is None:
                return _connect(port)
            return in_network_namespace(record.network_namespace, lambda: _connect(port))
        except OSError as error:
            reason = error.strerror or str(error)
            raise HostError(
                f"cannot connect to port {port} of pod {record.name}: {reason}", errno=error.errno
            ) from None


def _connect(port: int) -> socket.socket:
    """Connects to that port of 127.0.0.1, then of ::1. :raises OSError: both failed: the first error."""
    try:
        connected = socket.create_connection(("127.0.0.1", port), _CONNECTING)
    except OSError as error:
        try:
            connected = socket.create_connection(("::1", port), _CONNECTING)
        except OSError:
            raise error from None
    connected.settimeout(None)
    return connected


class StreamRelay:
    """Pipes, or a pseudo-terminal as standard input, between a client's streams and a program in a pod. A ``with``
    statement starts and ends the copying.

    :param terminal: the program gets a pseudo-terminal, of which all output goes to the client's stdout.
    :param types_end: the end of input becomes the terminal's end-of-file character.

    :attr:`stdio` is for the program.
    """

    def __init__(self, streams: Streams, *, terminal: bool, types_end: bool = False) -> None:
        self._streams = streams
        self._terminal = terminal
        self._types_end = types_end
        self._lock = threading.Lock()
        self._killer: threading.Timer | None = None
        self._threads: list[threading.Thread] = []
        #: Descriptors of the program's side, and of this side.
        self._theirs: list[int] = []
        self._ours: list[int] = []
        self._input = self._signals = -1
        try:
            self._finishing = self._keep(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
            outputs = self._open()
            self._outputs = outputs
        except BaseException:
            self._close()
            raise

    def _keep(self, fd: int) -> int:
        self._ours.append(fd)
        return fd

    def _give(self, fd: int) -> int:
        self._theirs.append(fd)
        return fd

    def _open(self) -> list[dict[int, Output | None]]:
        """Makes the descriptors. :returns: for each thread that copies output: where each descriptor's goes."""
        outs, errs = self._streams.stdout, self._streams.stderr
        signals, told = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._give(signals)
        self._signals = told
        master = -1
        if self._terminal:
            master, stdin = os.openpty()
            self._keep(master)
            self._give(stdin)
            tty.setraw(stdin)
            self._input = master
        elif self._streams.stdin is not None:
            stdin, self._input = os.pipe2(os.O_CLOEXEC)
            self._give(stdin)
        else:
            stdin = self._give(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
        if self._input >= 0:
            os.set_blocking(self._input, False)
        stdout, to_stdout = self._output()
        stderr, to_stderr = self._output()
        self.stdio = Stdio(stdin, to_stdout, to_stderr, terminal=self._terminal, signals=signals, relayed=True)
        if self._terminal:
            return [{stdout: outs, stderr: _Lines(outs) if outs is not None else None, master: outs}]
        return [{stdout: outs}, {stderr: errs}]

    def _output(self) -> tuple[int, int]:
        ours, theirs = os.pipe2(os.O_CLOEXEC)
        self._keep(ours)
        self._give(theirs)
        os.set_blocking(ours, False)
        return ours, theirs

    def __enter__(self) -> StreamRelay:
        works = [threading.Thread(target=self._copy_output, args=(one,), daemon=True) for one in self._outputs]
        if self._streams.stdin is not None:
            works.append(threading.Thread(target=self._copy_input, daemon=True))
        try:
            for thread in works:
                thread.name = "cri-relay"
                thread.start()
                self._threads.append(thread)
        except RuntimeError as error:
            self._end()
            raise HostError(f"cannot start a thread: {error}") from None
        self._streams.on_resize(self._resize)
        self._streams.on_gone(self._hang_up)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._streams.on_resize(lambda rows, columns: None)
        self._streams.on_gone(lambda: None)
        self._end()

    def _end(self) -> None:
        """Copies the output that was written until now, and no more: processes that the program has left behind
        may hold the pipes for ever."""
        if self._streams.stdin is not None:
            self._streams.stdin.close()
        os.eventfd_write(self._finishing, 1)
        for thread in self._threads:
            thread.join()
        self._close()

    def _close(self) -> None:
        with self._lock:
            if self._killer is not None:
                self._killer.cancel()
            if not self._terminal and self._input >= 0:
                os.close(self._input)
            if self._signals >= 0:
                os.close(self._signals)
            self._input = self._signals = -1
        for fd in (*self._ours, *self._theirs):
            os.close(fd)
        self._ours.clear()
        self._theirs.clear()

    # -- events, in any thread --

    def _resize(self, rows: int, columns: int) -> None:
        with self._lock:
            if self._terminal and self._input >= 0:
                termios.tcsetwinsize(self._input, (rows, columns))
                self._signal(signal.SIGWINCH)

    def _hang_up(self) -> None:
        with self._lock:
            self._signal(signal.SIGTERM)
            if self._killer is None and self._signals >= 0:
                self._killer = threading.Timer(_PATIENCE, self._kill)
                self._killer.daemon = True
                with contextlib.suppress(RuntimeError):
                    self._killer.start()

    def _kill(self) -> None:
        with self._lock:
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._signals >= 0:
            with contextlib.suppress(BlockingIOError):
                os.write(self._signals, bytes((number,)))

    # -- threads --

    def _copy_input(self) -> None:
        source = self._streams.stdin
        assert source is not None
        ended_line = True
        try:
            while data := source.read():
                ended_line = data.endswith(b"\n")
                if not self._write(data):
                    source.close()
                    return
        except GoneError:
            return  # the program gets a signal, and no end of input: that would say that the input is complete
        if not self._terminal:
            with self._lock:
                os.close(self._input)
                self._input = -1
        elif self._types_end:
            # After an incomplete line, the first character only hands over that line.
            self._write(_END_OF_FILE if ended_line else 2 * _END_OF_FILE)

    def _write(self, data: bytes) -> bool:
        """Writes input as fast as the program reads. :returns: False: it reads no more, or has ended."""
        view = memoryview(data)
        poll = select.poll()
        poll.register(self._input, select.POLLOUT)
        poll.register(self._finishing, select.POLLIN)
        while view:
            ready = [fd for fd, _ in poll.poll()]
            if self._finishing in ready:
                return False
            try:
                view = view[os.write(self._input, view) :]
            except BlockingIOError:
                continue
            except OSError:
                return False
        return True

    def _copy_output(self, outputs: Mapping[int, Output | None]) -> None:
        poll = select.poll()
        poll.register(self._finishing, select.POLLIN)
        left = dict(outputs)
        for fd in left:
            poll.register(fd, select.POLLIN)
        finishing = False
        while left and not finishing:
            for fd, _ in poll.poll():
                if fd == self._finishing:
                    finishing = True
                elif fd in left:
                    self._copy(fd, left, _PIECE)
                    if fd not in left:
                        poll.unregister(fd)
        for fd in list(left):
            rest = _LAST if fd == self._input else _readable(fd)
            while rest > 0 and fd in left and (count := self._copy(fd, left, min(rest, _PIECE))):
                rest -= count

    def _copy(self, fd: int, left: dict[int, Output | None], most: int) -> int:
        """Copies once. :returns: the number of bytes; 0: the output has ended, its descriptor is not in ``left``
        any more; or there is nothing to read."""
        try:
            data = os.read(fd, most)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno != errno.EIO:  # of a terminal without a process
                raise
            data = b""
        output = left[fd]
        if data and output is not None:
            try:
                output.write(data)
            except BrokenPipeError:
                data = b""
        if not data:
            del left[fd]
            if fd != self._input:
                # The program's next write fails, as it does when the reader of a pipe has gone.
                with self._lock:
                    self._ours.remove(fd)
                os.close(fd)
        return len(data)


class _Lines:
    """Writes a program's messages to a client whose terminal is in raw mode."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def write(self, data: bytes) -> None:
        self._output.write(data.replace(b"\n", b"\r\n"))

    def close(self) -> None:
        pass


def _readable(fd: int) -> int:
    """The number of bytes that can be read from a pipe now."""
    count = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, count)
    return count[0]
