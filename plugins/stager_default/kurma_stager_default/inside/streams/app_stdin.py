"""An app's standard input: copies data to it from the pod's foreground and from attached clients."""

from __future__ import annotations

import _socket
import os
import select
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_stager_default.inside.event_loop import Loop

_CHUNK = 65536


class Source:
    """A source of input.

    :param fd: the source closes it. Other processes may share its file description, so its flags are not changed.
    """

    __slots__ = ("_socket", "ended", "fd")

    def __init__(self, fd: int) -> None:
        #: an end of this source ends its client's input; False: the client has only detached
        self.ended = False
        mode = os.fstat(fd).st_mode
        self._socket: _socket.socket | None = None
        if stat.S_ISSOCK(mode):
            self._socket = _socket.socket(fileno=os.dup(fd))
        elif not stat.S_ISREG(mode):
            # Open it again as a non-blocking file description of our own: another reader may take the data first.
            try:
                flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
                own = os.open(f"/proc/self/fd/{fd}", flags)
            except OSError:
                own = fd  # a device that may not be opened here
            if own != fd:
                os.close(fd)
                fd = own
        self.fd = fd

    def read(self) -> bytes | None:
        """Reads data. :returns: empty: the end; None: no data now."""
        try:
            if self._socket is not None:
                return self._socket.recv(_CHUNK, _socket.MSG_DONTWAIT)
            return os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return None
        except OSError:
            return b""  # a terminal that was hung up


class AppInput:
    """An app's standard input, across its executions. It reads from sources only as fast as the app reads.

    :param terminal: it is a terminal, which cannot be closed to signal the end.
    :param ends: it ends with the input of the ``last`` client, with that of the ``first`` or its disconnection, or
        ``never``.
    """

    __slots__ = ("_ends", "_loop", "_rest", "_sources", "ended", "target", "terminal")

    def __init__(self, loop: Loop, *, terminal: bool, ends: str = "last") -> None:
        self._loop = loop
        self._ends = ends
        self.terminal = terminal
        #: the non-blocking descriptor of the app's pipe or terminal; -1: no execution takes input
        self.target = -1
        #: the input has ended for good
        self.ended = False
        self._rest = b""
        self._sources: list[Source] = []

    def connect(self, target: int) -> None:
        """Sends the input to a new execution."""
        self.disconnect()
        self.target = target
        if self.ended:
            self._end()
        for source in self._sources:
            self._loop.watch(source.fd, lambda fd, _: self._readable(fd))

    def disconnect(self) -> None:
        """Drops the unread input of an execution that has ended, or has closed its input."""
        target, self.target = self.target, -1
        self._rest = b""
        for source in self._sources:
            self._loop.unwatch(source.fd)
        if target >= 0:
            self._loop.unwatch(target)
            os.close(target)

    def add(self, fd: int) -> Source:
        """Adds a source. :param fd: the source closes it."""
        source = Source(fd)
        self._sources.append(source)
        if self.target >= 0 and not self._rest:
            self._loop.watch(source.fd, lambda fd, _: self._readable(fd))
        return source

    def _readable(self, fd: int) -> None:
        for source in self._sources:
            if source.fd == fd:
                data = source.read()
                if data:
                    self._rest = data
                    self._write()
                elif data is not None:
                    self._drop(source)
                return

    def _drop(self, source: Source) -> None:
        first = source is self._sources[0]
        self._sources.remove(source)
        self._loop.unwatch(source.fd)
        os.close(source.fd)
        if self._ends == "first" and first:
            self._drop_all()
            self.settle()
        elif source.ended:
            self.settle()

    def input_ended(self, source: Source) -> None:
        """Notes that the source's client has no more input; data that is on its way is still read."""
        source.ended = True
        if source not in self._sources and self.target >= 0:
            self.settle()  # the source's end was read before this notice

    def settle(self) -> None:
        """Ends the app's input after the end of a client's, if no other source is left."""
        if self._sources or self._ends == "never":
            return
        if self.terminal:
            self._type_end()
            self.ended = self._ends == "first"
        else:
            self.ended = True
            if not self._rest:
                self._end()

    def _end(self) -> None:
        if not self.terminal:
            self.disconnect()

    def _type_end(self) -> None:
        if self.target < 0:
            return
        import termios

        try:
            os.write(self.target, termios.tcgetattr(self.target)[6][termios.VEOF])
        except (OSError, termios.error):
            return  # the terminal is hung up, or its buffer is full

    def _write(self) -> None:
        try:
            while self._rest:
                self._rest = self._rest[os.write(self.target, self._rest) :]
        except BlockingIOError:
            for source in self._sources:
                self._loop.unwatch(source.fd)
            self._loop.watch(self.target, lambda _fd, _events: self._writable(), select.POLLOUT)
        except OSError:
            self._refused()

    def _writable(self) -> None:
        self._write()
        if self._rest or self.target < 0:
            return
        if self.ended:
            self._end()
            return
        self._loop.unwatch(self.target)
        for source in self._sources:
            self._loop.watch(source.fd, lambda fd, _: self._readable(fd))

    def _refused(self) -> None:
        """Closes all sources, since the app has closed its standard input."""
        self.disconnect()
        self._drop_all()

    def _drop_all(self) -> None:
        sources, self._sources = self._sources, []
        for source in sources:
            self._loop.unwatch(source.fd)
            os.close(source.fd)
