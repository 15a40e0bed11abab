"""The HTTP server of kurmad: accepts connections within quotas, serves each in its own thread."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import h11

from kurma_core import VERSION
from kurma_core.api.wire import error_to_json
from kurma_core.daemon.http.caller_rights import LASTING, SHORT, Peer, Quota
from kurma_core.daemon.http.error_status import Gone, LateError
from kurma_core.daemon.http.exchange import Connection, Exchange, in_words, json_line
from kurma_core.daemon.process.threads import Poller, begin
from kurma_core.errors import BusyError, KurmaError, PrivilegeError, UsageError

if TYPE_CHECKING:
    from kurma_core.daemon.process.lifecycle import IdleEnd

_LOG = logging.getLogger("kurmad")
_BACKLOG = 128
#: Seconds in which at most one refusal is logged, so that clients cannot flood the log.
_LOG_AGAIN = 1.0
#: Pause in seconds before accepting again after EMFILE, if there is no spare descriptor.
_NO_SPARE = 0.05


class _Listener:
    """:param app: UUID of the pod and name of the app, of an app's API socket.
    :param passed: the service manager made the socket, and keeps it when kurmad ends.
    :param refuses: whether a process, by its connection and PID, may not use the socket.
    """

    def __init__(
        self,
        listener: socket.socket,
        rights: str = "full",
        app: tuple[str, str] | tuple[None, None] = (None, None),
        *,
        passed: bool = False,
        refuses: Callable[[socket.socket, int], bool] = lambda connected, pid: False,
    ) -> None:
        self.socket, self.rights, self.app, self.passed, self.refuses = listener, rights, app, passed, refuses


class Server:
    """Accepts connections and serves their requests.

    :param handle: answers one exchange; an exception other than :class:`Gone` is a mistake in the daemon.
    :param most: limit of simultaneous connections, without lasting ones.
    """

    def __init__(self, handle: Callable[[Exchange], None], most: int = SHORT[0]) -> None:
        self._handle = handle
        self._short = Quota(most, min(most, SHORT[1]), *SHORT[2:])
        self._lasting = Quota(*LASTING)
        #: Closed for a moment when no descriptor is left, to accept and refuse a connection; -1: another thread
        #: has got the descriptor meanwhile.
        self._spare = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._logged = -_LOG_AGAIN
        #: By descriptor.
        self._listeners: dict[int, _Listener] = {}
        self._connections: set[Connection] = set()
        self._lock = threading.Lock()
        #: Ends an idle daemon; set before :meth:`start`.
        self.idle: IdleEnd | None = None
        #: Its thread accepts connections.
        self.poller = Poller("accept", self._look_at_idle)
        #: Called, from any thread, when a connection has ended.
        self.served: Callable[[], None] = lambda: None
        #: Of the configuration in force; the host's clients get it with each answer.
        self.checksum = ""

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def held(self) -> tuple[int, int]:
        """Connections that wait for a request or are served, and lasting ones."""
        return self._short.held, self._lasting.held

    # -- listening --

    def listen(self, listener: socket.socket, *, passed: bool = False) -> None:
        """Serves the host's clients at that socket, with all rights.

        :param passed: the service manager made the socket, and keeps it when kurmad ends.
        """
        self._add(_Listener(listener, passed=passed), _BACKLOG)

    def listen_for_app(
        self,
        listener: socket.socket,
        rights: str,
        app: tuple[str, str],
        refuses: Callable[[socket.socket, int], bool],
    ) -> None:
        """Serves an app at its API socket.

        :param rights: ``full`` or ``read``. :param app: the pod's UUID and the app's name.
        :param refuses: whether a process, by its connection and PID, belongs to another pod.
        """
        self._add(_Listener(listener, rights, app, refuses=refuses), SHORT[4])

    def _add(self, listener: _Listener, backlog: int) -> None:
        listener.socket.setblocking(False)
        listener.socket.listen(backlog)
        fd = listener.socket.fileno()
        self._listeners[fd] = listener
        self.poller.add(fd, functools.partial(self._accept, listener))

    def stop_listening_for_app(self, app: tuple[str, str]) -> None:
        """Closes the app's API socket and its connections. Repeatable."""
        for fd, listener in list(self._listeners.items()):
            if listener.app == app and self._listeners.pop(fd, None) is not None:
                self.poller.remove(fd)
                listener.socket.close()
        with self._lock:
            connections = [one for one in self._connections if (one.peer.pod, one.peer.app) == app]
        for one in connections:
            _shut(one.socket)

    def shut(self) -> bool:
        """Closes kurmad's own sockets, but for those of apps. Connections made before are accepted. For the
        accepting thread only.

        :returns: whether there was such a socket, and none passed by a service manager.
        """
        mine = [(fd, one) for fd, one in self._listeners.items() if not one.passed and one.app == (None, None)]
        for fd, one in mine:
            _shut(one.socket)
            while self._accept(one):
                continue
            self.poller.remove(fd)
            del self._listeners[fd]
            one.socket.close()
        return bool(mine)

    # -- clients --

    @contextlib.contextmanager
    def lasting(self, exchange: Exchange) -> Iterator[None]:
        """Counts the connection as a lasting one, for a ``with`` statement.

        :raises BusyError: there are too many lasting connections.
        """
        connection = exchange.connection
        self._lasting.take(connection.peer)
        self._short.give_back(connection.peer)
        connection.lasting = True
        try:
            yield
        finally:
            self._lasting.give_back(connection.peer)
            # It was counted there before: a limit that is reached meanwhile does not end it.
            self._short.take(connection.peer, enforce=False)
            connection.lasting = False

    def when_gone(self, exchange: Exchange, call: Callable[[], None]) -> None:
        """``call`` is called, from another thread, if the client disconnects; until :meth:`unwatch`."""
        connected = exchange.socket

        def check() -> None:
            # The event may be about an earlier connection of the same descriptor.
            if _has_gone(connected):
                call()

        self.poller.add(connected.fileno(), check, select.EPOLLRDHUP | select.EPOLLONESHOT)

    def unwatch(self, exchange: Exchange) -> None:
        self.poller.remove(exchange.socket.fileno())

    # -- the accepting thread --

    def stir(self) -> None:
        """Wakes the accepting thread to look whether the daemon is idle."""
        if self.idle is not None:
            self.poller.wake()

    def start(self) -> None:
        self.poller.start()

    def close(self) -> None:
        """Stops accepting, and ends all connections. Repeatable."""
        self.poller.close()
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        for one in list(self._listeners.values()):
            one.socket.close()
        self._listeners.clear()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            _shut(connection.socket)

    def _look_at_idle(self) -> float | None:
        """Ends the daemon if it is idle for long enough. :returns: seconds until it is."""
        if self.idle is None or self.poller.closing:
            return None
        if self.idle.look():
            self.poller.closing = True
        return self.idle.remaining()

    def _accept(self, listener: _Listener) -> bool:
        """:returns: whether there was a connection."""
        try:
            connected, _ = listener.socket.accept()
        except OSError as error:
            return error.errno in (errno.EMFILE, errno.ENFILE) and self._refuse_one(listener.socket)
        if self.idle is not None:
            self.idle.touch()
        credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, uid, _ = struct.unpack("3i", credentials)
        peer = Peer(uid, pid, listener.rights, *listener.app)
        try:
            if listener.refuses(connected, pid):
                raise PrivilegeError(
                    "this API is for another pod's app", hint="host/api-access gives an app its own"
                )
            self._short.take(peer)
        except (BusyError, PrivilegeError) as error:
            self._log_refusal(peer, error)
            _turn_away(connected, error)
            return True
        connection = Connection(connected, peer, lambda: self.checksum)
        with self._lock:
            self._connections.add(connection)
        if listener.socket.fileno() < 0:
            _shut(connected)  # stop_listening_for_app ran before the connection was added
        thread = threading.Thread(target=self._serve, args=(connection,), name=f"connection of {pid}", daemon=True)
        try:
            begin(thread)
        except BusyError as error:
            with self._lock:
                self._connections.discard(connection)
            self._short.give_back(peer)
            _turn_away(connected, error)
        return True

    def _log_refusal(self, peer: Peer, error: KurmaError) -> None:
        now = time.monotonic()
        if now >= self._logged + _LOG_AGAIN:
            self._logged = now
            who: Any = peer
            if isinstance(error, PrivilegeError):
                who = f"user {peer.uid}, process {peer.pid}, by the socket of {peer.pod}"
            _LOG.warning("%s is refused: %s", who, error.message)

    def _refuse_one(self, listener: socket.socket) -> bool:
        """Refuses a connection after EMFILE: left in the backlog, it would wake us again at once."""
        if not self._has_spare():
            time.sleep(_NO_SPARE)
            return False
        os.close(self._spare)
        self._spare = -1
        try:
            connected, _ = listener.accept()
            _turn_away(connected, BusyError("kurmad cannot open a file: the host's limit is reached"))
        except OSError:
            return False
        finally:
            self._has_spare()
        _LOG.warning("a connection was refused: there are too many open files")
        return True

    def _has_spare(self) -> bool:
        """Opens the spare descriptor again, unless another thread has taken the free number."""
        if self._spare < 0:
            with contextlib.suppress(OSError):
                self._spare = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        return self._spare >= 0

    # -- a connection's thread --

    def _serve(self, connection: Connection) -> None:
        try:
            while not self.poller.closing:
                exchange = connection.exchange()
                if exchange is None:
                    return
                self._handle(exchange)
                if not connection.finish(exchange):
                    return
        except Gone:
            return
        except LateError as error:
            _refuse(connection, 408, error)
        except h11.RemoteProtocolError as error:
            _refuse(connection, error.error_status_hint, UsageError(f"malformed request: {in_words(error)}"))
        except Exception:  # noqa: BLE001 (the daemon goes on)
            _LOG.exception("a mistake in kurmad; the connection of process %d is closed", connection.peer.pid)
        finally:
            with self._lock:
                self._connections.discard(connection)
                last = not self._connections
            connection.socket.close()
            self._short.give_back(connection.peer)
            if last:
                self.stir()
            self.served()


