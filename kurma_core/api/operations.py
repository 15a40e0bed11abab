"""Every operation of Kurma, declared once: methods of clients, served by kurmad over HTTP.

A method of :class:`Api` below is the declaration. Its signature gives the parameters: those in braces in the path,
those of the query, and those of the body; its annotations give their JSON, and its result's. Its first line is the
summary; ``:param x:`` lines describe the parameters. From this come the remote client's requests, the daemon's
dispatch, and the OpenAPI document (:mod:`kurma_core.api.describe`).

A parameter whose type is a :class:`~kurma_core.schema.JsonValue` is the body. Where ``body`` names a schema, the
parameters that are not in the path are the keys of the body. Else they are in the query. ``Progress``, ``Stdio``,
functions and files stay in the caller's process.

Types are resolved when they are first needed: a command imports only the values that it uses.
"""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

import sys

from kurma_core.appc.types import absolute_path, ac_identifier, nonempty
from kurma_core.schema import List, Seconds, Shape, Text, Whole, Words, camel_case
from kurma_core.schema import resolve as resolve_shape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from typing import Any, BinaryIO, Protocol, TypeVar

    from kurma_core.api.host import (
        CheckLine,
        Event,
        HostCheckInfo,
        HostInfo,
        IsolatorInfo,
        NetworkFinding,
        NetworkInfo,
        PluginInfo,
        ReloadReport,
        SecretInfo,
        StagerInfo,
        Version,
    )
    from kurma_core.api.images import (
        DiskUse,
        HostImage,
        ImageChecked,
        ImageGc,
        ImageId,
        ImageListing,
        ImagePage,
        ImagePushed,
        ImageRendered,
        Key,
        PullPolicy,
        Removal,
        StoreUse,
        TrustChange,
        TrustedKey,
    )
    from kurma_core.api.pods import (
        Collected,
        EnterRequest,
        HealthRun,
        LogLine,
        PodRequest,
        Process,
        Pruned,
        Usage,
        WaitCondition,
    )
    from kurma_core.api.volumes import OwnerId, VolumeInfo
    from kurma_core.models.image import FetchCredentials, ImageRecord
    from kurma_core.models.pod import PodRecord
    from kurma_core.models.streams import LogText, Stdio
    from kurma_core.models.summary import PodSummary

    class Progress(Protocol):
        """Reports the progress of long work to the caller. All calls are cheap.

        ``kind`` is what is counted: ``download`` (bytes; an interruption keeps those that came), ``bytes`` or
        ``files``. ``total`` is None when unknown. Skipped bytes are done by an earlier attempt, and do not count
        for the speed."""

        def start(self, what: str, total: int | None, kind: str = "bytes") -> None: ...
        def skip(self, count: int) -> None: ...
        def advance(self, count: int) -> None: ...
        def finish(self) -> None: ...

    F = TypeVar("F", bound=Callable[..., Any])
    Json = Any
    Nonempty = str
    Path = str
    Identifier = str
    OutputStream = str
    SignalNumber = int
    Nanoseconds = int
    LineCount = int
    File = str
    EventSubject = str
    EventKind = str
else:
    Nonempty = Text(nonempty)
    Path = Text(absolute_path)
    Identifier = Text(ac_identifier)
    OutputStream = Words("stdout", "stderr")
    SignalNumber = Whole(0, 64)
    Nanoseconds = Whole(-(2**63) + 1, 2**63 - 1)
    TerminalSize = Whole(0, 65535)
    LineCount = Whole(0, 2**63 - 1)

#: Modules of types.
_WHERE = {
    "AppOverrides AppRow PodRequest EnterRequest Exit Usage Process Collected LogLine": "kurma_core.api.pods",
    "HealthRun RootChange WaitCondition": "kurma_core.api.pods",
    "ListedImage ImagePage ImageChecked ImageGc ImageId ImageRendered ImageSigned": "kurma_core.api.images",
    "ImagePushed": "kurma_core.api.images",
    "ImageVerified HostImage PullPolicy Key StoreUse TrustChange TrustedKey DiskUse": "kurma_core.api.images",
    "Removal": "kurma_core.api.images",
    "Pruned": "kurma_core.api.pods",
    "CheckLine ErrorBody Event EventKind EventSubject Health HostCheckInfo HostInfo": "kurma_core.api.host",
    "IsolatorInfo NetworkFinding NetworkInfo PluginInfo PluginPage ReloadReport": "kurma_core.api.host",
    "SecretInfo StagerInfo Version": "kurma_core.api.host",
    "OwnerId VolumeInfo": "kurma_core.api.volumes",
    "FetchCredentials": "kurma_core.models.image",
    "ImageRecord": "kurma_core.models.image",
    "PodRecord": "kurma_core.models.pod",
    "PodSummary": "kurma_core.models.summary",
}
#: Beginnings of the types of what stays in the caller's process.
_CALLERS = ("Progress", "Stdio", "Callable", "BinaryIO", "File")
_REQUIRED: Any = object()


