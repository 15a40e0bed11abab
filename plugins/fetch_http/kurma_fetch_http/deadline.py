"""Deadlines for sockets: ends reads from a peer that sends too slowly, and reads of a cancelled operation."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, LocationParseError, NameResolutionError, NewConnectionError
from urllib3.util.connection import allowed_gai_family

from kurma_core.cancellation import abandoning, current


@contextlib.contextmanager
def deadline(seconds: float, end: Callable[[], None]) -> Iterator[None]:
    """Limits the time of a wait, as a context manager.

    :param end: called after that many seconds, in another thread, to end the wait.
    :raises TimeoutError: the time expired; it replaces the result or the error of the wait.
    :raises Cancelled: the operation was cancelled, which ended the wait.
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


class LowSpeed:
    """The limit of slowness for a large body: fewer than ``rate`` bytes per second, over ``seconds``."""

    __slots__ = ("rate", "seconds")

    def __init__(self, rate: float = 1000.0, seconds: float = 60.0) -> None:
        self.rate = rate
        self.seconds = seconds

    def __str__(self) -> str:
        return f"less than {self.rate:.0f} bytes a second for {self.seconds:g} seconds"


class Pace:
    """Ends a body that arrives too slowly. Only the time in which a read waits counts.

    A timer checks when enough time may have passed; a read costs only two calls of the clock.

    :param end: ends a waiting read, from another thread.
    :ivar over: whether it was called.
    """

    def __init__(self, limit: LowSpeed, end: Callable[[], None]) -> None:
        self._limit = limit
        self._end = end
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._since: float | None = None
        self._waited = 0.0
        self._bytes = 0
        self._closed = False
        self.over = False

    def read(self, some: Callable[[], bytes]) -> bytes:
        """Calls ``some`` and returns the bytes that it reads. :raises TimeoutError: the body arrives too
        slowly."""
        data = b""
        with self._lock:
            self._since = time.monotonic()
            if self._timer is None and not self._closed:
                self._arm(self._limit.seconds)
        try:
            data = some()
        except Exception:
            if not self.over:
                raise
        finally:
            with self._lock:
                self._waited += time.monotonic() - self._since
                self._since = None
                self._bytes += len(data)
        if self.over:
            raise TimeoutError(str(self._limit))
        return data

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._timer is not None:
                self._timer.cancel()

    def _arm(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._look)
        self._timer.daemon = True
        self._timer.start()

    def _look(self) -> None:
        with self._lock:
            self._timer = None
            if self._since is None or self._closed:
                return  # the next read sets a new one
            waited = self._waited + time.monotonic() - self._since
            left = self._limit.seconds - waited
            if left > 0:
                self._arm(left)
                return
            if self._bytes >= self._limit.rate * waited:
                self._waited, self._bytes, self._since = 0.0, 0, time.monotonic()
                self._arm(self._limit.seconds)
                return
            self.over = True
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            self._end()


class _Bounded:
    """A connection that ends when its operation is cancelled, in every phase up to the answer. The head of an
    answer, and before it a proxy's answer, must be complete within twice the time-out."""

    sock: Any
    timeout: Any
    #: The socket that is being connected.
    _on_the_way: socket.socket | None = None

    def connect(self) -> None:
        """Resolves the name, connects, asks a proxy for a tunnel, and does the TLS handshake."""
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
        """Connects to the first address of the host that accepts, and raises the same errors as urllib3."""
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
        """Sets the descriptor by which :meth:`_stop` interrupts the connection. It is a duplicate: the TLS layer
        takes over the first one, and its socket object is not reachable until the handshake is done."""
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
    """Resolves the host. The C library's look-up cannot be interrupted, so it is abandoned on cancellation."""
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
