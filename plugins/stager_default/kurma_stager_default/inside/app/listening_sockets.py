"""Socket activation: the listening sockets of an app's ports with ``socketActivated`` (sd_listen_fds(3)).

The stager makes them in the pod's network namespace, and keeps them while it restarts the app: clients that
connect meanwhile wait, and are not refused. Imported only if an app has such ports.
"""

from __future__ import annotations

import _socket
import errno
import fcntl
import os

from kurma_stager_default.inside.errors import SetupError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_stager_default.inside.manifest import App, Port

#: The first descriptor that is handed over.
FIRST = 3
_BACKLOG = 4096
_KINDS = {"tcp": _socket.SOCK_STREAM, "udp": _socket.SOCK_DGRAM}
_NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


class Listening:
    """The listening sockets of one app.

    :param app: an app with such ports.
    :raises SetupError: one port cannot be listened on; the other sockets are closed then.
    """

    __slots__ = ("_sockets", "names")

    def __init__(self, app: App) -> None:
        self._sockets: list[_socket.socket] = []
        #: the port's name of each socket
        self.names: list[str] = []
        for port in app.sockets:
            for number in range(port.first, port.first + port.count):
                try:
                    self._sockets.append(_make(port, number))
                except (OSError, OverflowError) as error:
                    self.close()
                    why = error.strerror if isinstance(error, OSError) else "there is no such port"
                    raise SetupError(
                        f"app {app.name}: port {port.name}: {number}/{port.protocol} cannot be listened on: {why}"
                    ) from None
                self.names.append(port.name)

    def fds(self) -> list[int]:
        return [socket.fileno() for socket in self._sockets]

    def renew(self) -> None:
        """Makes the sockets listen again: an earlier execution of the app may have shut them down."""
        for socket in self._sockets:
            if socket.type == _socket.SOCK_STREAM:
                try:  # noqa: SIM105 - contextlib costs every pod's start
                    socket.listen(_BACKLOG)
                except OSError:
                    pass  # the app has shut it down, and the port is taken meanwhile: the app gets the error

    def close(self) -> None:
        for socket in self._sockets:
            socket.close()
        self._sockets.clear()


def _make(port: Port, number: int) -> _socket.socket:
    """Makes a socket for IPv6 and IPv4, as systemd does; for IPv4 only if the kernel has no IPv6."""
    try:
        socket = _socket.socket(_socket.AF_INET6, _KINDS[port.protocol])
        try:
            socket.setsockopt(_socket.IPPROTO_IPV6, _socket.IPV6_V6ONLY, 0)
            return _bound(socket, "::", number)
        except OSError:
            socket.close()
            raise
    except OSError as error:
        if error.errno not in _NO_IPV6:
            raise
    socket = _socket.socket(_socket.AF_INET, _KINDS[port.protocol])
    try:
        return _bound(socket, "0.0.0.0", number)  # noqa: S104 - every address of the pod is meant
    except OSError:
        socket.close()
        raise


def _bound(socket: _socket.socket, address: str, number: int) -> _socket.socket:
    if socket.type == _socket.SOCK_STREAM:
        socket.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
    socket.bind((address, number))
    if socket.type == _socket.SOCK_STREAM:
        socket.listen(_BACKLOG)
    return socket


def above(fd: int, count: int) -> int:
    """Copies a descriptor to a number above those of the sockets that are handed over."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST + count)


def hand_over(fds: list[int], names: list[str]) -> list[tuple[str, str]]:
    """Moves the sockets to the descriptors from :data:`FIRST` up, in the child that becomes the app. Descriptors
    that had these numbers are closed.

    :returns: the app's environment variables for them.
    """
    for number, fd in enumerate([above(fd, len(fds)) for fd in fds], FIRST):
        os.dup2(fd, number)
        os.close(fd)
    return [("LISTEN_FDS", str(len(fds))), ("LISTEN_PID", str(os.getpid())), ("LISTEN_FDNAMES", ":".join(names))]
