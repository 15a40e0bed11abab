"""The transport that lets kurmad do operations: each is a request, on a connection of its own.

An operation's declaration determines its request (:mod:`kurma_core.api.operations`). The methods here are for
operations that need more: standard streams, files of the caller, answers in pieces.
"""

from __future__ import annotations

import os

from kurma_core import VERSION
from kurma_core.api.operations import NDJSON, OPERATIONS, Transport
from kurma_core.api.wire import LOG, PROTOCOL, error_from_json
from kurma_core.errors import (
    HostError,
    KurmaError,
    NetworkNotFoundError,
    PluginNotFoundError,
    StagerNotFoundError,
    UsageError,
)
from kurma_core.formats.small_json import decode, encode
from kurma_core.value import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from typing import Any, BinaryIO, TypeVar

    from kurma_core.api.host import CheckLine, DaemonInfo, Event
    from kurma_core.api.images import ImageListing
    from kurma_core.api.operations import Operation, Progress
    from kurma_core.api.pods import EnterRequest, PodRequest
    from kurma_core.client import Settings
    from kurma_core.client.local.managers import Managers
    from kurma_core.client.remote.http import Body, Connection, Response
    from kurma_core.client.remote.streams import CallerStreams, Stream
    from kurma_core.config import Config
    from kurma_core.errors import ConfigError
    from kurma_core.models.image import ImageRecord
    from kurma_core.models.pod import PodRecord
    from kurma_core.models.streams import LogText, Stdio

    Json = Any
    T = TypeVar("T")
    Hear = Callable[[Json], None]

_NONSENSE = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError)
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_PIECE = 1 << 18


def _changed_at(file: str) -> int:
    try:
        return os.stat(file).st_mtime_ns
    except OSError:
        return 0


def other_configuration(settings: Settings, daemon: DaemonInfo) -> str:
    """Says that kurmad reads another configuration than this process; empty: both read the same one."""
    ours, theirs = settings.config_path, daemon.configuration
    if ours == theirs:
        return ""
    named = ours if settings.config_file is None else f"{settings.config_origin} {ours}"
    return f"kurmad (process {daemon.pid}) reads {theirs}, not {named}"


def _ignore(message: Json) -> None:
    """A newer kurmad may send more keys than this client knows."""


