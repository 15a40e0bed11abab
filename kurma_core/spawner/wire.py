"""Sends and receives messages between the spawner's program and its client: length, marshalled values,
descriptors.

Both ends run the same interpreter, and one is the other's child, so that ``marshal`` is safe here; ``json`` would
double the program's start-up time.
"""

from __future__ import annotations

import marshal
import os

from kurma_core.linux import descriptor_passing

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket

#: The step of a failure of the fork server itself, and not of the process's root. The client then ends the fork
#: server, and starts the program without it.
FORK_SERVER = "fork server"
_MSG_CMSG_CLOEXEC = 0x40000000
_MSG_NOSIGNAL = 0x4000
_MOST_FDS = 250


def send(sock: _socket.socket, message: dict[str, object], fds: list[int] | None = None) -> None:
    """Send one message. :raises OSError: the other end is closed (``EPIPE``), or there are too many
    descriptors."""
    fds = fds or []
    if len(fds) > _MOST_FDS:
        raise OSError(7, f"{len(fds)} descriptors are more than one message can carry")
    body = marshal.dumps(message)
    data = memoryview(len(body).to_bytes(8, "little") + body)
    sent = sock.sendmsg([data], descriptor_passing.packed(fds), _MSG_NOSIGNAL)
    while sent < len(data):
        sent += sock.send(data[sent:], _MSG_NOSIGNAL)


def receive(sock: _socket.socket) -> tuple[dict[str, object], list[int]] | None:
    """Receive a message with its descriptors (close-on-exec; the caller closes them); None: the other end is
    closed.
    """
    fds: list[int] = []
    try:
        body = _receive(sock, fds)
    except ConnectionResetError:
        body = None  # the other process was killed before it had read all data
    if body is None:
        for fd in fds:
            os.close(fd)
        return None
    return marshal.loads(body), fds  # noqa: S302 - from our own parent or child, see above


def _receive(sock: _socket.socket, fds: list[int]) -> bytes | None:
    """Receives a message's body. :param fds: its descriptors are added, even if the message is incomplete."""
    space = descriptor_passing.room(_MOST_FDS)
    head = b""
    while len(head) < 8:
        data, beside, _, _ = sock.recvmsg(8 - len(head), space, _MSG_CMSG_CLOEXEC)
        fds += descriptor_passing.unpacked(beside)
        if not data:
            return None
        head += data
    missing = int.from_bytes(head, "little")
    parts = []
    while missing:
        data = sock.recv(min(missing, 1 << 20))
        if not data:
            return None
        parts.append(data)
        missing -= len(data)
    return b"".join(parts)
