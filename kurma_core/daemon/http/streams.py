"""Operations that speak frames (:mod:`kurma_core.client.frames`) on a connection of their own."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kurma_core.cancellation import governing
from kurma_core.client.frames import INPUT, LIMIT, MESSAGE, PROTOCOL, FrameError, FrameReader, frame
from kurma_core.daemon.bodies import parse
from kurma_core.daemon.http.exchange import REQUEST_PATIENCE, Gone
from kurma_core.daemon.operation import Operation, attempts_of, working
from kurma_core.daemon.process.threads import begin
from kurma_core.daemon.telling import Telling
from kurma_core.errors import Cancelled, KurmaError, UsageError

if TYPE_CHECKING:
    from kurma_core.daemon.operations import Call, Spec

Json = Any
Hear = Callable[[int, Any], None]
_PIECE = 65536
_LAST = ("result", "error")


class Stream:
    """What a handler says to its client, and hears of it.

    One thread reads what comes and calls who listens; any thread may send. Whoever says what is no frame, or half
    of one, is told so and cut off: it is gone then, as one that goes by itself.
    """

    def __init__(self, connected: socket.socket, first: bytes) -> None:
        self._socket = connected
        self._reader = FrameReader(first)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, name="stream", daemon=True)
        self._heard: Hear = lambda kind, value: None
        self._left: Callable[[], None] = lambda: None

    def listen(self, heard: Hear, left: Callable[[], None]) -> None:
        """Begins to hear what the client says, in another thread.

        :param heard: called for each frame: its kind, and bytes, or the JSON of a message; may raise FrameError.
        :param left: called once the client has gone.
        :raises BusyError: there is no thread left for it.
        """
        self._heard, self._left = heard, left
        begin(self._thread)

    def watch(self, poll: select.poll) -> int:
        """Has that poll wake once the client has gone. :returns: by which descriptor."""
        poll.register(self._socket, select.POLLRDHUP)
        return self._socket.fileno()

    def send(self, kind: int, payload: bytes, *, last: bool = False) -> None:
        """:param last: nothing is sent after it, by any thread. :raises Gone: nobody reads it."""
        pieces = [payload[at : at + LIMIT] for at in range(0, len(payload), LIMIT)] or [b""]
        with self._lock:
            try:
                for piece in pieces:
                    self._socket.sendall(frame(kind, piece))
                if last:
                    self._socket.shutdown(socket.SHUT_WR)
            except OSError:
                raise Gone from None

    def tell(self, message: dict[str, Json]) -> None:
        """A message; a result or an error is the last one. :raises Gone: nobody reads it."""
        payload = json.dumps(message, ensure_ascii=False, default=dict).encode()
        self.send(MESSAGE, payload, last=message["is"] in _LAST)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it may have gone already
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._thread.ident is not None:
            self._thread.join()

    # -- what comes --

    def _read(self) -> None:
        try:
            self._hear_all()
        except FrameError as error:
            from kurma_core.daemon.failures import error_json

            with contextlib.suppress(Gone):
                self.tell({"is": "error", **error_json(UsageError(f"the stream is broken: {error}"))})
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        except (OSError, Gone):
            pass
        self._left()

    def _hear_all(self) -> None:
        deadline: float | None = None
        while True:
            for kind, payload in self._reader.frames():
                deadline = None
                if kind == INPUT:
                    self._heard(kind, payload)
                elif kind == MESSAGE:
                    self._heard(kind, _message(payload))
                else:
                    raise FrameError(f"a client sends no frames of kind {kind}")
            if not self._reader.inside:
                deadline = None
            elif deadline is None:
                deadline = time.monotonic() + REQUEST_PATIENCE
            self._wait(deadline)
            data = self._socket.recv(_PIECE)
            if not data:
                return
            self._reader.feed(data)

    def _wait(self, deadline: float | None) -> None:
        """Until something comes. :raises FrameError: nothing has by then."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if not poll.poll(None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000):
            raise FrameError("the rest of a frame does not come")


def _message(payload: bytes) -> dict[str, Json]:
    """:raises FrameError: it is none."""
    try:
        value = parse(payload)
    except ValueError as error:
        raise FrameError(f"a message that is no JSON: {error}") from None
    if not isinstance(value, dict) or not isinstance(value.get("is"), str):
        raise FrameError("a message that does not say what it is")
    return value


def serve(spec: Spec, call: Call) -> None:
    """Runs the handler; what it returns, or raises, is the last message. ``call.cancellation`` gives it up."""
    connected, first = call.exchange.upgrade(PROTOCOL)
    connected.settimeout(None)
    stream = call.stream = Stream(connected, first)
    try:
        telling = Telling(connected, stream.tell)
        attempts = attempts_of(call.exchange.headers.get("kurma-passphrases"))
        operation = Operation(telling.tell, attempts=attempts, hears_progress=True)
        with working(operation), governing(call.cancellation):
            last = _last(spec, call)
        telling.end(last)
    except Gone:
        return
    finally:
        stream.close()


def _last(spec: Spec, call: Call) -> dict[str, Json]:
    """:raises Gone: nobody waits for it."""
    from kurma_core.daemon.failures import error_json, logged

    try:
        return {"is": "result", "value": spec.handler(call)}
    except KurmaError as error:
        return {"is": "error", **error_json(error)}
    except Gone:
        raise
    except Cancelled:
        return {"is": "error", "error": {"kind": "Cancelled", "message": "given up", "exitCode": 130}}
    except Exception as error:  # noqa: BLE001 (whoever asked is told in one line; the log has the rest)
        return {"is": "error", **error_json(logged(error, spec.method, call.exchange.path))}


__all__ = ["Stream", "serve"]