class Remote(Transport):
    """:param here: the managers of this process, for the names of fetchers.
    :param config: that of this process, to be compared with kurmad's; None: they are not compared.
    """

    remote = True

    def __init__(
        self,
        settings: Settings,
        connection: Connection,
        here: Callable[[], Managers],
        config: Config | None = None,
    ) -> None:
        self._config = config
        #: The error of this process's configuration; the first request notes that kurmad goes on with its own.
        self.wrong: ConfigError | None = None
        #: The hint about a configuration that kurmad has not read; empty: nothing.
        self._differs = ""
        self._settings = settings
        #: Opened to find out whether kurmad runs; the first request uses it.
        self._first: Connection | None = connection
        self._path = connection.path
        #: kurmad's; known once it has answered.
        self._version: str | None = None
        self._here = here

    def progress(self) -> Progress | None:
        """The report to the user, for operations that were not given one."""
        return None if self._settings.progress is None else self._settings.progress()

    def close(self) -> None:
        if self._first is not None:
            self._first.close()

    def call(self, operation: Operation, arguments: dict[str, Any]) -> Any:
        if operation.name == "reload":
            self._config = self.wrong = None  # its report says it all
        own = getattr(self, operation.method, None)
        if own is not None:
            return own(operation, **arguments)
        if operation.kind == "lines":
            return self._each_line(operation, arguments)
        if operation.kind == "bytes":
            return b"".join(self._document(operation, arguments))
        return self._result(operation, self.ask(operation, self._with_absolute_paths(arguments)))

    def ask(self, operation: Operation, arguments: dict[str, Any], hear: Hear = _ignore) -> Json:
        """The JSON of an operation's result. Passes notes of kurmad on.

        :param hear: gets the messages that only some operations have.
        :raises KurmaError: the operation has failed; or kurmad has ended.
        """
        target, body = self._request(operation, arguments)
        headers = {"Accept": NDJSON}
        if body is not None:
            headers["Content-Type"] = "application/json"
        elif operation.verb != "GET":
            body = b""
        if "progress" in operation.names:
            headers.update(self._passphrases())
        return self._ask(operation.verb, target, body, headers, arguments.get("progress"), hear)

    def _request(
        self, operation: Operation, arguments: Mapping[str, Any], **further: Json
    ) -> tuple[str, bytes | None]:
        """The request's target and its body.

        :param further: parameters that are not of the method.
        :raises UsageError: the name of the pod, image or other object is empty.
        """
        given = {**arguments, **further}
        path, query, document = operation.path, [], {}
        body: bytes | None = None
        for one in operation.parameters:
            value = given.get(one.name, one.default)
            said = value if value is None else one.shape.write(value)
            if one.place == "path":
                if not said:
                    raise UsageError(
                        f"an {one.name}'s name is empty" if one.name == "image" else f"the {one.name} is empty"
                    )
                path = path.replace(f"{{{one.name}}}", quoted(said))
            elif one.place == "whole body":
                body = encode(said).encode()
            elif one.place == "body":
                document[one.key] = said
            elif said is not None and said != one.default:
                every = said if isinstance(said, list) else [said]
                query += [f"{one.key}={quoted(_query_text(each))}" for each in every]
        if operation.body is not None:
            body = encode(document).encode()
        return (f"{path}?{'&'.join(query)}" if query else path), body

    def _ask(
        self,
        verb: str,
        target: str,
        body: bytes | Body | None,
        headers: Mapping[str, str],
        progress: Progress | None = None,
        hear: Hear = _ignore,
    ) -> Json:
        from kurma_core.client.remote.http import lines

        notes = Notes(self, progress)
        try:
            # Leaving it by an exception, as of Ctrl-C, closes the connection, and thereby cancels the operation.
            with self._connect() as connection:
                answer = self._sent(connection, verb, target, body, headers)
                if not answer.headers.get("content-type", "").startswith(NDJSON):
                    return self._json(answer)
                for line in lines(answer.pieces()):
                    message = self._understood(decode, line)
                    kind = self._understood(lambda said: said["is"], message)
                    if kind == "result":
                        return message["value"]
                    if kind == "error":
                        raise self._failure(message)
                    if not notes.hear(message):
                        hear(message)
                return None
        finally:
            notes.close()

    def _connect(self) -> Connection:
        """A connection for one request."""
        from kurma_core.client.remote.http import Connection

        first, self._first = self._first, None
        if first is not None:
            if not first.closed():
                return first
            first.close()
        return Connection.open(self._path)

    def _sent(
        self,
        connection: Connection,
        verb: str,
        target: str,
        body: bytes | Body | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """Sends a request; the answer's head."""
        answer = connection.request(verb, target, body, headers)
        self._version = connection.version
        if self.wrong is not None:
            wrong, self.wrong = self.wrong, None  # once
            which = "kurmad goes on with the configuration that it has read before"
            self._settings.note(f"{wrong.message}; {which}")
        if self._config is not None and connection.checksum is not None and self._version == VERSION:
            config, self._config = self._config, None  # once
            if config.checksum() != connection.checksum:
                self._tell_difference(config)
        return answer

    def _tell_difference(self, config: Config) -> None:
        """Notes that kurmad works by another configuration than this process would, and what to do."""
        from kurma_core.formats.timestamps import timestamp

        try:
            operation = OPERATIONS["info"]
            daemon = self._result(operation, self.ask(operation, {})).daemon
        except KurmaError:
            return
        if other := other_configuration(self._settings, daemon):
            do = "" if self._settings.config_file is None else "restart it with that one, or "
            self._differs = f"{other}: {do}add --host local"
        else:
            who = f"kurmad (process {daemon.pid})"
            newest = max(config.config_files, key=_changed_at, default=daemon.configuration)
            self._differs = f"{who} has not read the present {newest}: kurma daemon reload"
            # The refused file may have changed since.
            if daemon.refused is not None and timestamp(_changed_at(newest) / 1e9) <= daemon.refused:
                self._differs = f"{who} has refused the present {newest}: kurma config check says why"
        self._settings.note(self._differs)

    def _json(self, answer: Response) -> Json:
        """The answer's JSON. :raises KurmaError: the answer is an error."""
        value = self._understood(decode, answer.read())
        if answer.status >= 400:
            raise self._failure(value)
        return value

    def _result(self, operation: Operation, said: Json) -> Any:
        shape = operation.result
        return None if shape is None else self._understood(lambda value: shape.read(value, "$"), said)

    def _document(self, operation: Operation, arguments: dict[str, Any]) -> Iterator[bytes]:
        """The pieces of an answer that is not a single JSON value.

        :raises KurmaError: kurmad reports an error, also while it sends the answer.
        """
        target, _ = self._request(operation, arguments)
        with self._connect() as connection:
            answer = self._sent(connection, "GET", target, None, {"TE": "trailers"})
            if answer.status >= 400:
                data = answer.read()
                said = self._understood(decode, data)
                if operation.result is None or "error" in said:
                    raise self._failure(said)
                yield data  # of /healthz, whose document contains the problem
            yield from answer.pieces()
        for note in self._understood(decode, answer.trailers.get("kurma-notes", "[]")):
            self._settings.note(note)
        late = answer.trailers.get("kurma-error")
        if late is not None:
            raise self._failure(self._understood(decode, late))

    def _each_line(self, operation: Operation, arguments: dict[str, Any]) -> Iterator[Any]:
        """The values of an operation that answers line by line, as they arrive."""
        from kurma_core.client.remote.http import lines

        for line in lines(self._document(operation, arguments)):
            yield self._result(operation, self._understood(decode, line))

    # -- passphrases, errors --

    def _passphrases(self) -> dict[str, str]:
        """The request header with the number of times that the user can be asked for a passphrase."""
        if self._settings.passphrases is None:
            return {}
        return {"Kurma-Passphrases": str(self._settings.passphrases().attempts)}

    def tell_passphrase(self, question: Mapping[str, Json]) -> None:
        """Sends kurmad a passphrase that it requests."""
        from binascii import b2a_base64

        assert self._settings.passphrases is not None
        found = self._settings.passphrases().get(question["what"], wrong=question["wrong"])
        said = None if found is None else b2a_base64(found, newline=False).decode()
        self.ask(OPERATIONS["answer"], {"answer": question["id"], "passphrase": said})

    def note(self, text: str) -> None:
        self._settings.note(text)

    def _failure(self, value: Mapping[str, Json]) -> KurmaError:
        """The error in an answer."""
        found = self._understood(error_from_json, value)
        if self._differs and isinstance(found, NetworkNotFoundError | PluginNotFoundError | StagerNotFoundError):
            found.hint = "; ".join(filter(None, (found.hint, self._differs)))
        theirs = self._version
        if found.data.get("unknown") and theirs != VERSION:
            return HostError(
                f"kurmad has version {theirs}, and this command {VERSION}: {found.message}",
                hint="restart kurmad with this version, or use --host local",
            )
        return found

    def _understood(self, read: Callable[[Json], T], said: Json) -> T:
        """Calls ``read`` with what kurmad has sent.

        :raises HostError: ``read`` cannot understand it.
        """
        try:
            return read(said)
        except _NONSENSE as error:
            theirs = self._version
            other = "" if theirs == VERSION else f": it is kurma {theirs}, and this is {VERSION}"
            raise HostError(
                f"cannot understand the answer of the daemon at {self._path}{other}",
                hint="restart kurmad with this version, or use --host local",
            ) from error

    # -- operations with files, and locators, of the caller's --

    def locator(self, text: str) -> str:
        """A locator, with a relative path made absolute by this process's working directory. It stays as it is if
        only kurmad has the fetcher of its scheme."""
        from kurma_core.named_files import absolute_locator

        return absolute_locator(text, lambda scheme: self._here().registry.locator_kind(scheme))

    def _with_absolute_paths(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Makes paths and locators absolute: kurmad has another working directory."""
        makes: dict[str, Callable[[Any], Any]] = {
            "request": self._absolute,
            "locator": self.locator,
            "directory": os.path.abspath,
        }
        return {
            name: makes[name](value) if name in makes and value is not None else value
            for name, value in arguments.items()
        }

    def _absolute(self, request: PodRequest) -> PodRequest:
        """The request, with the locators of its images so that they mean the same to kurmad."""
        apps = []
        for app in request.template.pod.apps:
            locator = app.image.locator
            if locator is not None:
                app = replace(app, image=replace(app.image, locator=self.locator(locator)))
            apps.append(app)
        template = request.template
        return replace(request, template=replace(template, pod=replace(template.pod, apps=tuple(apps))))

    def image_upload(
        self,
        operation: Operation,
        path: str,
        signature: str | None,
        insecure: Collection[str],
        progress: Progress | None,
    ) -> ImageRecord:
        from kurma_core.named_files import LARGEST_SIGNATURE, content, opened

        name = os.path.basename(path)
        headers = {"Accept": NDJSON, "Content-Type": operation.takes or "", **self._passphrases()}
        if signature is not None:
            from binascii import b2a_base64

            data = content(signature, largest=LARGEST_SIGNATURE)
            headers["Kurma-Signature"] = b2a_base64(data, newline=False).decode()
        target, _ = self._request(operation, {"insecure": sorted(insecure)}, name=name)
        with opened(path) as stream:
            said = self._ask("POST", target, _upload(stream, name, progress), headers)
            found: ImageRecord = self._result(operation, said)
            return found

    def images_list(self, operation: Operation) -> ImageListing:
        from kurma_core.api.images import ImageListing

        damaged = []

        def hear(message: Json) -> None:
            if message["is"] == "problem":
                damaged.append(self._failure(message))

        found = self._result(operation, self.ask(operation, {}, hear))
        return ImageListing(tuple(found), tuple(damaged))

    def image_archive(self, operation: Operation, image: str, out: BinaryIO) -> None:
        for piece in self._document(operation, {"image": image}):
            out.write(piece)

    def stager_check(self, operation: Operation, image: str, tell: Callable[[CheckLine], None]) -> list[CheckLine]:
        def hear(message: Json) -> None:
            if message["is"] == "line":
                (line,) = self._result(operation, [message["line"]])
                tell(line)

        found: list[CheckLine] = self._result(operation, self.ask(operation, {"image": self.locator(image)}, hear))
        return found

    def events(self, operation: Operation, since: int | None, follow: bool, **arguments: Any) -> Iterator[Event]:
        if since is None and not follow:
            return iter(())
        return self._each_line(operation, {"since": since, "follow": follow, **arguments})

    # -- operations with standard streams --

    def run(
        self,
        operation: Operation,
        request: PodRequest,
        stdio: Stdio,
        output: Callable[[LogText], None],
        progress: Progress | None,
        prepared: Callable[[PodRecord], None],
    ) -> PodRecord:
        typed = request.terminal is not None and request.interactive == request.terminal
        given = {"request": self._absolute(request), "hold": True}
        return self._in_foreground(operation, given, stdio, output, typed, prepared, progress)

    def start(
        self, operation: Operation, pod: str, stdio: Stdio, output: Callable[[LogText], None], managed: bool
    ) -> PodRecord:
        return self._in_foreground(operation, {"pod": pod, "managed": managed}, stdio, output)

    def _in_foreground(
        self,
        operation: Operation,
        arguments: dict[str, Any],
        stdio: Stdio,
        output: Callable[[LogText], None],
        typed: bool = False,
        prepared: Callable[[PodRecord], None] = lambda record: None,
        progress: Progress | None = None,
    ) -> PodRecord:
        """A pod that kurmad runs and that is shown here, to its end."""
        from kurma_core.client.remote.streams import TERMINAL_SIGNALS, CallerStreams, ForegroundPod
        from kurma_core.signals import Signals

        settings = self._settings

        def tell(message: Json) -> None:
            if message["is"] == "prepared":
                prepared(self._result(operation, message["pod"]))
                stream.say(**{"is": "go"})
            elif message["is"] == "running":
                pod.runs = True
                settings.tell_service(f"READY=1\nSTATUS=pod {message['name']} runs")

        also = TERMINAL_SIGNALS if stdio.terminal else ()
        with (
            CallerStreams(stdio, typed=typed) as streams,
            Signals(taken=self._settings.signals, also=also) as signals,
        ):
            signals.settle()
            given = {**arguments, **streams.size()}
            with self._stream(operation, given, streams, tell, progress) as stream:
                stopping = lambda: settings.tell_service("STOPPING=1")  # noqa: E731 - functools is not light
                pod = ForegroundPod(stream, streams, signals, output, stdio.stdout, stopping)
                found: PodRecord = self._result(operation, pod.follow())
                return found

    def enter(self, operation: Operation, pod: str, request: EnterRequest, stdio: Stdio) -> int:
        from kurma_core.client.remote.streams import CallerStreams, call_in

        with CallerStreams(stdio, typed=request.tty) as streams:
            given = {"pod": pod, "request": request, **streams.size()}
            with self._stream(operation, given, streams) as stream:
                return call_in(stream, streams, terminal=request.tty and stdio.terminal)

    def attach(
        self, operation: Operation, pod: str, app: str | None, stdio: Stdio, stdin: bool, detach_keys: str | None
    ) -> int:
        from kurma_core.client.remote.streams import CallerStreams, call_in

        with CallerStreams(stdio, typed=stdin) as streams:
            given = {"pod": pod, "app": app, "stdin": stdin, "detach_keys": detach_keys, **streams.size()}
            with self._stream(operation, given, streams) as stream:
                return call_in(stream, streams, terminal=stdio.terminal)

    def logs(self, operation: Operation, **arguments: Any) -> Iterator[LogText]:
        from kurma_core.client.remote.streams import texts

        with self._stream(operation, arguments, None) as stream:
            while True:
                for kind, value in stream.frames():
                    if kind != LOG:
                        return
                    yield from texts(value)
                stream.receive()

    def _stream(
        self,
        operation: Operation,
        arguments: dict[str, Any],
        streams: CallerStreams | None,
        tell: Hear = _ignore,
        progress: Progress | None = None,
    ) -> Stream:
        """A connection that speaks frames from here on.

        :param streams: standard streams to connect; None: the operation has none.
        :param tell: gets the messages that only some operations have.
        """
        from kurma_core.client.remote.streams import Stream

        def hear(message: Json) -> None:
            if not notes.hear(message) and (streams is None or not streams.hear(message)):
                tell(message)

        notes = Notes(self, progress)
        target, body = self._request(operation, arguments)
        connection = self._connect()
        headers = {"Connection": "Upgrade", "Upgrade": PROTOCOL, **self._passphrases()}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            answer = self._sent(connection, "POST", target, body or b"", headers)
            if answer.status != 101:
                self._json(answer)
            stream = Stream(connection, hear, self._failure)
            if streams is not None:
                streams.connect(stream)
        except BaseException:
            connection.close()
            raise
        return stream


class Notes:
    """Handles the messages that any operation may send before its end: notes, progress, a question for a
    passphrase."""

    def __init__(self, transport: Remote, progress: Progress | None) -> None:
        """:param progress: None: that of the client's settings, if kurmad reports any."""
        self._transport = transport
        self._progress = progress
        self._open: tuple[str, int | None, str] | None = None
        self._done = self._skipped = 0

    def hear(self, message: Json) -> bool:
        """:returns: whether it was something of that kind."""
        kind = message["is"]
        if kind == "note":
            self._transport.note(message["text"])
        elif kind == "progress":
            self._progress = self._progress or self._transport.progress()
            if self._progress is not None:
                self._move(self._progress, message)
        elif kind == "ask":
            self._transport.tell_passphrase(message)
        else:
            return False
        return True

    def _move(self, progress: Progress, message: Mapping[str, Json]) -> None:
        """Moves the progress bar by kurmad's messages."""
        what = message["what"], message["total"], message.get("kind", "bytes")
        if what != self._open or message["done"] < self._done:
            self.close()
            self._open, self._done, self._skipped = what, 0, 0
            progress.start(*what)
        skipped = message["skipped"] - self._skipped
        if skipped:
            progress.skip(skipped)
        advanced = message["done"] - self._done - skipped
        if advanced > 0:
            progress.advance(advanced)
        self._done, self._skipped = message["done"], message["skipped"]
        if message["finished"]:
            self.close()

    def close(self) -> None:
        if self._open is not None and self._progress is not None:
            self._progress.finish()
            self._open = None


def _query_text(value: Json) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def quoted(text: str) -> str:
    """Percent-encodes all that is not unreserved (RFC 3986). ``urllib.parse`` takes longer to import than this."""
    data = text.encode("utf-8", "surrogatepass")
    return "".join([chr(byte) if byte in _UNRESERVED else f"%{byte:02X}" for byte in data])


def _upload(stream: BinaryIO, name: str, progress: Progress | None) -> Body:
    """A file as a request's body, with progress of its sending."""
    from kurma_core.client.remote.http import Body

    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)

    def pieces() -> Iterator[bytes]:
        if progress is not None:
            progress.start(name, size)
        left = size
        while left and (piece := stream.read(min(left, _PIECE))):
            yield piece
            left -= len(piece)
            if progress is not None:
                progress.advance(len(piece))
        if progress is not None:
            progress.finish()

    return Body(size, pieces())
