"""Ends of waits that the socket's own time-out does not end: a peer that sends a byte now and then; an operation
that is cancelled, from another thread."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, LocationParseError, NameResolutionError, NewConnectionError
from urllib3.util.connection import allowed_gai_family

from kurma_core.cancellation import abandoning, current


@contextlib.contextmanager
def deadline(seconds: float, end: Callable[[], None]) -> Iterator[None]:
    """:param end: called after that many seconds, in another thread: makes the wait inside end.
    :raises TimeoutError: that was needed, however the wait ended.
    :raises Cancelled: the operation was cancelled, and the wait ended for it.
    """
    over = threading.Event()

    def stop() -> None:
        over.set()
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            end()

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    with current().waking(end):
        timer.start()
        try:
            yield
        except Exception:
            if not over.is_set():
                raise
        finally:
            timer.cancel()
    if over.is_set():
        raise TimeoutError("not whole in time")


class _Bounded:
    """Ends when its operation is cancelled, at whatever step of the way to an answer. The head of an answer, and a
    proxy's word before it, must be whole within twice the time-out."""

    sock: Any
    timeout: Any
    #: The socket that is being connected.
    _on_the_way: socket.socket | None = None

    def connect(self) -> None:
        """Looks up the name, connects, asks a proxy for a tunnel, and agrees on TLS."""
        try:
            with current().waking(self._stop):
                super().connect()  # type: ignore[misc]
        finally:
            self._watch(None)

    def _stop(self) -> None:
        peer = self._on_the_way
        if peer is not None:
            peer.shutdown(socket.SHUT_RDWR)

    def _new_conn(self) -> socket.socket:
        """As urllib3's own: the first address of the host that takes a connection."""
        this: Any = self
        try:
            return self._connected()
        except socket.gaierror as error:
            raise NameResolutionError(this.host, this, error) from error
        except TimeoutError as error:
            raise ConnectTimeoutError(this, f"Connection to {this.host} timed out.") from error
        except OSError as error:
            raise NewConnectionError(this, f"Failed to establish a new connection: {error}") from error

    def _connected(self) -> socket.socket:
        this: Any = self
        failed: OSError | None = None
        for family, kind, protocol, _, address in _addresses(this._dns_host, this.port):
            peer = socket.socket(family, kind, protocol)
            try:
                for option in this.socket_options or ():
                    peer.setsockopt(*option)
                if isinstance(self.timeout, (int, float)):
                    peer.settimeout(self.timeout)
                self._watch(peer.dup())
                current().check()
                peer.connect(address)
                return peer
            except BaseException as error:
                peer.close()
                current().check()
                if not isinstance(error, OSError):
                    raise
                failed = error
        raise failed or OSError("no address")

    def _watch(self, peer: socket.socket | None) -> None:
        """From here on it can be woken. By a second descriptor, for TLS takes the first into an object of its own,
        which nobody sees before all is agreed."""
        before, self._on_the_way = self._on_the_way, peer
        if before is not None:
            before.close()

    def getresponse(self) -> Any:
        with self._deadline():
            return super().getresponse()  # type: ignore[misc]

    def _tunnel(self) -> None:
        with self._deadline():
            super()._tunnel()  # type: ignore[misc]

    def _deadline(self) -> contextlib.AbstractContextManager[None]:
        peer = getattr(self.sock, "socket", self.sock)  # the socket below, where TLS is spoken through TLS
        if not isinstance(peer, socket.socket) or not isinstance(self.timeout, (int, float)):
            return contextlib.nullcontext()
        return deadline(2 * self.timeout, lambda: socket.socket.shutdown(peer, socket.SHUT_RDWR))


def _addresses(host: str, port: int) -> list[Any]:
    """Where the host is. Nothing wakes the C library's look-up: it is left to itself if need be."""
    name = host.strip("[]")
    try:
        name.encode("idna")
    except UnicodeError:
        raise LocationParseError(f"'{name}', label empty or too long") from None
    family = allowed_gai_family()
    return abandoning(lambda: socket.getaddrinfo(name, port, family, socket.SOCK_STREAM), grace=0.0)


class _Plain(_Bounded, HTTPConnection):
    pass


class _Secure(_Bounded, HTTPSConnection):
    pass


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = _Plain


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _Secure


#: For :attr:`urllib3.PoolManager.pool_classes_by_scheme`.
POOLS = {"http": _PlainPool, "https": _SecurePool}
