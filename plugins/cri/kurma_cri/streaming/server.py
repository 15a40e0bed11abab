"""The streaming server: accepts connections, checks their tokens and serves them, each in a thread."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from kurma_core.errors import HostError
from kurma_cri.streaming.port_forward import SpdyPortForward, serve_channels
from kurma_cri.streaming.requests import Backend, PortForward, Request
from kurma_cri.streaming.sessions import SpdySession, Times, Work, serve_websocket
from kurma_cri.streaming.tokens import Tokens
from kurma_cri.streaming.upgrade import Exchange, Head, RefusedRequestError, choose_version
from kurma_cri.streaming.websocket import Handshake, HandshakeError, MessageWire, WebSocket
from kurma_cri.streaming.wire import SocketWire

#: Most connections at a time.
_MOST = 512
#: Seconds until the server accepts again after an error such as EMFILE.
_PAUSE = 0.2
_BACKLOG = 128
#: The versions of exec and attach by their names: over SPDY, and over WebSocket with whether they are in base64.
_SPDY = {"v4.channel.k8s.io": 4, "v3.channel.k8s.io": 3, "v2.channel.k8s.io": 2, "channel.k8s.io": 1}
_CHANNELS = {
    "v5.channel.k8s.io": (5, False),
    "v4.channel.k8s.io": (4, False),
    "v4.base64.channel.k8s.io": (4, True),
    "channel.k8s.io": (1, False),
    "base64.channel.k8s.io": (1, True),
}
_FORWARD = "portforward.k8s.io"
_TUNNEL = f"SPDY/3.1+{_FORWARD}"
_FORWARD_CHANNELS = {"v4.channel.k8s.io": False, "v4.base64.channel.k8s.io": True}
#: Most ports of a request whose channels have numbers of one byte, or one digit.
_MOST_PORTS = {False: 100, True: 5}


class StreamingServer:
    """Serves exec, attach and port-forward to clients that have the URL of :meth:`url`.

    :param address: to listen on: an IP address. :param port: 0: any free one.
    :param backend: serves the requests.
    """

    def __init__(
        self, address: str, port: int, backend: Backend, log: logging.Logger, times: Times | None = None
    ) -> None:
        self._address, self._port = address, port
        self._work = Work(backend, log, times or Times())
        self._log = log
        self._tokens = Tokens()
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        #: The thread of each connection, and what disconnects its client.
        self._connections: dict[threading.Thread, Callable[[], None]] = {}

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return self._port

    def start(self) -> None:
        """Listens and serves. :raises HostError: it cannot listen there."""
        family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self._address, self._port))
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            raise HostError(
                f"cannot listen on {self._address} port {self._port}: {error.strerror or error}", errno=error.errno
            ) from None
        self._port = listener.getsockname()[1]
        self._listener = listener
        self._thread = threading.Thread(target=self._accept, args=(listener,), name="cri-streaming", daemon=True)
        self._thread.start()

    def stop(self, seconds: float = 5.0) -> None:
        """Closes the listener, disconnects all clients and waits for the end of their threads. Repeatable.

        :param seconds: after that, threads are left that still run.
        """
        self._stopped.set()
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # ends a wait in accept(2)
        if self._thread is not None:
            self._thread.join()
        if self._listener is not None:
            self._listener.close()
        end = time.monotonic() + seconds
        with self._lock:
            connections = dict(self._connections)
        for hang_up in connections.values():
            hang_up()
        for thread in connections:
            thread.join(max(0.0, end - time.monotonic()))

    def url(self, request: Request) -> str:
        """The URL by which one client can make this request, once, within a minute.

        :raises TooManyTokensError: 1,000 URLs were not used yet.
        """
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._address, self._address)  # noqa: S104 (compared)
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self._port}/{request.KIND}/{self._tokens.make(request)}"

    # -- threads --

    def _accept(self, listener: socket.socket) -> None:
        while not self._stopped.is_set():
            try:
                connected, _ = listener.accept()
            except OSError as error:
                if not self._stopped.is_set():
                    self._log.warning("streaming: cannot accept a connection: %s", error.strerror)
                    self._stopped.wait(_PAUSE)
                continue
            self._begin(connected)

    def _begin(self, connected: socket.socket) -> None:
        thread = threading.Thread(target=self._serve, args=(connected,), name="cri-stream", daemon=True)
        with self._lock:
            full = len(self._connections) >= _MOST
            if not full:
                self._connections[thread] = lambda: _disconnect(connected)
        try:
            if full:
                raise RuntimeError(f"there are {_MOST} connections")
            thread.start()
        except RuntimeError as error:
            self._log.warning("streaming: a connection was refused: %s", error)
            with self._lock:
                self._connections.pop(thread, None)
            connected.close()

    def _serve(self, connected: socket.socket) -> None:
        try:
            with connected:
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                exchange = Exchange(connected, self._work.times.request)
                try:
                    self._answer(connected, exchange)
                except RefusedRequestError as error:
                    exchange.refuse(error)
        except OSError:
            pass  # the client has gone
        except Exception:  # noqa: BLE001 (the server goes on)
            self._log.exception("streaming: a mistake in the streaming server")
        finally:
            with self._lock:
                self._connections.pop(threading.current_thread(), None)

    def _answer(self, connected: socket.socket, exchange: Exchange) -> None:
        """:raises RefusedRequestError: the client gets that answer. :raises OSError: the client has gone."""
        head = exchange.read()
        if head is None:
            return
        if head.method not in ("GET", "POST"):
            raise RefusedRequestError(405, "the method must be GET or POST", [("Allow", "GET, POST")])
        protocol = head.upgrades_to()
        words = urlsplit(head.target).path.split("/")
        request = self._tokens.take(words[1], words[2]) if len(words) == 3 else None
        if request is None:
            raise RefusedRequestError(404, "this URL was used, has expired, or is not one of this server")
        if protocol == "spdy/3.1":
            self._serve_spdy(request, head, connected, exchange)
        elif protocol == "websocket":
            self._serve_websocket(request, head, connected, exchange)
        else:
            raise RefusedRequestError(
                400, "the request must ask for an upgrade to SPDY/3.1 or websocket", [("Upgrade", "SPDY/3.1")]
            )

    def _wire(self, connected: socket.socket, first: bytes) -> SocketWire:
        wire = SocketWire(connected, first, self._work.times.idle)
        with self._lock:
            self._connections[threading.current_thread()] = wire.hang_up
        if self._stopped.is_set():
            wire.hang_up()
        return wire

    def _serve_spdy(self, request: Request, head: Head, connected: socket.socket, exchange: Exchange) -> None:
        if isinstance(request, PortForward):
            version = choose_version(head, (_FORWARD,))
            with contextlib.closing(self._wire(connected, exchange.upgrade(version))) as wire:
                SpdyPortForward(request, wire, self._work).serve()
        else:
            version = choose_version(head, tuple(_SPDY))
            with contextlib.closing(self._wire(connected, exchange.upgrade(version))) as wire:
                SpdySession(request, _SPDY[version], wire, self._work).serve()

    def _serve_websocket(self, request: Request, head: Head, connected: socket.socket, exchange: Exchange) -> None:
        if head.method != "GET":
            raise RefusedRequestError(405, "the method must be GET for a WebSocket", [("Allow", "GET")])
        try:
            handshake = Handshake(list(head.headers), head.target)
        except HandshakeError as error:
            raise RefusedRequestError(400, str(error)) from None
        supported = (_TUNNEL, *_FORWARD_CHANNELS) if isinstance(request, PortForward) else tuple(_CHANNELS)
        chosen = _subprotocol(handshake.offered, supported)
        if isinstance(request, PortForward) and chosen != _TUNNEL:
            encoded = _FORWARD_CHANNELS.get(chosen or "", False)
            if not 0 < len(request.ports) <= _MOST_PORTS[encoded]:
                raise RefusedRequestError(
                    400, f"this protocol needs 1 to {_MOST_PORTS[encoded]} ports in the request"
                )
        answer, connection = handshake.accept(chosen)
        connected.sendall(answer)
        with contextlib.closing(self._wire(connected, exchange.rest())) as wire:
            websocket = WebSocket(wire, connection)
            if not isinstance(request, PortForward):
                version, encoded = _CHANNELS[chosen or "channel.k8s.io"]
                serve_websocket(request, version, encoded, websocket, self._work)
            elif chosen == _TUNNEL:
                SpdyPortForward(request, MessageWire(websocket), self._work).serve()
            else:
                serve_channels(request, encoded, websocket, self._work)


def _subprotocol(offered: tuple[str, ...], supported: tuple[str, ...]) -> str | None:
    """The first of the client's subprotocols that is supported; None: the client offers none.

    :raises RefusedRequestError: there is none that both have.
    """
    if not offered:
        return None
    for name in offered:
        if name in supported:
            return name
    raise RefusedRequestError(
        400, f"none of these subprotocols is supported: {', '.join(offered)}; supported: {', '.join(supported)}"
    )


def _disconnect(connected: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
