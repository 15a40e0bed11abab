"""Reads the arguments of a request, from its query and its JSON body, as the operation declares them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from kurma_core import schema
from kurma_core.cancellation import Cancellation
from kurma_core.errors import ManifestError, UsageError
from kurma_core.schema import SchemaError, child, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from kurma_core.api.host import DaemonInfo, Health
    from kurma_core.api.operations import Operation, Progress
    from kurma_core.api.pods import PodRequest
    from kurma_core.client.client import Client
    from kurma_core.client.local.managers import Managers
    from kurma_core.config import Config
    from kurma_core.daemon.http.exchange import Exchange
    from kurma_core.daemon.http.server import Server
    from kurma_core.daemon.http.streams import Stream
    from kurma_core.daemon.metrics import Metrics
    from kurma_core.daemon.pods.listing import Listing
    from kurma_core.daemon.pods.owned import RunningPod
    from kurma_core.daemon.pods.prestarted import PreparedPod
    from kurma_core.daemon.reload import Reloads
    from kurma_core.daemon.services import Services
    from kurma_core.models.streams import Stdio
    from kurma_core.pods.daemon_interface import DaemonInterface

Json = Any
#: Characters of a caller's words in an error.
_MOST = 60


class Daemon(Protocol):
    """:class:`kurma_core.daemon.kurmad.Daemon`, as operations use it."""

    config: Config
    client: Client
    managers: Managers
    server: Server
    metrics: Metrics
    listing: Listing
    pods: DaemonInterface
    reloads: Reloads
    services: Services

    def described(self) -> DaemonInfo: ...
    def health(self) -> Health: ...
    def running(self, reference: str) -> RunningPod | None: ...
    def launch(
        self,
        reference: str,
        stdio: Stdio | None = None,
        up: Callable[[RunningPod], None] = ...,
        *,
        prepared: PreparedPod | None = None,
        settled: Callable[[], None] = ...,
    ) -> RunningPod: ...
    def run(
        self, request: PodRequest, progress: Progress | None = None, up: Callable[[RunningPod], None] = ...
    ) -> RunningPod: ...
    def prepared(
        self, request: PodRequest, progress: Progress | None = None
    ) -> AbstractContextManager[PreparedPod]: ...


class Call:
    """One request for an operation.

    :param arguments: of the operation, by name in Python.
    """

    def __init__(
        self, daemon: Daemon, exchange: Exchange, operation: Operation, arguments: Mapping[str, Any]
    ) -> None:
        self.daemon = daemon
        self.exchange = exchange
        self.operation = operation
        self.arguments = arguments
        #: Of an operation of kind ``stream``.
        self.stream: Stream | None = None
        #: Cancelled to give up the work for this call.
        self.cancellation = Cancellation()

    @property
    def client(self) -> Client:
        return self.daemon.client

    def method_arguments(self, **further: Any) -> dict[str, Any]:
        """The arguments of the client's method. :param further: arguments that stay in the client's process."""
        own = {name: self.arguments[name] for name in self.operation.names if name in self.arguments}
        return {**own, **further}


def check_keys(operation: Operation, body: Json) -> None:
    """:raises UsageError: the body has a key that the operation does not have."""
    for one in operation.parameters:
        if one.place == "whole body":
            one.shape.find_unknown(body, "$", _refuse_key)
    if operation.body is not None and isinstance(body, dict):
        known = {one.key: one.shape for one in operation.parameters if one.place == "body"}
        for key, value in body.items():
            if key not in known:
                _refuse_key("$", key, list(known))
            known[key].find_unknown(value, child("$", key), _refuse_key)


def read_body(operation: Operation, body: Json) -> dict[str, Any]:
    """The arguments that are in the body, by name in Python.

    :raises UsageError: a request for a command is wrong. :raises ManifestError: another value is.
    """
    try:
        return _read_body(operation, body)
    except SchemaError as error:
        if operation.method == "enter":
            told = f"the request's body: {error}"
            raise UsageError(told, path=error.path, expected=error.expected, found=error.found) from None
        raise ManifestError(error.path, error.expected, error.found) from None


def _read_body(operation: Operation, body: Json) -> dict[str, Any]:
    for one in operation.parameters:
        if one.place == "whole body":
            return {one.name: one.shape.read(body, "$")}
    if operation.body is None:
        return {}
    value = {} if body is None and not operation.body_needed else body
    if not isinstance(value, dict):
        raise SchemaError("$", "an object", describe(value))
    found = {}
    for one in operation.parameters:
        if one.place == "body":
            given, where = value.get(one.key), child("$", one.key)
            if given is not None:
                found[one.name] = one.shape.read(given, where)
            elif one.required:
                raise SchemaError(where, one.shape.expected, "null" if one.key in value else schema.MISSING)
            else:
                found[one.name] = one.default
    return found


def _refuse_key(path: str, key: str, known: list[str]) -> None:
    raise UsageError(
        f"the request's body: {path} has an unknown key {key[:_MOST]!r}",
        hint=f"known keys: {', '.join(known)}; see /v1/openapi.json",
        unknown=True,
    )


def read_query(operation: Operation, given: list[tuple[str, str]]) -> dict[str, Any]:
    """The arguments that are in the query, by name in Python.

    :raises UsageError: one is unknown, given twice, or malformed.
    """
    known = {one.key: one for one in operation.parameters if one.place == "query"}
    found = {one.name: one.default for one in known.values()}
    seen: set[str] = set()
    for key, text in given:
        one = known.get(key)
        if one is None:
            raise UsageError(f"{operation.verb} {operation.path}: unknown parameter {key!r}", unknown=True)
        shape = one.shape.inner if isinstance(one.shape, schema.Maybe) else one.shape
        if isinstance(shape, schema.List):
            found[one.name] = (*found[one.name], _from_text(key, shape.inner, text))
            continue
        if key in seen:
            raise UsageError(f"parameter {key}: it is given more than once")
        seen.add(key)
        found[one.name] = _from_text(key, shape, text)
    return found


def _from_text(key: str, shape: schema.Shape, text: str) -> Any:
    """Parses a value of a query."""
    value: Json = text
    if isinstance(shape, schema.Flag):
        value = {"": True, "true": True, "false": False}.get(text)
    elif isinstance(shape, schema.Whole):
        digits = text.removeprefix("-")
        value = int(text) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None
    elif isinstance(shape, schema.Number):
        try:
            value = float(text)
        except ValueError:
            value = None
    try:
        return shape.read(value, key)
    except SchemaError as error:
        raise UsageError(f"parameter {key}: expected {error.expected}, found {describe(text)}") from None
