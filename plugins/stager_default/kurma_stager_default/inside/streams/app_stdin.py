"""What goes into an app's standard input: from the pod's foreground, and from whoever is attached (G9, H8)."""

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
    """Where input comes from.

    :param fd: the source's own from now on; others may share what stands behind it, so nothing is set on it.
    """

    __slots__ = ("_socket", "ended", "fd")

    def __init__(self, fd: int) -> None:
        #: its end is the end of somebody's input; else somebody has left
        self.ended = False
        mode = os.fstat(fd).st_mode
        self._socket: _socket.socket | None = None
        if stat.S_ISSOCK(mode):
            self._socket = _socket.socket(fileno=os.dup(fd))
        elif not stat.S_ISREG(mode):
            # Once more, by a description of our own, which does not block: another reader may be faster.
            try:
                flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
                own = os.open(f"/proc/self/fd/{fd}", flags)
            except OSError:
                own = fd  # a device that this place does not allow to be opened
            if own != fd:
                os.close(fd)
                fd = own
        self.fd = fd

    def read(self) -> bytes | None:
        """Empty: its end. None: nothing now."""
        try:
            if self._socket is not None:
                return self._socket.recv(_CHUNK, _socket.MSG_DONTWAIT)
            return os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return None
        except OSError:
            return b""  # a terminal that was hung up


class AppInput:
    """An app's standard input, across its executions. Nothing is read that the app does not take.

    :param terminal: it is one, which has no end of its own.
    """

    __slots__ = ("_loop", "_rest", "_sources", "ended", "target", "terminal")

    def __init__(self, loop: Loop, *, terminal: bool) -> None:
        self._loop = loop
        self.terminal = terminal
        #: where it goes: of a pipe or a terminal, and does not block; -1: there is no execution that takes it
        self.target = -1
        #: the app has been told that there is no more
        self.ended = False
        self._rest = b""
        self._sources: list[Source] = []

    def connect(self, target: int) -> None:
        """A new execution has begun."""
        self.disconnect()
        self.target = target
        if self.ended:
            self._end()
        for source in self._sources:
            self._loop.watch(source.fd, lambda fd, _: self._readable(fd))

    def disconnect(self) -> None:
        """The execution is over, or has closed its input: what it has not read is lost."""
        target, self.target = self.target, -1
        self._rest = b""
        for source in self._sources:
            self._loop.unwatch(source.fd)
        if target >= 0:
            self._loop.unwatch(target)
            os.close(target)

    def add(self, fd: int) -> Source:
        """:param fd: belongs to the source from now on."""
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
        self._sources.remove(source)
        self._loop.unwatch(source.fd)
        os.close(source.fd)
        if source.ended:
            self.settle()

    def input_ended(self, source: Source) -> None:
        """Whoever has that source has no more to give; what is on its way is still read."""
        source.ended = True
        if source not in self._sources and self.target >= 0:
            self.settle()  # its end was seen first

    def settle(self) -> None:
        """Somebody's input has ended: so does the app's, if nobody else is there to give more."""
        if self._sources:
            return
        if self.terminal:
            self._type_end()
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
            return  # it has gone, or takes nothing more

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
        """The app has closed its standard input: nobody's matters to it any more."""
        self.disconnect()
        sources, self._sources = self._sources, []
        for source in sources:
            os.close(source.fd)