def _refuse(connection: Connection, status: int, error: KurmaError) -> None:
    """Answers a request that cannot be read, unless an answer has begun."""
    if connection.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
        return
    body = json_line(error_to_json(error))
    fields = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), ("Connection", "close")]
    with contextlib.suppress(Gone, h11.LocalProtocolError):
        connection.write(connection.head(status, fields) + connection.encoded(h11.Data(data=body)))


def _turn_away(connected: socket.socket, error: KurmaError) -> None:
    """Refuses a connection without reading its request, and without waiting."""
    body = json_line(error_to_json(error))
    status = "503 Service Unavailable\r\nRetry-After: 1" if isinstance(error, BusyError) else "403 Forbidden"
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    connected.setblocking(False)
    head += f"Kurma-Version: {VERSION}\r\nContent-Length: {len(body)}\r\n\r\n"
    with contextlib.suppress(OSError):
        connected.send(head.encode() + body)
    connected.close()


def _has_gone(connected: socket.socket) -> bool:
    poll = select.poll()
    with contextlib.suppress(ValueError):  # it was closed meanwhile
        poll.register(connected, select.POLLRDHUP)
        return bool(poll.poll(0))
    return False


def _shut(connected: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the peer has disconnected
        connected.shutdown(socket.SHUT_RDWR)
