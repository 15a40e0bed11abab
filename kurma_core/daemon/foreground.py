"""A pod that the daemon owns, and that somebody runs in the foreground elsewhere: its logs go there as they are
written, and what comes from there stops it. Whoever has gone away is not missed: the pod goes on."""

from __future__ import annotations

import json
import os
import threading
from typing import TYPE_CHECKING, Any

from kurma_core.client.frames import INPUT, LOG, MESSAGE
from kurma_core.daemon.exchange import Gone
from kurma_core.hookspecs import Stdio

if TYPE_CHECKING:
    from kurma_core.daemon.operations import Call
    from kurma_core.daemon.owners import Running
    from kurma_core.daemon.streams import Stream
    from kurma_core.models import LogText
    from kurma_core.pods.request import PodRequest

Json = Any
_BATCH = 65536


def run(call: Call, request: PodRequest) -> Json:
    """Prepares and runs it; how it has ended."""
    stream = call.stream
    assert stream is not None
    record = call.client.prepare(request)
    stream.tell({"is": "prepared", "pod": record.to_json()})
    return start(call, record.uuid)


def start(call: Call, reference: str) -> Json:
    """Runs a prepared pod, or an ended one again; how it has ended."""
    stream = call.stream
    assert stream is not None
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    stdin = _Input()
    try:
        running = call.daemon.launch(reference, Stdio(stdin.read, null, null))
    finally:
        os.close(null)
        stdin.started()
    with running.reading():
        ears = _Ears(call, running, stdin)
        stream.heard = ears.hear
        stream.start()
        stream.tell({"is": "running"})
        _send_logs(stream, call.client.logs(running.uuid, follow=True))
        record = running.wait()
    return record.to_json()


def _send_logs(stream: Stream, texts: Any) -> None:
    """:raises Gone: nobody reads them."""
    batch = bytearray()
    for text in texts:
        batch += _line(text)
        stream.send(LOG, bytes(batch))
        batch.clear()


def _line(text: LogText) -> bytes:
    head = f"{text.app} {text.at} {text.stream} {'P' if text.partial else 'F'} ".encode()
    return len(head + text.text).to_bytes(4, "big") + head + text.text


class _Input:
    """A pipe to the app's standard input."""

    def __init__(self) -> None:
        self.read, self._write = os.pipe2(os.O_CLOEXEC)
        self._lock = threading.Lock()

    def started(self) -> None:
        """The reading end is the app's by now."""
        os.close(self.read)

    def feed(self, data: bytes) -> None:
        """:param data: empty: there is no more."""
        with self._lock:
            if self._write < 0:
                return
            try:
                if data:
                    os.write(self._write, data)
                    return
            except BrokenPipeError:
                pass  # the app reads no more
            os.close(self._write)
            self._write = -1


class _Ears:
    """What the client says while the pod runs."""

    def __init__(self, call: Call, running: Running, stdin: _Input) -> None:
        self._call = call
        self._running = running
        self._stdin = stdin

    def hear(self, kind: int, payload: bytes) -> None:
        if kind == INPUT:
            self._stdin.feed(payload)
        elif kind == MESSAGE and payload:
            message = json.loads(payload)
            if message.get("is") == "stop":
                self._running.pod.stop(force=bool(message.get("force")))
        elif kind == MESSAGE:
            self._stdin.feed(b"")


__all__ = ["Gone", "run", "start"]