class _Types(dict[str, "Any"]):
    """The names that annotations may use, each imported when it is looked for."""

    def __contains__(self, name: object) -> bool:
        return name in _MODULES or super().__contains__(name)

    def __missing__(self, name: str) -> Any:
        __import__(_MODULES[name])
        found = self[name] = getattr(sys.modules[_MODULES[name]], name)
        return found


_MODULES = {name: module for names, module in _WHERE.items() for name in names.split()}


class Parameter:
    """One parameter of an operation.

    :param name: in Python. :param key: in JSON, in the query, or in the path.
    :param place: ``path``, ``query``, ``body`` (a key of it) or ``whole body``.
    :param annotation: its type, as text. :param default: its value if it is left out.
    :param help: of one that is not a parameter of the method.
    """

    __slots__ = ("_shape", "annotation", "default", "help", "key", "name", "place")

    def __init__(self, name: str, place: str, annotation: str, default: Json = _REQUIRED, help: str = "") -> None:
        self.name = name
        self.key = camel_case(name)
        self.place = place
        self.annotation = annotation
        self.default = default
        self.help = help
        self._shape: Shape | None = None

    @property
    def required(self) -> bool:
        return self.default is _REQUIRED

    @property
    def shape(self) -> Shape:
        if self._shape is None:
            self._shape = resolve(self.annotation)
        return self._shape


