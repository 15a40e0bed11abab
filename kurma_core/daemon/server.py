"""Connections: accepted, counted, each with a thread of its own; and whoever goes away while it is served."""

from __future__ import annotations

import logging
import os
import select
import socket
import struct
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import h11

from kurma_core.daemon.exchange import Exchange, Gone, Line, Peer

if TYPE_CHECKING:
    from kurma_core.daemon.idle import Idle

_LOG = logging.getLogger("kurmad")
#: Connections at a time.
MOST = 512
_BACKLOG = 128


class Server:
    """:param handle: answers one exchange; what it raises is a mistake in the daemon."""

    def __init__(self, handle: Callable[[Exchange], None], most: int = MOST) -> None:
        self._handle = handle
        self._most = most
        self._listeners: dict[int, tuple[socket.socket, str]] = {}
        #: Listeners that a service manager has lent.
        self._lent: set[int] = set()
        self._lines: set[Line] = set()
        self._lock = threading.Lock()
        self._poll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._wake, select.EPOLLIN)
        self._watched: dict[int, Callable[[], None]] = {}
        self._closing = False
        self._thread: threading.Thread | None = None
        self._idle: Idle | None = None

    @property
    def connections(self) -> int:
        return len(self._lines)

    def listen(self, listener: socket.socket, rights: str = "full") -> None:
        """Who connects there has these rights."""
        listener.setblocking(False)
        listener.listen(_BACKLOG)
        self._listeners[listener.fileno()] = listener, rights
        self._poll.register(listener, select.EPOLLIN)

    def listen_to(self, listener: socket.socket) -> None:
        """As :meth:`listen`, to a socket that a service manager has made, and goes on listening to when we end."""
        self._lent.add(listener.fileno())
        self.listen(listener)

    def shut(self) -> bool | None:
        """Nobody can connect from here on. Those who have are accepted. For the accepting thread alone.

        :returns: None: nothing was shut, for no socket is ours.
        """
        mine = [(fd, *found) for fd, found in self._listeners.items() if fd not in self._lent]
        for fd, listener, rights in mine:
            _shut(listener)
            while self._accept(listener, rights):
                continue
            self._poll.unregister(fd)
            del self._listeners[fd]
            listener.close()
        return True if mine else None

    def end_when(self, idle: Idle) -> None:
        """Before :meth:`start`."""
        self._idle = idle

    def stir(self) -> None:
        """Has the accepting thread look again whether there is anything to do."""
        if self._idle is not None:
            os.eventfd_write(self._wake, 1)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="accept", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """No more connections; those that there are end. May be repeated."""
        self._closing = True
        os.eventfd_write(self._wake, 1)
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        with self._lock:
            lines = list(self._lines)
        for line in lines:
            _shut(line.socket)

    def when_gone(self, exchange: Exchange, tell: Callable[[], None]) -> None:
        """``tell`` is called, from another thread, if who asked goes away; until :meth:`unwatch`."""
        fd = exchange.socket.fileno()
        with self._lock:
            self._watched[fd] = tell
        self._poll.register(fd, select.EPOLLRDHUP | select.EPOLLONESHOT)

    def unwatch(self, exchange: Exchange) -> None:
        fd = exchange.socket.fileno()
        with self._lock:
            if self._watched.pop(fd, None) is not None:
                self._poll.unregister(fd)

    def _run(self) -> None:
        idle = self._idle
        while not self._closing:
            for fd, _ in self._poll.poll(None if idle is None else idle.remaining(self)):
                if fd == self._wake:
                    if not self._closing:
                        os.eventfd_read(self._wake)
                    continue
                if fd in self._listeners:
                    self._accept(*self._listeners[fd])
                    continue
                with self._lock:
                    tell = self._watched.get(fd)
                if tell is not None:
                    tell()
            if idle is not None and not self._closing and idle.look(self):
                return

    def _accept(self, listener: socket.socket, rights: str) -> bool:
        """:returns: whether somebody was there."""
        try:
            connected, _ = listener.accept()
        except OSError:
            return False
        if self._idle is not None:
            self._idle.touch()
        if len(self._lines) >= self._most:
            _LOG.warning("a connection was refused: there are %d", self._most)
            connected.close()
            return True
        credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, uid, _ = struct.unpack("3i", credentials)
        line = Line(connected, Peer(uid, pid, rights))
        with self._lock:
            self._lines.add(line)
        threading.Thread(target=self._serve, args=(line,), name=f"connection of {pid}", daemon=True).start()
        return True

    def _serve(self, line: Line) -> None:
        try:
            while not self._closing:
                exchange = line.exchange()
                if exchange is None:
                    return
                self._handle(exchange)
                if not line.finish(exchange):
                    return
        except Gone:
            return
        except h11.RemoteProtocolError as error:
            _refuse(line, error)
        except Exception:  # noqa: BLE001 (the daemon goes on)
            _LOG.exception("a mistake in kurmad; the connection of process %d is closed", line.peer.pid)
        finally:
            with self._lock:
                self._lines.discard(line)
                last = not self._lines
            line.socket.close()
            if last:
                self.stir()


def _refuse(line: Line, error: h11.RemoteProtocolError) -> None:
    if line.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
        return
    body = f"{error}\n".encode()
    fields = [("Content-Type", "text/plain"), ("Content-Length", str(len(body))), ("Connection", "close")]
    try:
        line.write(line.head(error.error_status_hint, fields) + line.encoded(h11.Data(data=body)))
    except Gone:
        return


def _shut(connected: socket.socket) -> None:
    try:
        connected.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has gone already


__all__ = ["MOST", "Server"]
