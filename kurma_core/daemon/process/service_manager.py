"""The protocol of service managers: readiness (sd_notify(3)) and passed sockets (sd_listen_fds(3))."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import MutableMapping

_FIRST = 3
_MOST = 1024
_OURS = ("NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "WATCHDOG_USEC", "WATCHDOG_PID")


class Service:
    """The service manager of this process.

    :param notify: address for notifications; None: it takes none.
    :param sockets: descriptors that it has passed; this process owns them now.
    :param watchdog: seconds within which it expects each sign of life; None: it expects none.
    """

    __slots__ = ("notify", "sockets", "watchdog")

    def __init__(
        self, notify: str | None = None, sockets: tuple[int, ...] = (), watchdog: float | None = None
    ) -> None:
        self.notify = notify
        self.sockets = sockets
        self.watchdog = watchdog


def take(environment: MutableMapping[str, str]) -> Service:
    """Removes its variables from the environment, so that started programs do not get them. Passed sockets are
    closed at each exec."""
    found = {name: environment.pop(name, "") for name in _OURS}
    sockets = []
    count = found["LISTEN_FDS"]
    if found["LISTEN_PID"] == str(os.getpid()) and _is_number(count):
        for fd in range(_FIRST, _FIRST + min(int(count[:6]), _MOST)):
            try:
                os.set_inheritable(fd, False)
            except OSError:
                continue  # fewer descriptors were passed than announced
            sockets.append(fd)
    watchdog = None
    if found["WATCHDOG_PID"] in ("", str(os.getpid())) and _is_number(found["WATCHDOG_USEC"]):
        watchdog = int(found["WATCHDOG_USEC"][:18]) / 1e6 or None
    return Service(found["NOTIFY_SOCKET"] or None, tuple(sockets), watchdog)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def tell(address: str, text: str) -> None:
    """Sends a notification to the service manager; a failure is ignored.

    :param address: a path, or ``@`` and a name in the abstract namespace.
    """
    import _socket

    where = b"\0" + os.fsencode(address[1:]) if address.startswith("@") else os.fsencode(address)
    with_no_wait = _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL
    try:
        socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC)
        try:
            socket.sendto(text.encode(), with_no_wait, where)
        finally:
            socket.close()
    except OSError:
        return
