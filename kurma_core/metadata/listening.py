"""Makes the listening socket of a pod's metadata service, which only that pod can reach.

In a network namespace of the pod's own it is 169.254.169.255 on the loopback interface, at a port that apps are
not likely to use; connections to port 80 of that address are steered there, without occupying the port. A pod in
the host's network gets a port on 127.0.0.1. Both sockets are bound to the loopback interface: otherwise the kernel
would accept packets for the address on every other interface, too.
"""

from __future__ import annotations

import os
import socket

from kurma_core.errors import HostError

ADDRESS, PORT = "169.254.169.255", 61169
#: Port at which early images look for the service (early draft, Metadata Server).
EARLY_PORT = 80
HOST_ADDRESS = "127.0.0.1"
#: Ports above the kernel's default range of ephemeral ports.
_FIRST, _LAST = 61000, 65535
_TRIES = 32
_BACKLOG = 64
_IP_FREEBIND = 15


class Listener:
    """A listening socket.

    :param steering: descriptor of the BPF program that steers port 80 to the socket; None: there is none.
    :param early: the reason why port 80 is not steered; empty if it is, or should not be.
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
    """Makes the socket. The thread enters the namespace and comes back; no signal handler may interrupt it
    meanwhile.

    :param namespace: path at which the pod's network namespace is pinned; None: the host's.
    :param port: the earlier port of the service; None: choose one.
    :raises HostError: the socket cannot be made.
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
    from kurma_core.linux.namespaces import add_lo_address

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
        # The last attempt leaves the choice to the kernel.
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
        # Connections of an earlier owner of the pod must not block the port.
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
