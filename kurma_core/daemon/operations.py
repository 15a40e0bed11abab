"""What the API can do: a table of operations, from which requests are served and the OpenAPI document is written.

A module of operations (``pods``, ``images``, …) declares each by :func:`operation` above its handler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kurma_core.cancellation import Cancellation
from kurma_core.errors import UsageError
from kurma_core.value import frozen

if TYPE_CHECKING:
    from kurma_core.client.local import LocalClient
    from kurma_core.daemon.http.daemon import Daemon
    from kurma_core.daemon.http.exchange import Exchange
    from kurma_core.daemon.http.streams import Stream

Json = Any
#: What a handler of that kind is, and what it answers with.
KINDS = ("json", "stream", "bytes", "lines")
#: Nanoseconds since 1970 are in it.
_WIDEST = 2**63 - 1


@frozen
class Query:
    """A parameter in the query.

    :param kind: ``text``, ``flag``, ``whole`` or ``seconds``.
    :param least: and ``most``: what a whole number may be.
    """

    name: str
    kind: str
    help: str
    choices: tuple[str, ...] = ()
    many: bool = False
    default: Json = None
    least: int = -_WIDEST
    most: int = _WIDEST


@frozen
class Spec:
    """An operation.

    :param path: ``/v1/pods/{pod}``.
    :param rights: of who may ask for it: ``read`` or ``full``.
    :param kind: ``json``: the handler's value is the answer; ``stream``: it speaks frames on an upgraded
        connection (:mod:`kurma_core.client.frames`); ``bytes``: it answers by itself; ``lines``: what it yields is
        NDJSON.
    :param body: name of the schema (:mod:`kurma_core.daemon.schemas`) of the request's body; None: it has none
        that is JSON.
    :param body_needed: the body may not be left out.
    :param takes: content type of a body that is no JSON, and that the handler reads by itself.
    :param result: name of the schema of the answer, of each line of one of kind ``lines``; None: it is null.
    :param gives: content types of an answer of kind ``bytes``.
    :param lasts: it may take as long as it likes, as does whatever follows.
    :param given_up: it is cancelled when who asked for it goes away; else it is done to its end.
    """

    name: str
    method: str
    path: str
    summary: str
    handler: Callable[[Call], Json]
    rights: str = "full"
    kind: str = "json"
    query: tuple[Query, ...] = ()
    body: str | None = None
    result: str | None = None
    given_up: bool = False
    body_needed: bool = True
    takes: str | None = None
    gives: tuple[str, ...] = ("application/octet-stream",)
    lasts: bool = False


class Call:
    """One request for an operation.

    :param path: the values of what stands in braces in its path.
    :param query: by name; what is not given has its default.
    :param body: the JSON that came.
    """

    def __init__(
        self, daemon: Daemon, exchange: Exchange, path: Mapping[str, str], query: Mapping[str, Json], body: Json
    ) -> None:
        self.daemon = daemon
        self.exchange = exchange
        self.path = path
        self.query = query
        self.body = body
        #: of an operation of kind ``stream``
        self.stream: Stream | None = None
        #: cancelled: what is done for this is given up
        self.cancellation = Cancellation()

    @property
    def client(self) -> LocalClient:
        return self.daemon.client


TABLE: list[Spec] = []


def operation(
    method: str,
    path: str,
    summary: str,
    *,
    rights: str = "full",
    kind: str = "json",
    query: tuple[Query, ...] = (),
    body: str | None = None,
    result: str | None = None,
    given_up: bool = False,
    body_needed: bool = True,
    takes: str | None = None,
    gives: tuple[str, ...] = ("application/octet-stream",),
    lasts: bool = False,
) -> Callable[[Callable[[Call], Json]], Callable[[Call], Json]]:
    """Puts the function below it into the table."""

    def declare(handler: Callable[[Call], Json]) -> Callable[[Call], Json]:
        shape = (rights, kind, query, body, result, given_up, body_needed, takes, gives, lasts)
        TABLE.append(Spec(handler.__name__, method, path, summary, handler, *shape))
        return handler

    return declare


def parameters(spec: Spec, given: list[tuple[str, str]]) -> dict[str, Json]:
    """The query's values. :raises UsageError: one is not known, said twice, or nonsense."""
    known = {query.name: query for query in spec.query}
    found: dict[str, Json] = {query.name: () if query.many else query.default for query in spec.query}
    said: set[str] = set()
    for name, text in given:
        query = known.get(name)
        if query is None:
            raise UsageError(f"{spec.method} {spec.path}: there is no parameter {name!r}", unknown=True)
        if name in said and not query.many:
            raise UsageError(f"parameter {name}: it is given more than once")
        said.add(name)
        value = _value(query, text)
        found[name] = (*found[name], value) if query.many else value
    return found


def _value(query: Query, text: str) -> Json:
    if query.kind == "flag":
        if text not in ("", "true", "false"):
            raise UsageError(f"parameter {query.name}: {text!r} is neither true nor false")
        return text != "false"
    if query.kind == "whole":
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
            raise UsageError(f"parameter {query.name}: {text!r} is no whole number")
        if not query.least <= int(text) <= query.most:
            raise UsageError(f"parameter {query.name}: {text} is no whole number{_bounds(query)}")
        return int(text)
    if query.kind == "seconds":
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds < 1e9:
            raise UsageError(f"parameter {query.name}: {text!r} is no number of seconds")
        return seconds
    if query.choices and text not in query.choices:
        raise UsageError(f"parameter {query.name}: {text!r} is none of {', '.join(query.choices)}")
    return text


def _bounds(query: Query) -> str:
    if query.most < _WIDEST:
        return f" from {query.least} to {query.most}"
    return f", {query.least} or more" if query.least > -_WIDEST else ""


__all__ = ["TABLE", "Call", "Query", "Spec", "operation", "parameters"]
