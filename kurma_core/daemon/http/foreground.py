"""A pod that the daemon owns, and that somebody runs in the foreground elsewhere: its logs go there as they are
written, and what comes from there stops it. Whoever has gone away is not missed: the pod goes on."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from typing import TYPE_CHECKING, Any

from kurma_core.client.frames import LOG, FrameError
from kurma_core.client.left import tell_left
from kurma_core.daemon import operation
from kurma_core.daemon.http.exchange import Gone
from kurma_core.daemon.http.stdio import Caller, not_understood
from kurma_core.daemon.process.threads import begin
from kurma_core.errors import KurmaError
from kurma_core.pods.logs import Following, LogReader
from kurma_core.pods.terminals import foreground_input

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kurma_core.daemon.http.streams import Stream
    from kurma_core.daemon.operations import Call
    from kurma_core.daemon.pods.owned import RunningPod
    from kurma_core.daemon.pods.prestarted import PreparedPod
    from kurma_core.hookspecs.stager import CallInProcess
    from kurma_core.models.log import LogText
    from kurma_core.pods.request import PodRequest

Json = Any
_BATCH = 1 << 17
#: Bytes of one text in a frame.
_LONGEST = 1 << 19


def run(call: Call, request: PodRequest) -> Json:
    """Prepares and runs it; how it has ended."""
    front = _ForegroundPod(call)
    with Caller(call, left=front.left, told=front.told) as caller:
        begun = call.daemon.supply.begin(request, operation.current().progress())
        record = begun.record
        try:
            with begun:
                if front.holds:
                    begun.settle()
                front.tell_prepared(record.to_json())
                return front.run(record.uuid, caller, begun)
        except KurmaError as error:
            if not request.ephemeral:
                tell_left(call.client, error, record.uuid)
            raise
        finally:
            if request.ephemeral and not front.up:
                _remove(call, record.uuid)


def start(call: Call, reference: str) -> Json:
    """Runs a prepared pod, or an ended one again; how it has ended."""
    front = _ForegroundPod(call)
    with Caller(call, left=front.left, told=front.told) as caller:
        return front.run(reference, caller)


def _remove(call: Call, uuid: str) -> None:
    """An ephemeral pod that has never run."""
    from kurma_core.cancellation import shielded

    with shielded(), contextlib.suppress(KurmaError):
        call.client.rm(uuid)


class _ForegroundPod:
    """One pod in somebody's foreground."""

    def __init__(self, call: Call) -> None:
        assert call.stream is not None
        self._call = call
        self._stream = call.stream
        self._go = threading.Event()
        self._lock = threading.Lock()
        self._running: RunningPod | None = None
        self._ended = -1

    @property
    def up(self) -> bool:
        """Whether the pod is the daemon's."""
        return self._running is not None

    @property
    def holds(self) -> bool:
        """Whether the client wants to be waited for."""
        return bool(self._call.query.get("hold"))

    def tell_prepared(self, pod: Json) -> None:
        """Waits for the client's word, if it wants to be waited for."""
        self._stream.tell({"is": "prepared", "pod": pod})
        if self.holds:
            with self._call.cancellation.waking(self._go.set):
                self._go.wait()

    def run(self, reference: str, caller: Caller, begun: PreparedPod | None = None) -> Json:
        client = self._call.client
        reads_input, terminal = foreground_input(client.services, client.pod(reference))
        self._stdio = caller.open(terminal=terminal, reads_input=reads_input)
        with contextlib.ExitStack() as stack:
            settled = threading.Event()
            try:
                running = self._call.daemon.launch(
                    reference,
                    self._stdio,
                    lambda running: self._is_up(running, caller, stack),
                    readied=None if begun is None else begun.readied,
                    settled=settled.set,
                )
            except KurmaError:
                if settled.is_set():
                    self._send_last_words(reference)
                raise
            caller.started()
            self._stream.tell({"is": "running", "name": running.pod.name})
            if begun is not None:
                begun.up()
            self._send_logs(running)
            return running.wait().to_json()

    def _is_up(self, running: RunningPod, caller: Caller, stack: contextlib.ExitStack) -> None:
        """The pod is up, and nobody has heard of its end yet."""
        stack.enter_context(running.reading())
        self._ended = os.dup(running.pod.fileno())
        stack.callback(os.close, self._ended)
        with self._lock:
            self._running = running
            if self._call.cancellation.cancelled:  # that moment too late to be given up
                running.stop(force=False)
        app = running.pod.typed_into
        if app is not None:
            from kurma_core.pods.attach import type_into

            typing = type_into(self._call.client.services, running.pod, app, self._stdio)
            if typing is not None:
                stack.enter_context(_typing(typing, caller))

    def left(self) -> None:
        """The client has gone: what has come up goes on, what has not is given up."""
        with self._lock:
            if self._running is None:
                self._call.cancellation.cancel()

    def told(self, message: dict[str, Json]) -> None:
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
        """:raises Gone: nobody reads them."""
        apps = self._call.client.log_files(running.uuid)
        with LogReader(running.directory, apps, newcomers=True) as reader, Following(reader) as following:
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
            for text in self._call.client.last_words(reference):
                batch.add(text)
            batch.send()


def logs(call: Call) -> Json:
    """Logs in frames, as the client has asked for them, until it goes away."""

    def told(kind: int, value: Any) -> None:
        raise FrameError("there is nothing to say here")

    assert call.stream is not None
    call.stream.listen(told, call.cancellation.cancel)
    options: Any = dict(call.query)
    batch = _Batch(call.stream)
    app, instance = options.pop("app"), options.pop("instance")
    for text in call.client.read_logs(call.path["pod"], app, instance, options, batch.send):
        batch.add(text)
    batch.send()


class _Batch:
    """Texts of logs that are sent together."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._pieces: list[bytes] = []
        self._size = 0

    def add(self, text: LogText) -> None:
        """:raises Gone: nobody reads them."""
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
def _typing(call: CallInProcess, caller: Caller) -> Iterator[None]:
    """What is typed goes to the app, and signals to what carries it there, until the block is left."""

    def wait() -> None:
        with contextlib.suppress(KurmaError):
            call.wait()

    thread = threading.Thread(target=wait, name="typing", daemon=True)
    begin(thread)
    try:
        yield
    finally:
        caller.hang_up()
        thread.join()


def _pieces(text: LogText) -> Iterator[bytes]:
    """As they stand in a frame: what is long, in parts."""
    rest, partial = text.text, text.partial
    while len(rest) > _LONGEST:
        yield _piece(text, True, rest[:_LONGEST])
        rest = rest[_LONGEST:]
    yield _piece(text, partial, rest)


def _piece(text: LogText, partial: bool, data: bytes) -> bytes:
    head = f"{text.app} {text.at} {text.stream} {'P' if partial else 'F'} ".encode()
    return (len(head) + len(data)).to_bytes(4, "big") + head + data


__all__ = ["logs", "run", "start"]
