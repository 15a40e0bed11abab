"""Makes the listening socket of a pod's metadata service where only that pod can reach it.

In a network namespace of the pod's own it is 169.254.169.255 on the loopback interface, at a port that no app is
likely to want; port 80 of that address is steered there and stays free otherwise. A pod in the host's network gets
a port on 127.0.0.1. Either socket is bound to the loopback interface itself: the kernel would answer for the
address on every other one, too.
"""

from __future__ import annotations

import os
import socket

from kurma_core.errors import HostError

ADDRESS, PORT = "169.254.169.255", 61169
#: Where early images look for the service (early draft, Metadata Server).
EARLY_PORT = 80
HOST_ADDRESS = "127.0.0.1"
#: Ports of their own choice that the kernel gives to nobody by itself, as it is configured everywhere.
_FIRST, _LAST = 61000, 65535
_TRIES = 32
_BACKLOG = 64
_IP_FREEBIND = 15


class Listener:
    """:param steering: holds what turns port 80 to the socket; None: it is not turned.
    :param early: why it is not; empty where it is, or was not to be.
    """

    __slots__ = ("address", "early", "port", "socket", "steering")

    def __init__(self, sock: socket.socket, steering: int | None, early: str) -> None:
        self.socket = sock
        self.steering = steering
        self.early = early
        self.address, self.port = sock.getsockname()

    def close(self) -> None:
        """May be repeated."""
        self.socket.close()
        if self.steering is not None:
            os.close(self.steering)
            self.steering = None


def listen(namespace: str | None, port: int | None = None) -> Listener:
    """For a thread that nothing interrupts: it goes to that namespace and comes back.

    :param namespace: where the pod's network namespace is pinned; None: the host's.
    :param port: that it had before; None: choose one.
    :raises HostError: it cannot be had.
    """
    try:
        if namespace is None:
            return _listen_on_host(port)
        from kurma_core.linux.namespaces import in_netns

        with in_netns(namespace):
            return _listen_inside(port or PORT)
    except OSError as error:
        where = "the host" if namespace is None else namespace
        raise HostError(
            f"cannot make the metadata service's socket in {where}: {error.strerror or error}",
            errno=error.errno,
            path=error.filename,
        ) from None


def _listen_inside(port: int) -> Listener:
    from kurma_core.linux.bpf import steer_connections
    from kurma_core.linux.loopback import add_lo_address

    address = socket.inet_aton(ADDRESS)
    add_lo_address(address)
    sock = _bound(ADDRESS, port)
    try:
        return Listener(sock, steer_connections(sock.fileno(), address, EARLY_PORT), "")
    except OSError as error:
        return Listener(sock, None, f"{ADDRESS}:{EARLY_PORT} does not lead there: {error.strerror}")


def _listen_on_host(port: int | None) -> Listener:
    if port is not None:
        return Listener(_bound(HOST_ADDRESS, port), None, "")
    for number in range(_TRIES):
        # The last time, the kernel's own choice.
        choice = _FIRST + int.from_bytes(os.urandom(4)) % (_LAST - _FIRST + 1) if number < _TRIES - 1 else 0
        try:
            return Listener(_bound(HOST_ADDRESS, choice), None, "")
        except OSError:
            if not choice:
                raise
    raise AssertionError("the last try returns or raises")


def _bound(address: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        # What the owner before had open does not keep us from its port.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
        # The interface need not be up yet.
        sock.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
        sock.bind((address, port))
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"{address}:{port}: {error.strerror}") from None
    return sock
