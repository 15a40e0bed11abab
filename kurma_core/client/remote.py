"""The client that works by way of a running kurmad.

What is none of the daemon's business, as archives in the caller's directory, is done in process as ever: so it is
made of the client that does all of it there.
"""

from __future__ import annotations

import functools
import json
from urllib.parse import quote, urlencode

from kurma_core.client import values, wire
from kurma_core.client.frames import PROTOCOL
from kurma_core.client.local import LocalClient

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from typing import Any

    from kurma_core.client import Settings
    from kurma_core.client.foreground import Stream
    from kurma_core.config import Config
    from kurma_core.hookspecs import Progress, Stdio
    from kurma_core.journal import Event
    from kurma_core.models import LogText, PodRecord
    from kurma_core.pods.request import PodRequest

    Json = Any

_NDJSON = "application/x-ndjson"


class RemoteClient(LocalClient):
    def __init__(self, settings: Settings, config: Config, connection: wire.Connection) -> None:
        super().__init__(settings, config)
        self._connection = connection

    def close(self) -> None:
        self._connection.close()
        super().close()

    # -- asking --

    def _ask(
        self,
        method: str,
        path: tuple[str, ...],
        query: Mapping[str, Json] | None = None,
        body: Json = None,
        progress: Progress | None = None,
    ) -> Json:
        """The operation's value; what the daemon notes on the way is told.

        :param path: its parts behind ``/v1``.
        :raises KurmaError: what the daemon had; or it has gone.
        """
        headers = {"Accept": _NDJSON}
        data = None
        if body is not None:
            data = json.dumps(body, default=dict).encode()
            headers["Content-Type"] = "application/json"
        elif method != "GET":
            data = b""
        answer = self._connection.request(method, _target(path, query), data, headers)
        if not answer.headers.get("content-type", "").startswith(_NDJSON):
            value = json.loads(answer.read())
            if answer.status >= 400:
                raise values.error(value["error"])
            return value
        value = None
        for line in answer.lines():
            message = json.loads(line)
            if message["is"] == "note":
                self.settings.note(message["text"])
            elif message["is"] == "error":
                raise values.error(message["error"])
            elif message["is"] == "result":
                value = message["value"]
        return value

    # -- pods --

    def prepare(self, request: PodRequest, progress: Progress | None = None) -> PodRecord:
        from kurma_core.pods import request_json

        return values.pod(self._ask("POST", ("pods",), body=request_json.to_json(request), progress=progress))

    def run(
        self,
        request: PodRequest,
        stdio: Stdio,
        output: Callable[[LogText], None],
        progress: Progress | None = None,
        prepared: Callable[[PodRecord], None] = lambda _: None,
    ) -> PodRecord:
        from kurma_core.pods import request_json

        typed = request.terminal is not None and request.interactive == request.terminal
        body = request_json.to_json(request)
        return self._in_front(("pods", "run"), stdio, output, {"hold": True}, body, typed=typed, prepared=prepared)

    def start(self, reference: str, stdio: Stdio, output: Callable[[LogText], None]) -> PodRecord:
        return self._in_front(("pods", reference, "foreground"), stdio, output)

    def launch(self, reference: str) -> PodRecord:
        return values.pod(self._ask("POST", ("pods", reference, "start")))

    def restart(self, reference: str, stdio: Stdio, output: Callable[[LogText], None]) -> PodRecord:
        return self.start(self.stop(reference).uuid, stdio, output)

    def _in_front(
        self,
        path: tuple[str, ...],
        stdio: Stdio,
        output: Callable[[LogText], None],
        query: Mapping[str, Json] | None = None,
        body: Json = None,
        *,
        typed: bool = False,
        prepared: Callable[[PodRecord], None] = lambda _: None,
    ) -> PodRecord:
        """A pod that the daemon runs and that is shown here, to its end."""
        from kurma_core.client.foreground import OF_TERMINALS, Lent, Shower
        from kurma_core.pods.foreground import Signals

        def tell(message: Json) -> None:
            if message["is"] == "prepared":
                prepared(values.pod(message["pod"]))
                stream.say(**{"is": "go"})
            elif message["is"] == "running":
                shower.runs = True
                self._tell_service(f"READY=1\nSTATUS=pod {message['name']} runs")

        also = OF_TERMINALS if stdio.terminal else ()
        with Lent(stdio, typed=typed), Signals(taken=self.settings.signals, also=also) as signals:
            signals.settle()
            with self._stream(path, stdio, tell, query, body) as stream:
                shower = Shower(
                    stream, signals, output, stdio.stdout, functools.partial(self._tell_service, "STOPPING=1")
                )
                return values.pod(shower.follow())

    def enter(
        self,
        reference: str,
        app: str | None,
        command: tuple[str, ...],
        stdio: Stdio,
        *,
        user: str | None = None,
        group: str | None = None,
        environment: tuple[tuple[str, str], ...] = (),
        working_directory: str | None = None,
        terminal: bool = False,
    ) -> int:
        from kurma_core.client.foreground import Lent, call_in

        body = {
            "app": app,
            "exec": list(command),
            "user": user,
            "group": group,
            "environment": [{"name": name, "value": value} for name, value in environment],
            "workingDirectory": working_directory,
            "tty": terminal,
        }
        with (
            Lent(stdio, typed=terminal),
            self._stream(("pods", reference, "enter"), stdio, body=body) as stream,
        ):
            return call_in(stream, stdio)

    def attach(
        self,
        reference: str,
        app: str | None,
        stdio: Stdio,
        *,
        stdin: bool = True,
        detach_keys: str | None = None,
    ) -> int:
        from kurma_core.client.foreground import Lent, call_in

        query = {"app": app, "stdin": str(stdin).lower(), "detachKeys": detach_keys}
        with (
            Lent(stdio, typed=stdin),
            self._stream(("pods", reference, "attach"), stdio, query=query) as stream,
        ):
            return call_in(stream, stdio)

    def _stream(
        self,
        path: tuple[str, ...],
        stdio: Stdio | None,
        tell: Callable[[Json], None] = lambda message: None,
        query: Mapping[str, Json] | None = None,
        body: Json = None,
    ) -> Stream:
        """A connection that speaks frames from here on.

        :param stdio: is lent; None: nothing is.
        :param tell: gets the messages that are none of all operations.
        """
        from kurma_core.client.foreground import Stream

        def told(message: Json) -> None:
            if message["is"] == "note":
                self.settings.note(message["text"])
            else:
                tell(message)

        connection = self._connection.again()
        headers = {"Connection": "Upgrade", "Upgrade": PROTOCOL}
        data = b""
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body, default=dict).encode()
        try:
            lent = {} if stdio is None else {"stdio": "lent"}
            answer = connection.request("POST", _target(path, {**(query or {}), **lent}), data, headers)
            if answer.status != 101:
                raise values.error(json.loads(answer.read())["error"])
            stream = Stream(connection, told)
            if stdio is not None:
                stream.lend(stdio)
        except BaseException:
            connection.close()
            raise
        return stream

    def pods(self) -> list[PodRecord]:
        return [values.pod(one) for one in self._ask("GET", ("pods",))]

    def pod(self, reference: str) -> PodRecord:
        return values.pod(self._ask("GET", ("pods", reference)))

    def status(self, reference: str, *, wait: bool = False) -> PodRecord:
        return self.wait(reference) if wait else self.pod(reference)

    def wait(self, reference: str) -> PodRecord:
        return values.pod(self._ask("GET", ("pods", reference, "wait")))

    def logs(
        self,
        reference: str,
        app: str | None = None,
        *,
        follow: bool = False,
        tail: int | None = None,
        since: int | None = None,
        stream: str | None = None,
        instance: int | None = None,
    ) -> Iterator[LogText]:
        from kurma_core.client.foreground import texts
        from kurma_core.client.frames import LOG

        query = {
            "app": app,
            "follow": follow,
            "tail": tail,
            "since": since,
            "stream": stream,
            "instance": instance,
        }
        with self._stream(("pods", reference, "logs"), None, query=query) as connection:
            while True:
                for kind, value in connection.frames():
                    if kind != LOG:
                        return
                    yield from texts(value)
                connection.receive()

    def events(
        self,
        since: int | None = None,
        *,
        follow: bool = False,
        pod: str | None = None,
        subjects: Collection[str] = (),
        kinds: Collection[str] = (),
    ) -> Iterator[Event]:
        if since is None and not follow:
            return
        from kurma_core.journal import Event

        given = [("since", since), ("pod", pod), *(("subject", one) for one in subjects)]
        given += [("kind", one) for one in kinds] + ([("follow", "true")] if follow else [])
        target = "/v1/events?" + urlencode([pair for pair in given if pair[1] is not None])
        # A connection of its own: while it lasts, this client may be asked for something else.
        with self._connection.again() as connection:
            answer = connection.request("GET", target)
            if answer.status >= 400:
                raise values.error(json.loads(answer.read())["error"])
            for line in answer.lines():
                yield Event.from_json(json.loads(line))

    def stop(self, reference: str, *, timeout: float | None = None, force: bool = False) -> PodRecord:
        return values.pod(self._ask("POST", ("pods", reference, "stop"), {"timeout": timeout, "force": force}))

    def kill(self, reference: str, signal: int, app: str | None = None) -> None:
        self._ask("POST", ("pods", reference, "kill"), {"signal": signal, "app": app})

    def rm(self, reference: str, *, force: bool = False) -> None:
        self._ask("DELETE", ("pods", reference), {"force": force})

    # -- the rest --

    def info(self) -> dict[str, Json]:
        found: dict[str, Json] = self._ask("GET", ("info",))
        return found


def _target(path: tuple[str, ...], query: Mapping[str, Json] | None) -> str:
    target = "/v1/" + "/".join(quote(part, safe="") for part in path)
    given = [
        (name, _text(value)) for name, value in (query or {}).items() if value is not None and value is not False
    ]
    return f"{target}?{urlencode(given)}" if given else target


def _text(value: Json) -> str:
    return "true" if value is True else str(value)


__all__ = ["RemoteClient"]
