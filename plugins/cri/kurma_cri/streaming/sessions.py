"""Runs an exec or attach over the streams of a SPDY connection or the channels of a WebSocket connection."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from kurma_core.errors import KurmaError
from kurma_core.value import frozen
from kurma_cri.streaming.outcomes import Outcome
from kurma_cri.streaming.requests import AttachStreams, ExecStreams
from kurma_cri.streaming.spdy_connection import RefusedError, SpdyConnection, SpdyStream
from kurma_cri.streaming.streams import Input, Resizes, Streams
from kurma_cri.streaming.websocket import Channels, WebSocket

if TYPE_CHECKING:
    from logging import Logger

    from kurma_cri.streaming.requests import Backend
    from kurma_cri.streaming.streams import Output, Sink
    from kurma_cri.streaming.wire import Wire

_STDIN, _STDOUT, _STDERR, _ERROR, _RESIZE = range(5)


@frozen
class Times:
    """Limits, in seconds.

    :param request: until a request has arrived.
    :param opening: until all streams of it are open.
    :param idle: without a byte in any direction.
    :param leaving: that a client has to disconnect itself, once it was sent everything.
    """

    request: float = 10.0
    opening: float = 30.0
    idle: float = 4 * 3600.0
    leaving: float = 10.0


@frozen
class Work:
    """The backend, log and limits of a server, for its connections."""

    backend: Backend
    log: Logger
    times: Times = Times()


def run(request: ExecStreams | AttachStreams, streams: Streams, work: Work) -> Outcome:
    """Runs the request to its end, and ends its outputs. :returns: how it has ended."""
    try:
        if isinstance(request, ExecStreams):
            return Outcome(work.backend.exec(request, streams))
        work.backend.attach(request, streams)
        return Outcome()
    except KurmaError as error:
        return Outcome(error=error.message)
    except Exception:
        work.log.exception("streaming: a mistake in %s of app %s", request.KIND, request.app)
        return Outcome(error=f"kurmad has made a mistake in {request.KIND}; its log has the details")
    finally:
        if streams.stdin is not None:
            streams.stdin.close()
        for output in (streams.stdout, streams.stderr):
            if output is not None:
                output.close()


def _finish(error: Output, text: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):
        if text:
            error.write(text)
    error.close()


class SpdySession:
    """An exec or attach over SPDY.

    :param version: of the streams, 1 to 4. :param wire: of a connection that speaks SPDY from now on.
    """

    def __init__(self, request: ExecStreams | AttachStreams, version: int, wire: Wire, work: Work) -> None:
        self._request = request
        self._version = version
        self._work = work
        self._connection = SpdyConnection(wire, self._opened)
        self._streams = Streams()
        self._opened_streams: dict[str, SpdyStream] = {}
        self._expected = {"error"}
        for name in ("stdin", "stdout", "stderr"):
            if getattr(request, name):
                self._expected.add(name)
        if request.tty and version >= 3:
            self._expected.add("resize")
        #: All streams are open, or the client has gone.
        self._settled = threading.Event()

    def serve(self) -> None:
        """Serves the connection to its end."""
        worker = threading.Thread(target=self._work_on, name=f"cri-{self._request.KIND}", daemon=True)
        worker.start()
        try:
            self._connection.run()
        finally:
            self._streams.hang_up()
            self._settled.set()
            worker.join()

    def _opened(self, stream: SpdyStream) -> None:
        name = stream.headers.get("streamtype", "")
        if name not in self._expected or name in self._opened_streams:
            raise RefusedError
        if name == "stdin":
            stream.sink = self._streams.stdin = Input(self._connection.is_gone, stream.taken)
        elif name == "stdout":
            self._streams.stdout = stream
        elif name == "stderr":
            self._streams.stderr = stream
        elif name == "resize":
            stream.sink = Resizes(self._streams.resize)
        self._opened_streams[name] = stream
        if len(self._opened_streams) == len(self._expected):
            self._settled.set()

    def _work_on(self) -> None:
        self._settled.wait(self._work.times.opening)
        missing = sorted(self._expected - set(self._opened_streams))
        if not missing:
            outcome = run(self._request, self._streams, self._work)
        else:
            wanted = f"{self._work.times.opening:g} s"
            outcome = Outcome(error=f"the client did not open its streams within {wanted}: {', '.join(missing)}")
        if "error" in self._opened_streams:
            _finish(self._opened_streams["error"], outcome.as_json() if self._version >= 4 else outcome.as_text())
        for name in ("stdin", "resize"):
            if name in self._opened_streams:
                self._opened_streams[name].close()
        self._connection.leave(self._work.times.leaving)


def serve_websocket(
    request: ExecStreams | AttachStreams, version: int, encoded: bool, websocket: WebSocket, work: Work
) -> None:
    """Serves an exec or attach over a WebSocket connection to its end.

    :param version: of the channels, 1, 4 or 5. :param encoded: in base64.
    """
    channels = Channels(websocket, encoded=encoded, closes=version >= 5)
    streams = Streams()
    error = channels.output(_ERROR)
    sinks: dict[int, Sink] = {}
    first = _ERROR
    if request.stderr:
        streams.stderr, first = channels.output(_STDERR), _STDERR
    if request.stdout:
        streams.stdout, first = channels.output(_STDOUT), _STDOUT
    if request.stdin:
        sinks[_STDIN] = streams.stdin = Input(websocket.is_gone)
    if request.tty:
        sinks[_RESIZE] = Resizes(streams.resize)

    def work_on() -> None:
        with contextlib.suppress(BrokenPipeError):
            channels.output(first).write_empty()
        outcome = run(request, streams, work)
        _finish(error, outcome.as_json() if version >= 4 else outcome.as_text())
        channels.leave(work.times.leaving)

    worker = threading.Thread(target=work_on, name=f"cri-{request.KIND}", daemon=True)
    worker.start()
    try:
        channels.run(sinks)
    finally:
        streams.hang_up()
        worker.join()
