"""Forwards connections to ports of a pod: SPDY, also inside of a WebSocket, and the older WebSocket channels."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

from kurma_core.errors import KurmaError
from kurma_cri.streaming import spdy
from kurma_cri.streaming.spdy_connection import RefusedError, SpdyConnection, SpdyStream
from kurma_cri.streaming.streams import Input
from kurma_cri.streaming.websocket import Channels, WebSocket
from kurma_cri.streaming.wire import GoneError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kurma_cri.streaming.requests import PortForward
    from kurma_cri.streaming.sessions import Work
    from kurma_cri.streaming.streams import Output, Sink
    from kurma_cri.streaming.wire import Wire

_PIECE = 64 << 10


def connect(request: PortForward, port: int, work: Work) -> tuple[socket.socket | None, str]:
    """Connects to a port of the pod. :returns: None with the reason if that fails."""
    try:
        return work.backend.port_forward(request.pod, port), ""
    except KurmaError as error:
        return None, error.message
    except Exception:
        work.log.exception("streaming: a mistake in the connection to port %d", port)
        return None, f"cannot connect to port {port}: kurmad has made a mistake; its log has the details"


def relay(connected: socket.socket, source: Input, output: Output, ended: Callable[[], None]) -> bool:
    """Copies in both directions until both have ended, and closes the socket.

    :param ended: called when the pod sends no more.
    :returns: False: the pod takes no more from the client, or the client has reset the stream.
    """
    results = []

    def to_pod() -> None:
        try:
            while data := source.read():
                connected.sendall(data)
            connected.shutdown(socket.SHUT_WR)
            results.append(True)
        except (GoneError, OSError):
            results.append(False)
            disconnect()

    def disconnect() -> None:
        with contextlib.suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)

    copier = threading.Thread(target=to_pod, name="cri-portforward", daemon=True)
    try:
        copier.start()
    except RuntimeError:  # the host allows no more threads
        connected.close()
        return False
    # Also after the end of the client's data.
    source.on_abort(disconnect)
    try:
        with contextlib.suppress(OSError):  # the pod, or the client, has reset it
            while data := connected.recv(_PIECE):
                output.write(data)
        ended()
    finally:
        copier.join()
        source.on_abort(lambda: None)
        connected.close()
    return results == [True]


class _Pair:
    """The two streams of one connection."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.data: SpdyStream | None = None
        self.error: SpdyStream | None = None
        self.input: Input | None = None
        self.settled = threading.Event()


class SpdyPortForward:
    """Connections over SPDY, two streams for each. :param wire: speaks SPDY from now on."""

    def __init__(self, request: PortForward, wire: Wire, work: Work) -> None:
        self._request = request
        self._work = work
        self._connection = SpdyConnection(wire, self._opened)
        self._lock = threading.Lock()
        #: Pairs of which one stream is open, by request.
        self._pairs: dict[str, _Pair] = {}
        self._threads: set[threading.Thread] = set()

    def serve(self) -> None:
        """Serves the connection to its end."""
        try:
            self._connection.run()
        finally:
            with self._lock:
                pairs, threads = list(self._pairs.values()), list(self._threads)
            for pair in pairs:
                pair.settled.set()
            for thread in threads:
                thread.join()

    def _opened(self, stream: SpdyStream) -> None:
        kind, port = stream.headers.get("streamtype"), _port(stream.headers.get("port", ""))
        if kind not in ("data", "error") or port is None:
            raise RefusedError(spdy.PROTOCOL_ERROR)
        name = stream.headers.get("requestid") or str(stream.number - (2 if kind == "data" else 0))
        with self._lock:
            pair = self._pairs.get(name)
            new = pair is None
            if pair is None:
                pair = self._pairs[name] = _Pair(port)
            if pair.port != port or (pair.data if kind == "data" else pair.error) is not None:
                raise RefusedError(spdy.PROTOCOL_ERROR)
            if kind == "data":
                pair.data = stream
                stream.sink = pair.input = Input(self._connection.is_gone, stream.taken)
            else:
                pair.error = stream
            if not new:
                del self._pairs[name]
                pair.settled.set()
        if new:
            thread = threading.Thread(target=self._forward, args=(name, pair), name="cri-portforward", daemon=True)
            with self._lock:
                self._threads.add(thread)
            try:
                thread.start()
            except RuntimeError:
                with self._lock:
                    self._threads.discard(thread)
                    self._pairs.pop(name, None)
                raise RefusedError(spdy.INTERNAL_ERROR) from None

    def _forward(self, name: str, pair: _Pair) -> None:
        try:
            pair.settled.wait(self._work.times.opening)
            with self._lock:
                self._pairs.pop(name, None)
                data, error, source = pair.data, pair.error, pair.input
            if data is not None and error is not None and source is not None:
                self._connect(pair.port, data, error, source)
            else:
                self._fail(data, error, f"port {pair.port}: one of the two streams was not opened")
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _connect(self, port: int, data: SpdyStream, error: SpdyStream, source: Input) -> None:
        connected, reason = connect(self._request, port, self._work)
        if connected is None:
            self._fail(data, error, reason)
            return

        def ended() -> None:
            # Some clients wait for the end of both before they end their own side.
            data.close()
            error.close()

        if not relay(connected, source, data, ended):
            data.reset(spdy.CANCEL)

    def _fail(self, data: SpdyStream | None, error: SpdyStream | None, reason: str) -> None:
        if error is not None:
            with contextlib.suppress(BrokenPipeError):
                error.write(reason.encode())
            error.close()
        for stream in (data, error):
            if stream is not None:
                stream.reset(spdy.INTERNAL_ERROR)


def _port(text: str) -> int | None:
    if not (text.isascii() and text.isdigit() and len(text) <= 5):
        return None
    return int(text) if 0 < int(text) <= 0xFFFF else None


def serve_channels(request: PortForward, encoded: bool, websocket: WebSocket, work: Work) -> None:
    """Serves the older protocol to its end: for each port of the request a channel of data and one of errors, each
    of which begins with the port, as two bytes, little-endian.

    :param encoded: in base64.
    """
    channels = Channels(websocket, encoded=encoded)
    inputs = {2 * number: Input(websocket.is_gone) for number in range(len(request.ports))}

    def forward(number: int, port: int) -> None:
        data, error = channels.output(2 * number), channels.output(2 * number + 1)
        with contextlib.suppress(BrokenPipeError):
            for output in (data, error):
                output.write(port.to_bytes(2, "little"))
            connected, reason = connect(request, port, work)
            if connected is None:
                error.write(reason.encode())
            else:
                relay(connected, inputs[2 * number], data, inputs[2 * number].close)
        inputs[2 * number].close()

    threads = [
        threading.Thread(target=forward, args=(number, port), name="cri-portforward", daemon=True)
        for number, port in enumerate(request.ports)
    ]

    def all_over() -> None:
        for thread in threads:
            thread.join()
        channels.leave(work.times.leaving)

    last = threading.Thread(target=all_over, name="cri-portforward", daemon=True)
    for thread in (*threads, last):
        thread.start()
    sinks: dict[int, Sink] = {**inputs}
    try:
        channels.run(sinks)
    finally:
        last.join()