class Operation:
    """An operation; see :func:`operation` for most of its attributes.

    :ivar method: the name of the method of :class:`Api`.
    :ivar names: of all its parameters in Python, those that stay in the caller's process among them.
    """

    def __init__(self, stub: Callable[..., Any], verb: str, path: str, given: Mapping[str, Any]) -> None:
        self._stub = stub
        self.verb = verb
        self.path = path
        self.method = stub.__name__
        self.name: str = given["name"] or self.method
        self.rights: str = given["rights"]
        self.kind: str = given["kind"]
        self.body: str | None = given["body"]
        self.body_needed: bool = given["body_needed"]
        self.takes: str | None = given["takes"]
        self.gives: tuple[str, ...] = given["gives"]
        self.given_up: bool = given["given_up"]
        self.lasts: bool = given["lasts"]
        self._result: str | None = given["result"]
        self._further: tuple[Parameter, ...] = given["query"]
        code = stub.__code__
        self.names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
        self._positional = code.co_argcount - 1
        self._parameters: tuple[Parameter, ...] | None = None
        self._shape: Shape | None = None
        self._resolved = False

    @property
    def parts(self) -> tuple[str, ...]:
        """Of the path, behind ``/v1``."""
        return tuple(self.path.removeprefix("/v1").strip("/").split("/"))

    @property
    def summary(self) -> str:
        return (self._stub.__doc__ or "").partition("\n")[0]

    @property
    def documentation(self) -> str:
        return self._stub.__doc__ or ""

    @property
    def defaults(self) -> dict[str, Json]:
        """By name in Python."""
        values = self._stub.__defaults__ or ()
        names = self.names[self._positional - len(values) : self._positional]
        return {**dict(zip(names, values, strict=True)), **(self._stub.__kwdefaults__ or {})}

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters that are sent over the socket."""
        if self._parameters is None:
            self._parameters = (*self._find_parameters(), *self._further)
        return self._parameters

    def _find_parameters(self) -> list[Parameter]:
        annotations, defaults = self._stub.__annotations__, self.defaults
        found = []
        for name in self.names:
            annotation = annotations[name].removesuffix(" | None")
            if annotation.startswith(_CALLERS):
                continue
            if f"{{{name}}}" in self.path:
                place = "path"
            elif annotation in ("PodRequest", "EnterRequest"):
                place = "whole body"
            else:
                place = "query" if self.body is None else "body"
            missing = None if annotations[name] != annotation else _REQUIRED
            found.append(Parameter(name, place, annotations[name], defaults.get(name, missing)))
        return found

    @property
    def result(self) -> Shape | None:
        """The shape of the answer, or of each line of it; None: the answer is null, or is not JSON."""
        if not self._resolved:
            text: str = self._result or self._stub.__annotations__["return"]
            if text not in ("None", "bytes"):
                found = resolve(text.replace("Iterator[", "list["))
                each = text.startswith("Iterator") and isinstance(found, List)
                self._shape = found.inner if each and isinstance(found, List) else found
            self._resolved = True
        return self._shape

    def to_json(self, value: Any) -> Json:
        """A result as JSON, or one item of a result that is sent line by line. JSON objects are not changed."""
        result = self.result
        return value if result is None or isinstance(value, dict) else result.write(value)

    def arguments(self, given: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        """The arguments by their names in Python, with defaults for those left out.

        :raises TypeError: a parameter is unknown, or missing, or given twice.
        """
        if len(given) > self._positional:
            raise TypeError(
                f"{self.method} takes {self._positional} positional arguments, {len(given)} were given"
            )
        twice = set(self.names[: len(given)]) & named.keys()
        if twice:
            raise TypeError(f"{self.method}: given twice: {', '.join(sorted(twice))}")
        found = {**self.defaults, **dict(zip(self.names, given, strict=False)), **named}
        if len(found) != len(self.names) or not named.keys() <= set(self.names):
            wrong = sorted(set(found) ^ set(self.names))
            raise TypeError(f"{self.method}: wrong or missing arguments: {', '.join(wrong)}")
        return found


_TYPES = _Types(globals())


def resolve(annotation: str) -> Shape:
    """The shape of a type that an operation names."""
    return resolve_shape(annotation, _TYPES)


#: By name, in the order of their declaration.
OPERATIONS: dict[str, Operation] = {}


def operation(
    verb: str,
    path: str,
    *,
    name: str | None = None,
    rights: str = "full",
    kind: str = "json",
    body: str | None = None,
    body_needed: bool = True,
    takes: str | None = None,
    gives: tuple[str, ...] = ("application/octet-stream",),
    result: str | None = None,
    query: tuple[Parameter, ...] = (),
    given_up: bool = False,
    lasts: bool = False,
) -> Callable[[F], F]:
    """Declares the operation that the method below is.

    :param path: ``/v1/pods/{pod}``.
    :param name: as the OpenAPI document and the metrics call it; None: as the method.
    :param rights: that a caller needs: ``read`` or ``full``.
    :param kind: ``json``: the answer is the result; ``stream``: frames on an upgraded connection
        (:mod:`kurma_core.api.wire`); ``bytes``: a document; ``lines``: NDJSON.
    :param body: name of the schema of the body, whose keys are the parameters.
    :param body_needed: the body may not be left out.
    :param takes: content type of a body that is not JSON.
    :param gives: content types of an answer of kind ``bytes``.
    :param result: its type, where it is not that of the method.
    :param query: further parameters, which the client itself sets.
    :param given_up: it is cancelled when the caller goes away; else it is done to its end.
    :param lasts: it may take as long as it likes.
    """
    given = locals()

    def declare(stub: F) -> F:
        found = Operation(stub, verb, path, given)
        OPERATIONS[found.name] = found

        def call(self: Api, *args: Any, **named: Any) -> Any:
            return self.transport.call(found, found.arguments(args, named))

        call.__name__, call.__doc__ = stub.__name__, stub.__doc__
        made: Any = call
        return made  # type: ignore[no-any-return] # the stub says its type

    return declare


class Transport:
    """How a client's operations are done: in this process, or by kurmad."""

    #: Whether kurmad does it.
    remote = False

    def call(self, operation: Operation, arguments: dict[str, Any]) -> Any:
        """:param arguments: by name in Python, every one.

        :raises UsageError: this transport does not have the operation.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Ends the transport's own helpers, never a pod."""


ARCHIVE = "application/x-tar"
_JSON = "application/json"
NDJSON = "application/x-ndjson"
SSE = "text/event-stream"
#: Bytes of a body that is JSON, at most.
BODY_LIMIT = 4 << 20
_OF_TERMINALS = (
    Parameter("terminal", "query", "bool", False, "the client's standard input is a terminal"),
    Parameter("rows", "query", "TerminalSize", 24, "height of that terminal"),
    Parameter("columns", "query", "TerminalSize", 80, "width of that terminal"),
)
_HOLD = Parameter("hold", "query", "bool", False, "wait for the client's message before the start")
_FILE_NAME = Parameter("name", "query", "str", "archive.aci", "file name of the archive")


