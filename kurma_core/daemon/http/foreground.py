"""Pods that clients run in the foreground: sends their logs as they are written; the client's messages stop them.

A pod keeps running if its client disconnects.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from typing import TYPE_CHECKING, Any

from kurma_core.api.wire import LOG, FrameError
from kurma_core.client.local.logs import LogOptions
from kurma_core.daemon.http import messages
from kurma_core.daemon.http.error_status import Gone
from kurma_core.daemon.http.streams import Caller, not_understood
from kurma_core.daemon.process.threads import begin
from kurma_core.errors import KurmaError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kurma_core.daemon.http.calls import Call
    from kurma_core.daemon.http.streams import Stream
    from kurma_core.daemon.pods.owned import RunningPod
    from kurma_core.daemon.pods.prestarted import PreparedPod
    from kurma_core.hookspecs.stager import CallInHooks
    from kurma_core.models.pod import PodRecord
    from kurma_core.models.streams import LogText

Json = Any
#: Bytes of logs that are sent together.
_BATCH = 1 << 17
#: Bytes of one text in a frame.
_LONGEST = 1 << 19


def run(call: Call) -> PodRecord:
    """Prepares a pod and runs it to its end. :returns: its record."""
    front = _ForegroundPod(call)
    with Caller(call.stream, call.arguments, left=front.left, told=front.told) as caller:
        with call.daemon.prepared(call.arguments["request"], messages.current().progress()) as prepared:
            front.report_prepared(prepared)
            return front.run(prepared.record.uuid, caller, prepared)


def start(call: Call) -> PodRecord:
    """Runs a prepared pod, or an ended one again, to its end. :returns: its record."""
    call.daemon.pods.check_manager("start", call.arguments["pod"], managed=call.arguments["managed"])
    front = _ForegroundPod(call)
    with Caller(call.stream, call.arguments, left=front.left, told=front.told) as caller:
        return front.run(call.arguments["pod"], caller)


class _ForegroundPod:
    def __init__(self, call: Call) -> None:
        assert call.stream is not None
        self._call = call
        self._stream = call.stream
        self._go = threading.Event()
        self._lock = threading.Lock()
        self._running: RunningPod | None = None
        self._ended = -1

    def report_prepared(self, prepared: PreparedPod) -> None:
        """Sends the client the prepared pod, and waits for its "go" if the client has requested that."""
        holds = bool(self._call.arguments.get("hold"))
        if holds:
            prepared.settle()
        self._stream.tell({"is": "prepared", "pod": prepared.record.to_json()})
        if holds:
            with self._call.cancellation.waking(self._go.set):
                self._go.wait()

    def run(self, reference: str, caller: Caller, prepared: PreparedPod | None = None) -> PodRecord:
        daemon = self._call.daemon
        reads_input, terminal = daemon.pods.foreground_input(reference)
        self._stdio = caller.open(terminal=terminal, reads_input=reads_input)
        with contextlib.ExitStack() as stack:
            settled = threading.Event()
            try:
                running = daemon.launch(
                    reference,
                    self._stdio,
                    lambda running: self._is_up(running, caller, stack),
                    prepared=prepared,
                    settled=settled.set,
                )
            except KurmaError:
                if settled.is_set():
                    self._send_last_words(reference)
                raise
            caller.started()
            self._stream.tell({"is": "running", "name": running.pod.name})
            if prepared is not None:
                prepared.up()
            self._send_logs(running)
            return running.wait()

    def _is_up(self, running: RunningPod, caller: Caller, stack: contextlib.ExitStack) -> None:
        """The pod is up; its end is not waited for yet."""
        stack.enter_context(running.reading())
        self._ended = os.dup(running.pod.fileno())
        stack.callback(os.close, self._ended)
        with self._lock:
            self._running = running
            if self._call.cancellation.cancelled:  # too late to give up the start
                running.stop(force=False)
        typing = self._call.daemon.pods.type_into(running.pod, self._stdio)
        if typing is not None:
            stack.enter_context(_typing(typing, caller))

    def left(self) -> None:
        """The client has disconnected: a running pod keeps running, a start is cancelled."""
        with self._lock:
            if self._running is None:
                self._call.cancellation.cancel()

    def told(self, message: dict[str, Json]) -> None:
        """The client has sent a message."""
        if message["is"] == "go":
            self._go.set()
        elif message["is"] == "stop":
            with self._lock:
                if self._running is None:
                    self._call.cancellation.cancel()
                else:
                    self._running.stop(force=message.get("force") is True)
        else:
            not_understood(message)

    def _send_logs(self, running: RunningPod) -> None:
        """:raises Gone: the client has disconnected."""
        here = self._call.client.here
        record = here.pods.finder.pod(running.uuid)
        with running.follow_logs(here.logs.files(record)) as (reader, following):
            poll = select.poll()
            poll.register(following, select.POLLIN)
            poll.register(self._ended, select.POLLIN)
            gone = self._stream.watch(poll)
            batch = _Batch(self._stream)
            ready: list[int] = []
            while self._ended not in ready:
                for text in reader.present():
                    batch.add(text)
                batch.send()
                ready = [fd for fd, _ in poll.poll()]
                if gone in ready:
                    raise Gone
                following.more()
            following.over()
            for text in reader.rest():
                batch.add(text)
            batch.send()

    def _send_last_words(self, reference: str) -> None:
        batch = _Batch(self._stream)
        with contextlib.suppress(Gone):  # the error matters more
            for text in self._call.client.here.logs.of_failed_start(reference):
                batch.add(text)
            batch.send()


def logs(call: Call) -> None:
    """Sends logs in frames, until the client disconnects."""

    def told(kind: int, value: Any) -> None:
        raise FrameError("unexpected message")

    assert call.stream is not None
    call.stream.listen(told, call.cancellation.cancel)
    batch = _Batch(call.stream)
    given = call.method_arguments()
    pod, app, instance = given.pop("pod"), given.pop("app"), given.pop("instance")
    for text in call.client.here.logs.read(pod, app, instance, LogOptions(**given), batch.send):
        batch.add(text)
    batch.send()


class _Batch:
    """Collects texts of logs, and sends them in one frame."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._pieces: list[bytes] = []
        self._size = 0

    def add(self, text: LogText) -> None:
        """:raises Gone: the client has disconnected."""
        for piece in _pieces(text):
            self._pieces.append(piece)
            self._size += len(piece)
            if self._size > _BATCH:
                self.send()

    def send(self) -> None:
        if self._pieces:
            self._stream.send(LOG, b"".join(self._pieces))
            self._pieces.clear()
            self._size = 0


@contextlib.contextmanager
def _typing(call: CallInHooks, caller: Caller) -> Iterator[None]:
    """Waits for the program that carries input to the app, until the block is left."""

    def wait() -> None:
        with contextlib.suppress(KurmaError):
            call.wait(None)

    thread = threading.Thread(target=wait, name="typing", daemon=True)
    begin(thread)
    try:
        yield
    finally:
        caller.hang_up()
        thread.join()


def _pieces(text: LogText) -> Iterator[bytes]:
    """A text as it is in a frame: a long one in parts."""
    rest, partial = text.text, text.partial
    while len(rest) > _LONGEST:
        yield _piece(text, True, rest[:_LONGEST])
        rest = rest[_LONGEST:]
    yield _piece(text, partial, rest)


def _piece(text: LogText, partial: bool, data: bytes) -> bytes:
    head = f"{text.app} {text.at} {text.stream} {'P' if partial else 'F'} ".encode()
    return (len(head) + len(data)).to_bytes(4, "big") + head + data
