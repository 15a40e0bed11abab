"""The client that works by way of a running kurmad.

What is none of the daemon's business, as archives in the caller's directory, is done in process as ever: so it is
made of the client that does all of it there.
"""

from __future__ import annotations

from kurma_core.client import values
from kurma_core.client.asking import Ears
from kurma_core.client.frames import PROTOCOL
from kurma_core.client.remote_images import RemoteImages
from kurma_core.client.targets import target
from kurma_core.linux.smalljson import decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from typing import Any, Unpack

    from kurma_core.api.host import CheckLine, Event, IsolatorInfo, NetworkFinding, NetworkInfo
    from kurma_core.api.images import HostImage
    from kurma_core.api.pods import Collected, PodRequest, Process, Usage
    from kurma_core.client.foreground import CallerStreams, Stream
    from kurma_core.client.options import LogOptions
    from kurma_core.models.log import LogText
    from kurma_core.models.pod import PodRecord
    from kurma_core.models.stdio import Stdio
    from kurma_core.models.summary import PodSummary
    from kurma_core.progress import Progress

    Json = Any


class RemoteClient(RemoteImages):
    # -- pods --

    def prepare(self, request: PodRequest, progress: Progress | None = None) -> PodRecord:
        return self._pod(self._ask("POST", ("pods",), None, self._request(request), progress, secrets=True))

    def run(
        self,
        request: PodRequest,
        stdio: Stdio,
        output: Callable[[LogText], None],
        progress: Progress | None = None,
        prepared: Callable[[PodRecord], None] = lambda _: None,
    ) -> PodRecord:
        typed = request.terminal is not None and request.interactive == request.terminal
        body = self._request(request)
        return self._in_front(
            ("pods", "run"), stdio, output, {"hold": True}, body, typed=typed, prepared=prepared, progress=progress
        )

    def start(self, reference: str, stdio: Stdio, output: Callable[[LogText], None]) -> PodRecord:
        return self._in_front(("pods", reference, "foreground"), stdio, output)

    def launch(self, reference: str) -> PodRecord:
        return self._pod(self._ask("POST", ("pods", reference, "start")))

    def run_on(self, request: PodRequest, progress: Progress | None = None) -> PodRecord:
        body = self._request(request)
        return self._pod(self._ask("POST", ("pods",), {"start": True}, body, progress, secrets=True))

    def restart(self, reference: str, stdio: Stdio, output: Callable[[LogText], None]) -> PodRecord:
        return self.start(self.stop(reference, again=True).uuid, stdio, output)

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
        progress: Progress | None = None,
    ) -> PodRecord:
        """A pod that the daemon runs and that is shown here, to its end."""
        from kurma_core.client.foreground import OF_TERMINALS, CallerStreams, Shower
        from kurma_core.pods.foreground import Signals

        def tell(message: Json) -> None:
            if message["is"] == "prepared":
                prepared(values.pod(message["pod"]))
                stream.say(**{"is": "go"})
            elif message["is"] == "running":
                shower.runs = True
                self._tell_service(f"READY=1\nSTATUS=pod {message['name']} runs")

        also = OF_TERMINALS if stdio.terminal else ()
        with (
            CallerStreams(stdio, typed=typed) as streams,
            Signals(taken=self.settings.signals, also=also) as signals,
        ):
            signals.settle()
            query = {**(query or {}), **streams.size()}
            with self._stream(path, streams, tell, query, body, progress) as stream:
                stopping = lambda: self._tell_service("STOPPING=1")  # noqa: E731 - functools is not light
                shower = Shower(stream, streams, signals, output, stdio.stdout, stopping)
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
        from kurma_core.client.foreground import CallerStreams, call_in

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
            CallerStreams(stdio, typed=terminal) as streams,
            self._stream(("pods", reference, "enter"), streams, query=streams.size(), body=body) as stream,
        ):
            return call_in(stream, streams, terminal=terminal and stdio.terminal)

    def attach(
        self,
        reference: str,
        app: str | None,
        stdio: Stdio,
        *,
        stdin: bool = True,
        detach_keys: str | None = None,
    ) -> int:
        from kurma_core.client.foreground import CallerStreams, call_in

        query = {"app": app, "stdin": str(stdin).lower(), "detachKeys": detach_keys}
        with (
            CallerStreams(stdio, typed=stdin) as streams,
            self._stream(("pods", reference, "attach"), streams, query={**query, **streams.size()}) as stream,
        ):
            return call_in(stream, streams, terminal=stdio.terminal)

    def _stream(
        self,
        path: tuple[str, ...],
        streams: CallerStreams | None,
        tell: Callable[[Json], None] = lambda message: None,
        query: Mapping[str, Json] | None = None,
        body: Json = None,
        progress: Progress | None = None,
    ) -> Stream:
        """A connection that speaks frames from here on.

        :param streams: are carried; None: the operation has none.
        :param tell: gets the messages that are none of all operations.
        """
        from kurma_core.client.foreground import Stream

        def told(message: Json) -> None:
            if not ears.hear(message) and (streams is None or not streams.hear(message)):
                tell(message)

        ears = Ears(self, progress)

        connection = self._connection.again()
        headers = {"Connection": "Upgrade", "Upgrade": PROTOCOL, **self.attempts()}
        data = b""
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = encode(body).encode()
        try:
            answer = connection.request("POST", target(path, query or {}), data, headers)
            if answer.status != 101:
                raise self.failure(self.understood(decode, answer.read()))
            stream = Stream(connection, told)
            if streams is not None:
                streams.connect(stream)
        except BaseException:
            connection.close()
            raise
        return stream

    def _request(self, request: PodRequest) -> Json:
        from kurma_core.client.locators import absolute_request

        return absolute_request(request, self.locator).to_json()

    def _pod(self, said: Json) -> PodRecord:
        return self.understood(values.pod, said)

    def pods(self) -> list[PodRecord]:
        return list(self._each(values.pod, self._ask("GET", ("pods",))))

    def pods_json(self) -> list[Json]:
        return self.understood(list, self._ask("GET", ("pods",)))

    def summaries(self) -> list[PodSummary]:
        return list(self._each(values.summary, self._ask("GET", ("listing",))))

    def pod(self, reference: str) -> PodRecord:
        return self._pod(self._ask("GET", ("pods", reference)))

    def status(self, reference: str, *, wait: bool = False) -> PodRecord:
        return self.wait(reference) if wait else self.pod(reference)

    def wait(self, reference: str) -> PodRecord:
        return self._pod(self._ask("GET", ("pods", reference, "wait")))

    def usage(self, references: Sequence[str] = ()) -> list[Usage]:
        from kurma_core.api.pods import Usage

        found = self._ask("GET", ("usage",), {"pod": tuple(dict.fromkeys(references))})
        return list(self._each(Usage.from_json, found))

    def processes(self, reference: str, app: str | None = None) -> list[Process]:
        from kurma_core.api.pods import Process

        found = self._ask("GET", ("pods", reference, "processes"), {"app": app})
        return list(self._each(Process.from_json, found))

    def logs(self, reference: str, app: str | None = None, **options: Unpack[LogOptions]) -> Iterator[LogText]:
        from kurma_core.client.foreground import texts
        from kurma_core.client.frames import LOG

        query = {"app": app, **options}
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
        from kurma_core.api.host import Event

        query = {"since": since, "pod": pod, "subject": tuple(subjects), "kind": tuple(kinds), "follow": follow}
        for one in self._lines(("events",), query):
            yield self.understood(Event.from_json, one)

    def stop(
        self, reference: str, *, timeout: float | None = None, force: bool = False, again: bool = False
    ) -> PodRecord:
        query = {"timeout": timeout, "force": force, **({"again": True} if again else {})}
        return self._pod(self._ask("POST", ("pods", reference, "stop"), query))

    def kill(self, reference: str, signal: int, app: str | None = None) -> None:
        self._ask("POST", ("pods", reference, "kill"), {"signal": signal, "app": app})

    def rm(self, reference: str, *, force: bool = False) -> None:
        self._ask("DELETE", ("pods", reference), {"force": force})

    def gc(self, *, grace: float, dry_run: bool = False) -> Collected:
        from kurma_core.client import answers

        query = {"grace": grace, "dryRun": dry_run}
        return self.understood(answers.collected, self._ask("POST", ("pods", "gc"), query))

    # -- apps --

    def app_add(
        self, reference: str, request: PodRequest, *, start: bool = False, progress: Progress | None = None
    ) -> PodRecord:
        where = ("pods", reference, "apps")
        return self._pod(
            self._ask("POST", where, {"start": start}, self._request(request), progress, secrets=True)
        )

    def app_start(self, reference: str, app: str) -> PodRecord:
        return self._pod(self._ask("POST", ("pods", reference, "apps", app, "start")))

    def app_stop(
        self, reference: str, app: str, *, timeout: float | None = None, force: bool = False
    ) -> PodRecord:
        query = {"timeout": timeout, "force": force}
        return self._pod(self._ask("POST", ("pods", reference, "apps", app, "stop"), query))

    def app_rm(self, reference: str, app: str, *, force: bool = False) -> None:
        self._ask("DELETE", ("pods", reference, "apps", app), {"force": force})

    # -- the rest --

    def networks_list(self) -> list[NetworkInfo]:
        from kurma_core.client import answers

        return list(self._each(answers.network, self._ask("GET", ("networks",))))

    def network(self, name: str) -> NetworkInfo:
        from kurma_core.client import answers

        return self.understood(answers.network, self._ask("GET", ("networks", name)))

    def network_rm(self, name: str) -> None:
        self._ask("DELETE", ("networks", name))

    def network_check(self, names: Sequence[str] = (), *, repair: bool = False) -> list[NetworkFinding]:
        from kurma_core.client import answers

        body = {"names": list(names), "repair": repair}
        return list(self._each(answers.finding, self._ask("POST", ("networks", "check"), body=body)))

    def stagers(self) -> list[Mapping[str, Json]]:
        return list(self._ask("GET", ("stagers",)))

    def stager_build(self, name: str, *, force: bool = False) -> HostImage:
        from kurma_core.client import answers

        return self.understood(answers.host_image, self._ask("POST", ("stagers", name, "build"), {"force": force}))

    def stager_check(self, reference: str, tell: Callable[[CheckLine], None]) -> Sequence[CheckLine]:
        from kurma_core.client import answers

        def heard(message: Json) -> None:
            if message["is"] == "line":
                tell(self.understood(answers.check_line, message["line"]))

        body = {"image": self.locator(reference)}
        return list(
            self._each(answers.check_line, self._ask("POST", ("stagers", "check"), body=body, heard=heard))
        )

    def isolators(self) -> tuple[IsolatorInfo, ...]:
        from kurma_core.client import answers

        return self._each(answers.isolator, self._ask("GET", ("isolators",)))

    def info(self) -> dict[str, Json]:
        found: dict[str, Json] = self._ask("GET", ("info",))
        return found


__all__ = ["RemoteClient"]