class _Managing(Transport):
    """Does operations as the program that manages the pods."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.remote = transport.remote

    def call(self, operation: Operation, arguments: dict[str, Any]) -> Any:
        if "managed" in arguments:
            arguments = {**arguments, "managed": True}
        return self._transport.call(operation, arguments)

    def close(self) -> None:
        self._transport.close()


class Api:
    """Kurma's operations. :param transport: does them."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    def managing(self) -> Api:
        """The same client for a program that manages pods (annotation ``kurma.io/manager``): its operations are
        not refused because a program manages the pod."""
        return Api(_Managing(self.transport))

    # -- pods --

    @operation("GET", "/v1/pods", rights="read")
    def pods(self) -> list[PodRecord]:
        """List pods, the oldest first."""

    @operation("GET", "/v1/listing", name="listing", rights="read")
    def summaries(self) -> list[PodSummary]:
        """List summaries of pods, the oldest first, for a table."""

    @operation("POST", "/v1/pods", name="pod_prepare", given_up=True)
    def prepare(self, request: PodRequest, progress: Progress | None = None, *, start: bool = False) -> PodRecord:
        """Prepare a pod.

        :param start: also start the pod, in the background
        """

    @operation("GET", "/v1/pods/{pod}", rights="read")
    def pod(self, pod: str) -> PodRecord:
        """Show a pod."""

    @operation("DELETE", "/v1/pods/{pod}", name="pod_remove")
    def rm(self, pod: str, *, force: bool = False, managed: bool = False) -> None:
        """Remove a pod that does not run.

        :param force: kill the apps at once
        :param managed: do it also if a program manages the pod, as that program itself does
        """

    @operation("POST", "/v1/pods/{pod}/start", name="pod_start")
    def launch(self, pod: str, *, managed: bool = False) -> PodRecord:
        """Start a prepared or ended pod in the background.

        :param managed: do it also if a program manages the pod, as that program itself does
        """

    @operation("POST", "/v1/pods/{pod}/stop", name="pod_stop")
    def stop(
        self,
        pod: str,
        *,
        force: bool = False,
        timeout: Seconds | None = None,
        again: bool = False,
        managed: bool = False,
    ) -> PodRecord:
        """Stop a pod.

        :param force: kill the apps at once
        :param timeout: seconds until apps that still run are killed
        :param again: the caller will start the pod again: refuse if it may not be started
        :param managed: do it also if a program manages the pod, as that program itself does
        """

    @operation("POST", "/v1/pods/{pod}/kill", name="pod_kill")
    def kill(self, pod: str, signal: SignalNumber = 15, app: str | None = None, *, managed: bool = False) -> None:
        """Send a signal to the apps of a pod.

        :param signal: number of the signal
        :param app: send the signal to this app only
        :param managed: do it also if a program manages the pod, as that program itself does
        """

    @operation("GET", "/v1/pods/{pod}/wait", name="pod_wait", rights="read", given_up=True, lasts=True)
    def wait(self, pod: str, *, condition: WaitCondition = "ended") -> PodRecord:
        """Wait until a pod ends, or has a health.

        :param condition: ``ended``, or the health that the pod must have; an error, if it ends before
        """

    @operation("POST", "/v1/pods/{pod}/healthcheck", name="pod_healthcheck", given_up=True)
    def healthcheck(self, pod: str, app: str | None = None) -> HealthRun:
        """Run the health check of an app now, and record its result.

        :param app: the app; required if several apps of the pod have a health check
        """

    @operation("POST", "/v1/pods/gc", name="pod_gc")
    def gc(self, *, grace: Seconds = 1800.0, dry_run: bool = False) -> Collected:
        """Clean up after dead pods, and remove old ended pods.

        :param grace: keep pods that ended less than this many seconds ago
        :param dry_run: report what would be done, and change nothing
        """

    @operation("GET", "/v1/usage", rights="read")
    def usage(self, pod: Collection[str] = (), *, details: bool = False) -> list[Usage]:
        """Show the resource usage of pods.

        :param pod: pods to measure; default: all running pods
        :param details: also measure throttling, pressure, parts of the memory, files, processes and interfaces;
            it reads what the apps have written
        """

    @operation("GET", "/v1/pods/{pod}/processes", name="pod_processes", rights="read")
    def processes(self, pod: str, app: str | None = None) -> list[Process]:
        """List the processes of a running pod.

        :param app: list the processes of this app only
        """

    @operation("GET", "/v1/pods/{pod}/logs", name="pod_logs", kind="lines", given_up=True)
    def log_lines(
        self,
        pod: str,
        app: str | None = None,
        *,
        follow: bool = False,
        tail: LineCount | None = None,
        since: Nanoseconds | None = None,
        stream: OutputStream | None = None,
        instance: Nanoseconds | None = None,
    ) -> Iterator[LogLine]:
        """Read the logs of a pod as JSON lines.

        :param app: read the logs of this app only
        :param follow: also send later output
        :param tail: of the present lines, only the last so many
        :param since: only output since this time, in nanoseconds since 1970
        :param stream: read this stream only
        :param instance: read this execution of the app only; -1: the one before the last
        """

    @operation("POST", "/v1/pods/{pod}/logs", name="pod_logs_in_frames", kind="stream", result="None")
    def logs(
        self,
        pod: str,
        app: str | None = None,
        *,
        follow: bool = False,
        tail: LineCount | None = None,
        since: Nanoseconds | None = None,
        stream: OutputStream | None = None,
        instance: Nanoseconds | None = None,
    ) -> Iterator[LogText]:
        """Read the logs of a pod as frames.

        :param app: read the logs of this app only
        :param follow: also send later output
        :param tail: of the present lines, only the last so many
        :param since: only output since this time, in nanoseconds since 1970
        :param stream: read this stream only
        :param instance: read this execution of the app only; -1: the one before the last
        """

    @operation("POST", "/v1/pods/run", name="pod_run", kind="stream", query=(*_OF_TERMINALS, _HOLD))
    def run(
        self,
        request: PodRequest,
        stdio: Stdio,
        output: Callable[[LogText], None],
        progress: Progress | None = None,
        prepared: Callable[[PodRecord], None] = lambda record: None,
    ) -> PodRecord:
        """Prepare a pod and run it, and send its output.

        It runs in the foreground, to its end. SIGINT, SIGTERM and SIGHUP stop it; a second one ends it by force.
        An ephemeral pod is removed at the end.

        :param output: gets each line of the apps' logs as it comes.
        :param prepared: gets the pod before it is started.
        :raises KurmaError: it could not be prepared (nothing is left) or started (it is recorded as errored, or,
            ephemeral, removed).
        """

    @operation("POST", "/v1/pods/{pod}/foreground", name="pod_foreground", kind="stream", query=_OF_TERMINALS)
    def start(
        self, pod: str, stdio: Stdio, output: Callable[[LogText], None], *, managed: bool = False
    ) -> PodRecord:
        """Start a prepared or ended pod, and send its output.

        :param managed: do it also if a program manages the pod, as that program itself does
        """

    @operation("POST", "/v1/pods/{pod}/enter", name="pod_enter", kind="stream", query=_OF_TERMINALS, result="Exit")
    def enter(self, pod: str, request: EnterRequest, stdio: Stdio) -> int:
        """Run a command in an app of a running pod.

        :returns: its exit code.
        """

    @operation(
        "POST", "/v1/pods/{pod}/attach", name="pod_attach", kind="stream", query=_OF_TERMINALS, result="Exit"
    )
    def attach(
        self, pod: str, app: str | None, stdio: Stdio, *, stdin: bool = True, detach_keys: str | None = None
    ) -> int:
        """Attach to a running app: to its new output and its standard input.

        :param app: the app; required if the pod has several
        :param stdin: pass input to the app
        :param detach_keys: keys that detach; default: ctrl-p,ctrl-q; empty: none
        :returns: the app's exit code if it ends meanwhile, 0 if the person left it.
        """

    @operation("POST", "/v1/pods/{pod}/annotations", body="Annotations")
    def pod_annotate(
        self,
        pod: str,
        *,
        set: Mapping[str, str] | None = None,
        remove: Collection[str] = (),
        app: str | None = None,
        managed: bool = False,
    ) -> PodRecord:
        """Set and remove annotations of a pod or of an app of it, in any state, in one step.

        Annotations that Kurma acts on cannot be changed.

        :param set: values by name
        :param remove: names; missing ones are ignored
        :param app: change the annotations of this app, not the pod's
        :param managed: do it also if a program manages the pod, as that program itself does
        """

    # -- apps --

    @operation("POST", "/v1/pods/{pod}/apps", given_up=True)
    def app_add(
        self,
        pod: str,
        request: PodRequest,
        *,
        start: bool = False,
        managed: bool = False,
        progress: Progress | None = None,
    ) -> PodRecord:
        """Add an app to a running pod.

        :param start: also start the app
        :param managed: do it also if a program manages the pod, as that program itself does
        """

    @operation("POST", "/v1/pods/{pod}/apps/{app}/start")
    def app_start(self, pod: str, app: str, *, managed: bool = False) -> PodRecord:
        """Start an added or ended app of a running pod.

        :param managed: do it also if a program manages the pod, as that program itself does
        """

    @operation("POST", "/v1/pods/{pod}/apps/{app}/stop", given_up=True)
    def app_stop(
        self,
        pod: str,
        app: str,
        *,
        force: bool = False,
        timeout: Seconds | None = None,
        managed: bool = False,
    ) -> PodRecord:
        """Stop an app of a running pod.

        A caller that goes away only stops waiting: the app is still stopped. A later stop with a shorter time ends
        the app sooner.

        :param force: kill the apps at once
        :param timeout: seconds until apps that still run are killed
        :param managed: do it also if a program manages the pod, as that program itself does
        """

    @operation("POST", "/v1/pods/{pod}/apps/{app}/reopen-log")
    def app_reopen_log(self, pod: str, app: str, *, managed: bool = False) -> None:
        """Go on with a new log file of an app, after the caller has renamed the present one.

        When it returns, the new file exists, and the old one gets nothing more. It is for apps whose logs are in
        the pod's log directory.

        :param managed: do it also if a program manages the pod, as that program itself does
        """

    @operation("POST", "/v1/pods/{pod}/apps/{app}/update", body="AppUpdate")
    def app_update(self, pod: str, app: str, isolators: Mapping[str, Json], *, managed: bool = False) -> PodRecord:
        """Change the resources of an app, also while it runs: all of them or none.

        A later start of the app or the pod keeps them.

        :param isolators: by name; each replaces the app's. Members of kurma.io/linux-resources that are missing,
            0 or empty stay as they are
        :param managed: do it also if a program manages the pod, as that program itself does
        """

    @operation("DELETE", "/v1/pods/{pod}/apps/{app}", name="app_remove")
    def app_rm(self, pod: str, app: str, *, force: bool = False, managed: bool = False) -> None:
        """Remove an ended app from a pod that runs or has ended.

        :param force: kill the apps at once
        :param managed: do it also if a program manages the pod, as that program itself does
        """

    # -- images --

    @operation("GET", "/v1/images", name="images", rights="read", result="list[ListedImage]")
    def images_list(self) -> ImageListing:
        """List images; damaged records are reported as messages."""

    @operation("POST", "/v1/images", body="ImageWish", given_up=True)
    def image_fetch(
        self,
        locator: Nonempty,
        *,
        pull: PullPolicy = "new",
        insecure: Collection[Nonempty] = (),
        credentials: FetchCredentials | None = None,
        manager: Nonempty | None = None,
        built: bool = False,
        progress: Progress | None = None,
    ) -> ImageRecord:
        """Fetch an image.

        :param insecure: checks to relax: ``image``, ``tls``, ``http``, ``pubkey``.
        :param credentials: credentials for the image's source, for this fetch only; null: this machine's
        :param manager: the program that manages the image from now on: garbage collection keeps the image until
            ``image_release``
        :param built: the image is a file of layers that a program has just built on this machine; it is
            signed with the key of images built here, so that its name finds it
        """

    @operation("POST", "/v1/images/upload", takes=ARCHIVE, query=(_FILE_NAME,), given_up=True)
    def image_upload(
        self,
        path: File,
        *,
        signature: File | None = None,
        insecure: Collection[str] = (),
        progress: Progress | None = None,
    ) -> ImageRecord:
        """Import an archive into the store. The header Kurma-Signature has its detached signature in base64.

        :param path: of the archive, a file of the caller's. :param signature: of its detached signature.
        :param insecure: check to relax: ``image``, ``tls``, ``http``, ``pubkey``
        """

    @operation("GET", "/v1/images/{image}", rights="read")
    def image(self, image: str) -> ImagePage:
        """Show an image."""

    @operation("GET", "/v1/images/{image}/manifest", kind="bytes", gives=(_JSON,))
    def image_manifest(self, image: str, *, original: bool = False) -> bytes:
        """Read an image's manifest, byte for byte.

        :param original: for an App Container 0.1.0 image: its original documents
        """

    @operation("GET", "/v1/images/{image}/archive", kind="bytes", gives=(ARCHIVE,), given_up=True)
    def image_archive(self, image: str, out: BinaryIO) -> None:
        """Read an image as an uncompressed archive, whose digest is the image's ID."""

    @operation("POST", "/v1/images/{image}/verify", given_up=True)
    def image_verify(self, image: str) -> ImageChecked:
        """Compare all files of an image with their digests."""

    @operation("POST", "/v1/images/{image}/render", given_up=True)
    def image_render(self, image: str, renderer: str | None = None, *, verify: bool = False) -> ImageRendered:
        """Render an image, and list its layer directories, top first.

        :param renderer: renderer plugin; default: the configured one
        :param verify: check the images' content again first
        """

    @operation("POST", "/v1/images/{image}/extract", body="Directory", given_up=True)
    def image_extract(self, image: str, directory: Path) -> ImageId:
        """Extract an image's root filesystem into a directory of the host, and return the image's ID."""

    @operation("POST", "/v1/images/{image}/push", body="ImageDestination", given_up=True)
    def image_push(
        self,
        image: str,
        locator: Nonempty | None = None,
        *,
        insecure: Collection[Nonempty] = (),
        credentials: FetchCredentials | None = None,
    ) -> ImagePushed:
        """Write an image to a registry, or to a file of the host.

        :param locator: the destination: an address that a fetcher can write to; null: where the image came from
        :param insecure: checks to relax: ``tls``, ``http``.
        :param credentials: credentials for the destination, for this operation only; null: this machine's
        """

    @operation("DELETE", "/v1/images/{image}", name="image_remove")
    def image_rm(self, image: str, *, dry_run: bool = False, managed: bool = False) -> ImageGc:
        """Remove an image that no pod uses.

        :param dry_run: report what would be done, and change nothing
        :param managed: do it also if a program manages the image
        """

    @operation("POST", "/v1/images/{image}/release", body="ImageRelease")
    def image_release(self, image: str, manager: Nonempty) -> ImageGc:
        """Give up an image for a program that manages it, and remove the image unless it is still needed.

        It stays while pods of this manager use it, or another program manages it.

        :param manager: the program
        :raises ImageError: a pod that this program does not manage uses the image.
        """

    @operation("POST", "/v1/images/gc")
    def image_gc(self, *, grace: Seconds = 86400.0, dry_run: bool = False) -> ImageGc:
        """Remove images that no pod has used for some time.

        :param grace: keep images that were used less than this many seconds ago
        :param dry_run: report what would be done, and change nothing
        """

    @operation("POST", "/v1/answers/{answer}", body="Answer")
    def answer(self, answer: str, passphrase: str | None = None) -> None:
        """Answer an operation that asks its client for a passphrase.

        :param passphrase: the passphrase in base64; null: the client has none
        """

    # -- keys --

    @operation("GET", "/v1/trust", name="trust", rights="read")
    def trust_list(self) -> list[TrustedKey]:
        """List the keys of the keystores."""

    @operation("POST", "/v1/trust/find", body="KeySearch", given_up=True)
    def trust_find(
        self, *, address: Nonempty | None = None, name: Nonempty | None = None, insecure: Collection[Nonempty] = ()
    ) -> list[Key]:
        """Get the keys at an address, or those that discovery finds for a name, without trusting them."""

    @operation("POST", "/v1/trust", body="KeyWish")
    def trust_add(
        self, key: Nonempty, *, source: str | None = None, prefix: Identifier | None = None
    ) -> TrustChange:
        """Trust a key.

        :param prefix: trust the key for images of this name; default: for all images
        """

    @operation("DELETE", "/v1/trust/{key}", name="trust_remove")
    def trust_rm(self, key: str, prefix: str | None = None, *, dry_run: bool = False) -> TrustChange:
        """Stop trusting a key.

        :param prefix: trust the key for images of this name; default: for all images
        :param dry_run: report what would be done, and change nothing
        """

    # -- networks --

    @operation("GET", "/v1/networks", name="networks", rights="read")
    def networks_list(self) -> list[NetworkInfo]:
        """List networks."""

    @operation("GET", "/v1/networks/{network}", rights="read")
    def network(self, network: str) -> NetworkInfo:
        """Show a network."""

    @operation("POST", "/v1/networks/check", body="NetworkCheck", body_needed=False)
    def network_check(
        self, names: Collection[Nonempty] = (), *, repair: bool = False, usable: bool = False
    ) -> list[NetworkFinding]:
        """Find problems of networks and leftovers of pods; with ``repair``, repair them.

        :param usable: only find out whether pods could join the networks now; it is quick, and repairs nothing
        """

    @operation("DELETE", "/v1/networks/{network}", name="network_remove")
    def network_rm(self, network: str) -> None:
        """Remove a network's bridge and rules from the host."""

    # -- secrets --

    @operation("GET", "/v1/secrets", name="secrets", rights="read")
    def secrets_list(self) -> list[SecretInfo]:
        """List secrets, without their values."""

    @operation("GET", "/v1/secrets/{secret}", rights="read")
    def secret(self, secret: str) -> SecretInfo:
        """Show a secret, without its value."""

    @operation("POST", "/v1/secrets", body="SecretWish")
    def secret_create(self, name: Nonempty, value: Nonempty, *, replace: bool = False) -> SecretInfo:
        """Create a secret. No operation returns its value.

        :param value: the value in base64: at most 512 KiB of any bytes
        :param replace: replace an existing secret
        """

    @operation("DELETE", "/v1/secrets/{secret}", name="secret_remove")
    def secret_rm(self, secret: str, *, force: bool = False) -> None:
        """Remove a secret.

        :param force: do it also if pods name it; they cannot start again then
        """

    # -- volumes --

    @operation("GET", "/v1/volumes", name="volumes", rights="read")
    def volumes_list(self) -> list[VolumeInfo]:
        """List named volumes."""

    @operation("GET", "/v1/volumes/{volume}", rights="read")
    def volume(self, volume: str) -> VolumeInfo:
        """Show a named volume."""

    @operation("POST", "/v1/volumes", body="VolumeWish")
    def volume_create(
        self,
        name: Nonempty,
        *,
        uid: OwnerId | None = None,
        gid: OwnerId | None = None,
        mode: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> VolumeInfo:
        """Create a named volume. One that exists with this owner, mode and labels is left as it is.

        :param uid: owner of its directory; null: as the first image at its place has it, or 0
        :param gid: group of its directory; null: the number of ``uid``
        :param mode: of its directory, in octal digits; null: as the first image at its place has it, or 0755
        """

    @operation("DELETE", "/v1/volumes/{volume}", name="volume_remove")
    def volume_rm(self, volume: str, *, force: bool = False) -> None:
        """Remove a named volume that no pod uses, with its files.

        :param force: succeed also if there is no such volume
        """

    @operation("POST", "/v1/volumes/prune", body="VolumePruneWish", body_needed=False)
    def volume_prune(self, *, only: Collection[str] | None = None, dry_run: bool = False) -> list[Removal]:
        """Remove named volumes that no pod uses, with their files.

        :param only: remove only volumes of these names; null: all
        :param dry_run: only report what would be done
        """

    # -- the host --

    @operation("GET", "/v1/stagers", rights="read")
    def stagers(self) -> list[StagerInfo]:
        """List the stagers that pods can name."""

    @operation("POST", "/v1/stagers/{stager}/build", given_up=True)
    def stager_build(self, stager: str, *, force: bool = False) -> HostImage:
        """Build or fetch a stager's image, and verify it.

        :param force: build the image even if it exists
        """

    @operation("POST", "/v1/stagers/check", body="StagerWish", given_up=True)
    def stager_check(self, image: Nonempty, tell: Callable[[CheckLine], None]) -> list[CheckLine]:
        """Run the contract suite on a stager, and send each line at once.

        :param tell: gets each line as soon as it is known.
        """

    @operation("GET", "/v1/isolators", rights="read")
    def isolators(self) -> list[IsolatorInfo]:
        """List isolators, and their effect on this host."""

    @operation("GET", "/v1/plugins", rights="read")
    def plugins(self, *, load: bool = True) -> list[PluginInfo]:
        """List kurmad's plugins, and the reasons of their failures.

        :param load: load the plugins, to report their status
        """

    @operation("GET", "/v1/info", rights="read")
    def info(self) -> HostInfo:
        """Describe this host and this installation."""

    @operation("POST", "/v1/reload")
    def reload(self) -> ReloadReport:
        """Make kurmad reload its configuration and look for plugins."""

    @operation("GET", "/v1/info/checks", rights="read")
    def host_checks(self) -> list[HostCheckInfo]:
        """Check this host for features that Kurma and enabled plugins need."""

    @operation("GET", "/v1/disk", name="disk", rights="read")
    def disk_use(self) -> list[DiskUse]:
        """Measure what is kept on the disk, by kind."""

    @operation("GET", "/v1/disk/images", name="image_store_use", rights="read")
    def image_store_use(self) -> StoreUse:
        """Sum what the records of the image store say of its size, without walking through the files."""

    @operation("POST", "/v1/prune", body="PruneWish", body_needed=False)
    def prune(
        self,
        *,
        all: bool = False,
        volumes: bool = False,
        grace: Seconds = 0.0,
        only: Collection[str] | None = None,
        dry_run: bool = False,
    ) -> Pruned:
        """Remove ended pods, what crashes left, and unused images, trees and downloads; on request, volumes.

        :param all: every image that no pod uses; else only those that a newer one has replaced
        :param volumes: also every named volume that no pod uses, with its files
        :param grace: keep what ended or was used less than this many seconds ago; no volume
        :param only: of pods, volumes and the image store remove only these, each as ``KIND/NAME`` of an earlier
            answer; null: all
        :param dry_run: only report what would be done
        """

    @operation("GET", "/v1/version", rights="read")
    def version(self) -> Version:
        """Return Kurma's version."""

    @operation("GET", "/healthz", rights="read", kind="bytes", gives=(_JSON,), result="Health")
    def healthz(self) -> bytes:
        """Check whether kurmad works: status 200, or 503 with the problem."""

    @operation("GET", "/metrics", rights="read", kind="bytes", gives=("text/plain; version=0.0.4; charset=utf-8",))
    def metrics(self) -> bytes:
        """Return metrics in the text format of Prometheus."""

    @operation("GET", "/v1/openapi.json", rights="read")
    def openapi(self) -> Json:
        """Return the OpenAPI description of this API."""

    @operation("GET", "/v1/events", rights="read", kind="bytes", result="Iterator[Event]", gives=(NDJSON, SSE))
    def events(
        self,
        since: Nanoseconds | None = None,
        *,
        follow: bool = False,
        pod: str | None = None,
        subject: Collection[EventSubject] = (),
        kind: Collection[EventKind] = (),
    ) -> Iterator[Event]:
        """Read and follow events, as JSON lines or server-sent events.

        :param since: only events after this number, as Last-Event-ID says, too; default: all kept events
        :param follow: also send new events; without ``since``, only new events
        :param pod: only events of this pod: its name, its UUID, or the start of it
        :param subject: only events of this subject
        :param kind: only events of this kind
        """
