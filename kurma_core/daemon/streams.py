"""Operations that speak frames (:mod:`kurma_core.client.frames`) on a connection of their own."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kurma_core.client.frames import LIMIT, MESSAGE, PROTOCOL, FrameError, FrameReader, frame
from kurma_core.daemon.exchange import Gone
from kurma_core.daemon.operation import Operation, working
from kurma_core.errors import KurmaError

if TYPE_CHECKING:
    from kurma_core.daemon.operations import Call, Spec

Json = Any
_PIECE = 65536


class Stream:
    """What a handler says to its client, and hears of it.

    One thread reads what comes and calls :attr:`heard`; any thread may send. :attr:`gone` is readable once the
    client has gone, or has said what is no frame.
    """

    def __init__(self, connected: socket.socket, first: bytes) -> None:
        self._socket = connected
        self._reader = FrameReader(first)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, name="stream", daemon=True)
        self._gone = os.eventfd(0, os.EFD_CLOEXEC)
        #: Called for each frame that comes: kind and payload; with ``(MESSAGE, b"")`` once the client has gone.
        self.heard: Callable[[int, bytes], None] = lambda kind, payload: None

    def start(self) -> None:
        """Begins to read what the client says."""
        connected = self._socket
        connected.settimeout(None)
        self._thread.start()

    def fileno(self) -> int:
        """Readable once the client has gone."""
        return self._gone

    def send(self, kind: int, payload: bytes) -> None:
        """:raises Gone: nobody reads it."""
        pieces = [payload[at : at + LIMIT] for at in range(0, len(payload), LIMIT)] or [b""]
        with self._lock:
            try:
                for piece in pieces:
                    self._socket.sendall(frame(kind, piece))
            except OSError:
                raise Gone from None

    def tell(self, message: dict[str, Json]) -> None:
        """A message. :raises Gone: nobody reads it."""
        self.send(MESSAGE, json.dumps(message, ensure_ascii=False, default=dict).encode())

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it may have gone already
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._thread.ident is not None:
            self._thread.join()
        os.close(self._gone)

    def _read(self) -> None:
        try:
            while True:
                for kind, payload in self._reader.frames():
                    self.heard(kind, payload)
                data = self._socket.recv(_PIECE)
                if not data:
                    break
                self._reader.feed(data)
        except (OSError, FrameError):
            pass
        os.eventfd_write(self._gone, 1)
        self.heard(MESSAGE, b"")


def serve(spec: Spec, call: Call) -> None:
    """Runs the handler; what it returns, or raises, is the last message."""
    from kurma_core.daemon.dispatch import error_json, internal

    stream = call.stream = Stream(*call.exchange.upgrade(PROTOCOL))
    try:
        try:
            with working(Operation(stream.tell)):
                value = spec.handler(call)
            stream.tell({"is": "result", "value": value})
        except KurmaError as error:
            stream.tell({"is": "error", **error_json(error)})
        except Gone:
            raise
        except Exception as error:
            stream.tell({"is": "error", **error_json(internal(error))})
            raise
    except Gone:
        return
    finally:
        stream.close()


__all__ = ["Stream", "serve"]
