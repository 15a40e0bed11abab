"""A bound for waits that the socket's own time-out does not bound: a peer that sends a byte now and then."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection


@contextlib.contextmanager
def deadline(seconds: float, end: Callable[[], None]) -> Iterator[None]:
    """:param end: called after that many seconds, in another thread: makes the wait inside end.
    :raises TimeoutError: that was needed, however the wait ended.
    """
    over = threading.Event()

    def stop() -> None:
        over.set()
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            end()

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
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
    """The head of an answer, and a proxy's word before it, must be whole within twice the time-out."""

    sock: Any
    timeout: Any

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
