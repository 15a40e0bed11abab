"""What an app says of itself: that it is ready, or about to end, and how it is (Y4; sd_notify(3)).

By a socket that stands in its own root alone. Imported only where an image says that its app does so.
"""

from __future__ import annotations

import _socket
import os

#: Where it stands in the app's root.
PLACE = "/dev/notify"
_DIRECTORY = "/run/notify"
# Bytes of a datagram, as systemd takes them; and of a text.
_MOST, _TEXT = 4096, 1024


class Readiness:
    """:attr:`path` is where the socket stands in the stager's root.

    :raises OSError: it cannot be made.
    """

    __slots__ = ("_socket", "path", "ready", "text")

    def __init__(self) -> None:
        self.ready = False
        self.text: str | None = None
        self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        os.makedirs(_DIRECTORY, 0o700, exist_ok=True)
        # The name of an app may be longer than a socket's may be.
        self.path = f"{_DIRECTORY}/{self._socket.fileno()}"
        self._socket.bind(self.path)
        os.chmod(self.path, 0o666)  # noqa: S103 - whoever the app runs as; the directory is ours alone

    def fileno(self) -> int:
        return self._socket.fileno()

    def begin(self) -> None:
        """A new execution; what an earlier one has said last is forgotten."""
        while self._next() is not None:
            pass
        self.ready, self.text = False, None

    def receive(self) -> bool:
        """Takes one message. :returns: whether it has become ready, or is so no more."""
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
        """Descriptors beside it are not taken: the kernel closes them."""
        try:
            return self._socket.recv(_MOST + 1)
        except OSError:
            return None

    def close(self) -> None:
        self._socket.close()
        os.unlink(self.path)
