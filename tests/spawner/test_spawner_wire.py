"""Messages between the spawner's program and its client."""

from __future__ import annotations

import os
import socket

import pytest

from kurma_core.spawner import wire


def test_a_message_and_its_descriptors() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, open(os.devnull, "rb") as file:
        wire.send(ours, {"text": "x" * 100_000}, [file.fileno()])
        received = wire.receive(theirs)
        assert received is not None
        message, (fd,) = received
        assert message == {"text": "x" * 100_000}
        assert os.path.sameopenfile(fd, file.fileno())
        assert not os.get_inheritable(fd)
        os.close(fd)


@pytest.mark.parametrize("unread", [b"", b"an answer"])
@pytest.mark.parametrize("sent", [0, 4, 20])
def test_the_other_end_is_killed(unread: bytes, sent: int) -> None:
    """Whatever of a message had come, and whether or not it had read what was sent to it; no descriptor stays."""
    before = len(os.listdir("/proc/self/fd"))
    ours, theirs = socket.socketpair()
    with ours:
        ours.sendall(unread)
        if sent:
            fd = os.open(os.devnull, os.O_RDONLY)
            socket.send_fds(theirs, [((100).to_bytes(8, "little") + b"y" * 100)[:sent]], [fd])
            os.close(fd)
        theirs.close()
        assert wire.receive(ours) is None
    assert len(os.listdir("/proc/self/fd")) == before
