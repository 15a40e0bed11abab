"""The sockets of an app's ports with ``socketActivated`` (Y4; sd_listen_fds(3)).

The stager makes them in the pod's network namespace and keeps them while the app is started again: who connects
meanwhile waits, and is not refused. Imported only where an app has such ports.
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
    """:param app: one that has such ports.
    :raises SetupError: one of them cannot be listened on; none is then.
    """

    __slots__ = ("_sockets", "names")

    def __init__(self, app: App) -> None:
        self._sockets: list[_socket.socket] = []
        #: of the ports, one for each socket
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
        """They listen, whatever an earlier execution has done to them."""
        for socket in self._sockets:
            if socket.type == _socket.SOCK_STREAM:
                try:  # noqa: SIM105 - contextlib costs every pod's start
                    socket.listen(_BACKLOG)
                except OSError:
                    pass  # shut down by the app, and somebody has the port now: the app will see

    def close(self) -> None:
        for socket in self._sockets:
            socket.close()
        self._sockets.clear()


def _make(port: Port, number: int) -> _socket.socket:
    """For IPv6 and IPv4 both, as systemd makes them; for IPv4 alone where the kernel has no other."""
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
    """A copy of a descriptor that no handed over socket takes the number of."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST + count)


def hand_over(fds: list[int], names: list[str]) -> list[tuple[str, str]]:
    """Runs in the child that becomes the app. Whatever had these numbers is closed.

    :returns: what the app finds of it in its environment.
    """
    for number, fd in enumerate([above(fd, len(fds)) for fd in fds], FIRST):
        os.dup2(fd, number)
        os.close(fd)
    return [("LISTEN_FDS", str(len(fds))), ("LISTEN_PID", str(os.getpid())), ("LISTEN_FDNAMES", ":".join(names))]
