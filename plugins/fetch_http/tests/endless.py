"""A server whose answers have no end."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def endless(head: bytes, piece: bytes, pause: float = 0.0) -> Iterator[tuple[str, list[int]]]:
    """Answers with a head, and then the same piece for ever: the server's URL, and an entry per request.

    :param pause: seconds after each piece.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    asked: list[int] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.recv(1 << 16)
                asked.append(1)
                connection.sendall(head)
                while True:
                    connection.sendall(piece)
                    time.sleep(pause)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
