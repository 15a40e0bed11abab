"""A pod that the daemon runs, in the foreground here: its logs come out, signals stop it, its end is ours."""

from __future__ import annotations

import json
import select

from kurma_core.client import values
from kurma_core.client.frames import LOG, MESSAGE, FrameReader, frame
from kurma_core.models import LogText

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from kurma_core.client.wire import Connection
    from kurma_core.models import PodRecord

    Json = Any
_PIECE = 1 << 18


def follow(
    connection: Connection,
    note: Callable[[str], None],
    output: Callable[[LogText], None],
    prepared: Callable[[PodRecord], None],
) -> PodRecord:
    """Until the pod has ended. SIGINT, SIGTERM and SIGHUP stop it; a second one ends it by force.

    :raises KurmaError: what the daemon had; or it has gone.
    """
    from kurma_core.pods.foreground import Signals

    reader = FrameReader()
    flush = getattr(output, "flush", lambda: None)
    asked = 0
    with Signals() as signals:
        signals.settle()
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        poll.register(signals, select.POLLIN)
        while True:
            for kind, payload in reader.frames():
                if kind == LOG:
                    for text in _texts(payload):
                        output(text)
                elif kind == MESSAGE:
                    message = json.loads(payload)
                    if message["is"] == "note":
                        note(message["text"])
                    elif message["is"] == "prepared":
                        prepared(values.pod(message["pod"]))
                    elif message["is"] == "error":
                        raise values.error(message["error"])
                    elif message["is"] == "result":
                        return values.pod(message["value"])
            flush()
            if not connection.waiting():
                poll.poll()
            for _ in range(signals.take()):
                connection.send(frame(MESSAGE, json.dumps({"is": "stop", "force": asked > 0}).encode()))
                asked += 1
            if connection.waiting() or poll.poll(0):
                reader.feed(connection.take(_PIECE))


def _texts(payload: bytes) -> Iterator[LogText]:
    at = 0
    while at < len(payload):
        end = at + 4 + int.from_bytes(payload[at : at + 4], "big")
        app, when, stream, part, text = payload[at + 4 : end].split(b" ", 4)
        yield LogText(app.decode(), when.decode(), stream.decode(), part == b"P", text)
        at = end


__all__ = ["follow"]
