"""A connection as bytes: one thread receives, any thread sends, any thread hangs up."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from typing import Protocol

_PIECE = 64 << 10
#: The longest wait of poll(2), in seconds.
_LONGEST = 3600.0


class GoneError(Exception):
    """The client has disconnected, or was disconnected."""


class Wire(Protocol):
    """Bytes to and from a client."""

    def receive(self) -> bytes:
        """Waits for bytes. :returns: empty: the client has gone, or was idle for too long."""
        ...

    def send(self, data: bytes) -> None:
        """Sends all of the bytes, however slowly the client reads. :raises GoneError: the client has gone."""
        ...

    def is_gone(self) -> bool:
        """Whether the client has gone, while it is not being received from."""
        ...

    def hang_up(self) -> None:
        """Disconnects, which ends all calls of the other methods. Repeatable."""
        ...


class SocketWire:
    """:param connected: blocking; :meth:`close` closes it.
    :param first: bytes that were received before.
    :param idle: seconds without a byte in any direction after which the client is disconnected.
    """

    def __init__(self, connected: socket.socket, first: bytes, idle: float) -> None:
        self._socket = connected
        self._first = first
        self._idle = idle
        self._used = time.monotonic()
        self._sending = threading.Lock()
        self._closing = threading.Lock()
        self._closed = self._hung_up = False
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN)

    def receive(self) -> bytes:
        if self._first:
            data, self._first = self._first, b""
            return data
        while not self._hung_up:
            left = self._used + self._idle - time.monotonic()
            if left <= 0:
                self.hang_up()
                break
            if not self._poll.poll(min(left, _LONGEST) * 1000):
                continue
            try:
                data = self._socket.recv(_PIECE, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            except OSError:
                break
            self._used = time.monotonic()
            return data
        return b""

    def send(self, data: bytes) -> None:
        with self._sending:
            try:
                self._socket.sendall(data)
            except OSError:
                raise GoneError from None
            self._used = time.monotonic()

    def is_gone(self) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        if self._used + self._idle < time.monotonic():
            self.hang_up()
        return self._hung_up or bool(poll.poll(0))

    def hang_up(self) -> None:
        with self._closing:
            self._hung_up = True
            if not self._closed:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the socket, when no other thread uses it any more."""
        self.hang_up()
        with self._closing:
            self._closed = True
            self._socket.close()
