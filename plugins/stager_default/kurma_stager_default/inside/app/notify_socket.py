"""The socket by which an app reports its readiness and status (sd_notify(3)).

Each app has its own socket, in its own root. Imported only if an image says that its app uses it.
"""

from __future__ import annotations

import _socket
import os

#: The socket's path in the app's root.
PLACE = "/dev/notify"
_DIRECTORY = "/run/notify"
# Largest datagram in bytes, as with systemd; longest status text in characters.
_MOST, _TEXT = 4096, 1024


class Readiness:
    """The socket, and what the app has reported. :attr:`path` is the socket's path in the stager's root.

    :raises OSError: the socket cannot be made.
    """

    __slots__ = ("_socket", "path", "ready", "text")

    def __init__(self) -> None:
        self.ready = False
        self.text: str | None = None
        self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        os.makedirs(_DIRECTORY, 0o700, exist_ok=True)
        # Named by its descriptor: an app's name may be too long for a socket's path.
        self.path = f"{_DIRECTORY}/{self._socket.fileno()}"
        self._socket.bind(self.path)
        os.chmod(self.path, 0o666)  # noqa: S103 - the app may run as any user; only root can enter the directory

    def fileno(self) -> int:
        return self._socket.fileno()

    def begin(self) -> None:
        """Forgets the reports of the last execution, before a new one."""
        while self._next() is not None:
            pass
        self.ready, self.text = False, None

    def receive(self) -> bool:
        """Reads one message. :returns: whether the app's readiness has changed."""
        data = self._next()
        if not data or len(data) > _MOST:
            return False
        before = self.ready
        for line in data.decode(errors="replace").split("\n"):
            if line == "READY=1":
                self.ready = True
            elif line in ("STOPPING=1", "RELOADING=1"):
                self.ready = False
            elif line.startswith("STATUS="):
                text = line[len("STATUS=") :][:_TEXT]
                self.text = "".join([each if each.isprintable() else " " for each in text]) or None
        return self.ready != before

    def _next(self) -> bytes | None:
        """Reads one datagram. The kernel closes descriptors that were sent with it, since recv(2) does not take
        them."""
        try:
            return self._socket.recv(_MOST + 1)
        except OSError:
            return None

    def close(self) -> None:
        self._socket.close()
        os.unlink(self.path)
