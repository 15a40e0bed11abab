"""What a service manager gives to a program that it starts: sd_notify(3), sd_listen_fds(3)."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import MutableMapping

_FIRST = 3
_MOST = 1024
_OURS = ("NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "WATCHDOG_USEC", "WATCHDOG_PID")


def take(environment: MutableMapping[str, str]) -> str | None:
    """Takes it out of the environment: nothing that this process starts has any business with it. Sockets that
    were handed over are closed at each exec.

    :returns: where to say that we are ready; None: nobody asks.
    """
    found = {name: environment.pop(name, "") for name in _OURS}
    count = found["LISTEN_FDS"]
    if found["LISTEN_PID"] == str(os.getpid()) and count.isascii() and count.isdigit():
        for fd in range(_FIRST, _FIRST + min(int(count[:6]), _MOST)):
            try:
                os.set_inheritable(fd, False)
            except OSError:
                continue  # there are fewer than was said
    return found["NOTIFY_SOCKET"] or None


def tell(address: str, text: str) -> None:
    """Says something to the service manager; that it does not hear is no failure of ours.

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
