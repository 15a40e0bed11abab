"""The HTTP server: accepts connections within limits, and serves each in a thread of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from typing import TYPE_CHECKING

import h11

from kurma_core.cancellation import Cancellation, current, governing
from kurma_core.errors import Cancelled, HostError, KurmaError
from kurma_dashboard.access import Access, RefusedError, make_tokens, write_private
from kurma_dashboard.exchange import Exchange, Gone
from kurma_dashboard.live import Live
from kurma_dashboard.routes import Routes, status_of

if TYPE_CHECKING:
    from kurma_core.hookspecs.service import ServiceHost
    from kurma_dashboard.options import Options

#: Connections at a time, and those of them that are streams: the others stay free for answers.
MOST, MOST_STREAMS = 64, 24
_BACKLOG = 32
#: Seconds until the server accepts again after an error such as EMFILE.
_PAUSE = 0.2
#: Seconds that threads have to end.
_ENDING = 5.0
#: The file with the page's address, for the command.
ADDRESS = "address"


class Server:
    """:param directory: for the tokens and the address; the server makes it."""

    def __init__(self, options: Options, directory: str, host: ServiceHost) -> None:
        self._options, self._directory, self._host = options, directory, host
        self._lock = threading.Lock()
        self._connections: dict[threading.Thread, socket.socket] = {}
        self._streams = 0
        self._failed: KurmaError | None = None
        self._routes: Routes

    def serve(self) -> None:
        """Serves until its operation is cancelled. :raises HostError: it cannot listen, or write its files."""
        access = Access(make_tokens(self._directory), self._options)
        with contextlib.ExitStack() as undo, _listen(self._options) as listener:
            end = _Ending(listener)
            live = Live(self._host.client, self._host.log, lambda error: self._fail(error, end))
            self._routes = Routes(
                self._host.client, self._host.log, access, live, self._stream_begins, self._stream_ends
            )
            address = page_address(listener)
            write_private(f"{self._directory}/{ADDRESS}", address)
            undo.callback(_remove, f"{self._directory}/{ADDRESS}")
            operation = Cancellation(current())
            threads = live.start(operation)
            undo.callback(self._end, operation, live, threads)
            self._host.log.info("dashboard: serves %s: kurma dashboard prints the address for a visit", address)
            if self._options.remote:
                self._host.log.warning(
                    "dashboard: other hosts may reach %s, and the connection is not encrypted", address
                )
            self._host.ready()
            with current().waking(end.end):
                while not end.ended:
                    self._accept(listener, operation, end)
            if self._failed is not None:
                raise self._failed

    def _fail(self, error: KurmaError, end: _Ending) -> None:
        self._failed = error
        end.end()

    def _end(self, operation: Cancellation, live: Live, threads: list[threading.Thread]) -> None:
        """Ends all threads. They may be in the middle of an operation of Kurma's, which is cancelled."""
        operation.cancel()
        live.end()
        with self._lock:
            connections = dict(self._connections)
        for connected in connections.values():
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + _ENDING
        for thread in (*threads, *connections):
            thread.join(max(0.0, deadline - time.monotonic()))

    # -- connections --

    def _accept(self, listener: socket.socket, operation: Cancellation, end: _Ending) -> None:
        try:
            connected, _ = listener.accept()
        except OSError as error:
            if not end.ended:
                self._host.log.warning("dashboard: cannot accept a connection: %s", error.strerror)
                time.sleep(_PAUSE)
            return
        thread = threading.Thread(
            target=self._serve, args=(connected, operation), name="dashboard-connection", daemon=True
        )
        with self._lock:
            full = len(self._connections) >= MOST
            if not full:
                self._connections[thread] = connected
        try:
            if full:
                raise RuntimeError(f"there are {MOST} connections")
            thread.start()
        except RuntimeError as error:
            self._host.log.debug("dashboard: a connection was refused: %s", error)
            with self._lock:
                self._connections.pop(thread, None)
            connected.close()

    def _serve(self, connected: socket.socket, operation: Cancellation) -> None:
        try:
            with connected, governing(operation):
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                exchange = Exchange(connected)
                while not operation.cancelled and self._serve_one(exchange, operation):
                    continue
        except (Gone, Cancelled, OSError, h11.LocalProtocolError):
            pass  # the client has gone, or an answer had begun
        except Exception:
            self._host.log.exception("dashboard: a mistake in the dashboard")
        finally:
            with self._lock:
                self._connections.pop(threading.current_thread(), None)

    def _serve_one(self, exchange: Exchange, operation: Cancellation) -> bool:
        """Answers one request. :returns: whether another may follow."""
        try:
            request = exchange.read()
            if request is None:
                return False
            self._routes.answer(request, exchange, operation)
        except RefusedError as error:
            exchange.answer_json(error.status, {"error": {"message": str(error), "hint": error.hint}})
        except KurmaError as error:
            exchange.answer_json(status_of(error), {"error": {"message": error.message, "hint": error.hint or ""}})
        if exchange.broken:
            exchange.drain()
            return False
        return True

    def _stream_begins(self) -> bool:
        with self._lock:
            if self._streams >= MOST_STREAMS:
                return False
            self._streams += 1
            return True

    def _stream_ends(self) -> None:
        with self._lock:
            self._streams -= 1


class _Ending:
    """Ends the loop that accepts connections; any thread may."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.ended = False

    def end(self) -> None:
        self.ended = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends a wait in accept(2)


def _listen(options: Options) -> socket.socket:
    """:raises HostError: it cannot listen there."""
    family = socket.AF_INET6 if ":" in options.address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((options.address, options.port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise HostError(
            f"cannot listen on {options.address} port {options.port}: {error.strerror or error}",
            hint="choose another address with `listen` of the dashboard in kurma.yml",
            errno=error.errno,
        ) from None
    return listener


def page_address(listener: socket.socket) -> str:
    """The page's address; of a server on all addresses, the one on the loopback interface."""
    address, port = listener.getsockname()[:2]
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)  # noqa: S104 (compared)
    return f"http://[{address}]:{port}/" if ":" in address else f"http://{address}:{port}/"


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
