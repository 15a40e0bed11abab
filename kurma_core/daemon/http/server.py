"""Connections: accepted, counted, each with a thread of its own; and whoever goes away while it is served."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import h11

from kurma_core.daemon.failures import error_json
from kurma_core.daemon.http import quota
from kurma_core.daemon.http.exchange import Connection, Exchange, Gone, LateError, Peer, in_words, json_line
from kurma_core.daemon.http.quota import Quota
from kurma_core.daemon.pods import origin
from kurma_core.daemon.process.threads import begin
from kurma_core.errors import BusyError, KurmaError, PrivilegeError, UsageError
from kurma_core.version import VERSION

if TYPE_CHECKING:
    from kurma_core.daemon.process.idle import IdleEnd

_LOG = logging.getLogger("kurmad")
_BACKLOG = 128
#: Seconds in which a refusal is told once: the log is not for whoever knocks to fill.
_TELL_AGAIN = 1.0
#: Seconds until who connects is looked at again, where there is not a descriptor to send him away with.
_NO_SPARE = 0.05


class Server:
    """:param handle: answers one exchange; what it raises is a mistake in the daemon."""

    def __init__(self, handle: Callable[[Exchange], None], most: int = quota.MOST) -> None:
        self._handle = handle
        self._short = Quota(most, min(most, quota.OTHERS), quota.PODS, quota.USER, quota.POD)
        self._lasting = Quota(*quota.LASTING)
        #: Given up for a moment when there are no more descriptors, to say so to who connects; -1: another thread
        #: has taken it meanwhile.
        self._spare = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._told = -_TELL_AGAIN
        #: by descriptor: with the rights, the pod and the app of who connects there
        self._listeners: dict[int, tuple[socket.socket, str, str | None, str | None]] = {}
        #: Listeners that a service manager has lent.
        self._lent: set[int] = set()
        self._lines: set[Connection] = set()
        self._lock = threading.Lock()
        self._poll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._wake, select.EPOLLIN)
        self._watched: dict[int, Callable[[], None]] = {}
        self._closing = False
        self._thread: threading.Thread | None = None
        self._idle: IdleEnd | None = None
        self._beat = threading.Event()
        #: Called, from any thread, when a connection has ended.
        self.served: Callable[[], None] = lambda: None

    @property
    def connections(self) -> int:
        return len(self._lines)

    @property
    def held(self) -> tuple[int, int]:
        """Connections that wait for a request or are served, and those that last."""
        return self._short.held, self._lasting.held

    def listen(
        self, listener: socket.socket, rights: str = "full", pod: str | None = None, app: str | None = None
    ) -> None:
        """Who connects there has these rights.

        :param pod: UUID of the pod whose own socket it is, that of its app ``app``.
        """
        listener.setblocking(False)
        listener.listen(_BACKLOG if pod is None else quota.POD)
        self._listeners[listener.fileno()] = listener, rights, pod, app
        self._poll.register(listener, select.EPOLLIN)

    def listen_no_more(self, pod: str, app: str) -> None:
        """To that app's socket, which is closed; nor to who has come by it. May be repeated."""
        for fd, (listener, _, *whose) in list(self._listeners.items()):
            if whose == [pod, app] and self._listeners.pop(fd, None) is not None:
                self._poll.unregister(fd)
                listener.close()
        with self._lock:
            lines = [line for line in self._lines if (line.peer.pod, line.peer.app) == (pod, app)]
        for line in lines:
            _shut(line.socket)

    @contextlib.contextmanager
    def lasting(self, exchange: Exchange) -> Iterator[None]:
        """Meanwhile the connection is one of those that last, and none of the others.

        :raises BusyError: there are too many of those.
        """
        line = exchange.line
        self._lasting.take(line.peer)
        self._short.give_back(line.peer)
        line.lasting = True
        try:
            yield
        finally:
            self._lasting.give_back(line.peer)
            # It was one of them before, and has its answer: it is not refused now.
            self._short.put_back(line.peer)
            line.lasting = False

    def listen_to(self, listener: socket.socket) -> None:
        """As :meth:`listen`, to a socket that a service manager has made, and goes on listening to when we end."""
        self._lent.add(listener.fileno())
        self.listen(listener)

    def shut(self) -> bool | None:
        """Nobody can connect from here on, but apps. Those who have are accepted. For the accepting thread alone.

        :returns: None: nothing was shut, for no socket is ours.
        """
        doors = list(self._listeners.items())
        mine = [(fd, door) for fd, door in doors if fd not in self._lent and door[2] is None]
        for fd, door in mine:
            listener = door[0]
            _shut(listener)
            while self._accept(*door):
                continue
            self._poll.unregister(fd)
            del self._listeners[fd]
            listener.close()
        return True if mine else None

    def when_readable(self, fd: int, tell: Callable[[], None]) -> None:
        """``tell`` is called by the accepting thread; until the descriptor is closed."""
        with self._lock:
            self._watched[fd] = tell
        self._poll.register(fd, select.EPOLLIN)

    def answers(self, patience: float) -> bool:
        """Whether the accepting thread gets on within so many seconds."""
        self._beat.clear()
        os.eventfd_write(self._wake, 1)
        return self._beat.wait(patience)

    def end_when(self, idle: IdleEnd) -> None:
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
            if self._thread.ident is not None:
                self._thread.join()
            self._thread = None
            if self._spare >= 0:
                os.close(self._spare)
        for listener, *_ in list(self._listeners.values()):
            listener.close()
        self._listeners.clear()
        with self._lock:
            lines = list(self._lines)
        for line in lines:
            _shut(line.socket)

    def when_gone(self, exchange: Exchange, tell: Callable[[], None]) -> None:
        """``tell`` is called, from another thread, if who asked goes away; until :meth:`unwatch`."""
        connected = exchange.socket
        fd = connected.fileno()

        def told() -> None:
            # What the poll has told of may be who had the descriptor before.
            if _has_gone(connected):
                tell()

        with self._lock:
            self._watched[fd] = told
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
                        self._beat.set()
                    continue
                door = self._listeners.get(fd)
                if door is not None:
                    self._accept(*door)
                    continue
                with self._lock:
                    tell = self._watched.get(fd)
                if tell is not None:
                    tell()
            if idle is not None and not self._closing and idle.look(self):
                return

    def _accept(self, listener: socket.socket, rights: str, pod: str | None, app: str | None) -> bool:
        """:returns: whether somebody was there."""
        try:
            connected, _ = listener.accept()
        except OSError as error:
            return error.errno in (errno.EMFILE, errno.ENFILE) and self._refuse_one(listener)
        if self._idle is not None:
            self._idle.touch()
        credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, uid, _ = struct.unpack("3i", credentials)
        peer = Peer(uid, pid, rights, pod, app)
        try:
            if pod is not None and origin.is_strange(connected, pid, pod):
                raise PrivilegeError(
                    "this API is for another pod's app", hint="host/api-access gives an app its own"
                )
            self._short.take(peer)
        except (BusyError, PrivilegeError) as error:
            if time.monotonic() >= self._told + _TELL_AGAIN:
                self._told = time.monotonic()
                who = (
                    peer if isinstance(error, BusyError) else f"user {uid}, process {pid}, by the socket of {pod}"
                )
                _LOG.warning("%s is refused: %s", who, error.message)
            _turn_away(connected, error)
            return True
        line = Connection(connected, peer)
        with self._lock:
            self._lines.add(line)
        if listener.fileno() < 0:
            _shut(connected)  # meanwhile nobody listens there any more, who has seen those before this one
        try:
            begin(threading.Thread(target=self._serve, args=(line,), name=f"connection of {pid}", daemon=True))
        except BusyError as error:
            with self._lock:
                self._lines.discard(line)
            self._short.give_back(peer)
            _turn_away(connected, error)
        return True

    def _refuse_one(self, listener: socket.socket) -> bool:
        """There is no descriptor left for who connects, who would have us wake for him without end."""
        if not self._has_spare():
            time.sleep(_NO_SPARE)
            return False
        os.close(self._spare)
        self._spare = -1
        try:
            connected, _ = listener.accept()
            _turn_away(connected, BusyError("kurmad has as many open files as the host lets it have"))
        except OSError:
            return False
        finally:
            self._has_spare()
        _LOG.warning("a connection was refused: there are too many open files")
        return True

    def _has_spare(self) -> bool:
        """Takes it again, if another thread has not taken what was free."""
        if self._spare < 0:
            with contextlib.suppress(OSError):
                self._spare = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        return self._spare >= 0

    def _serve(self, line: Connection) -> None:
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
        except LateError as error:
            _refuse(line, 408, error)
        except h11.RemoteProtocolError as error:
            _refuse(line, error.error_status_hint, UsageError(f"that is no request: {in_words(error)}"))
        except Exception:  # noqa: BLE001 (the daemon goes on)
            _LOG.exception("a mistake in kurmad; the connection of process %d is closed", line.peer.pid)
        finally:
            with self._lock:
                self._lines.discard(line)
                last = not self._lines
            line.socket.close()
            self._short.give_back(line.peer)
            if last:
                self.stir()
            self.served()


def _refuse(line: Connection, status: int, error: KurmaError) -> None:
    if line.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
        return
    body = json_line(error_json(error))
    fields = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), ("Connection", "close")]
    try:
        line.write(line.head(status, fields) + line.encoded(h11.Data(data=body)))
    except (Gone, h11.LocalProtocolError):
        return


def _turn_away(connected: socket.socket, error: KurmaError) -> None:
    """Says so at once, whatever was to be asked; and waits for nothing."""
    body = json_line(error_json(error))
    status = "503 Service Unavailable\r\nRetry-After: 1" if isinstance(error, BusyError) else "403 Forbidden"
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    connected.setblocking(False)
    head += f"Kurma-Version: {VERSION}\r\nContent-Length: {len(body)}\r\n\r\n"
    with contextlib.suppress(OSError):
        connected.send(head.encode() + body)
    connected.close()


def _has_gone(connected: socket.socket) -> bool:
    poll = select.poll()
    with contextlib.suppress(ValueError):  # it was closed meanwhile: nobody waits for that any more
        poll.register(connected, select.POLLRDHUP)
        return bool(poll.poll(0))
    return False


def _shut(connected: socket.socket) -> None:
    try:
        connected.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has gone already


__all__ = ["Server"]
