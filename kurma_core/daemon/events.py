"""Events over the API: what stands in the journal, and what comes, to as many as want to hear of it."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kurma_core.api.host import KINDS, SUBJECTS
from kurma_core.daemon.http.exchange import NDJSON, Exchange, Gone, json_line
from kurma_core.daemon.operations import Call, Query, operation
from kurma_core.errors import HostError, UsageError
from kurma_core.journal import Cursor

if TYPE_CHECKING:
    from collections.abc import Callable

    from kurma_core.api.host import Event
    from kurma_core.journal import Journal

Json = Any
SSE = "text/event-stream"


_QUERY = (
    Query("since", "whole", "only events behind that number (Last-Event-ID says it, too); else all that are kept"),
    Query("follow", "flag", "and those that come; without since, only those", default=False),
    Query("pod", "text", "only of pods of that name, UUID, or beginning of one"),
    Query("subject", "text", "only of such", choices=SUBJECTS, many=True),
    Query("kind", "text", "only such", choices=tuple(dict.fromkeys(sum(KINDS.values(), ()))), many=True),
)


@operation(
    "GET",
    "/v1/events",
    "What has happened, and what happens: a line of JSON for each, or server-sent events.",
    rights="read",
    kind="bytes",
    query=_QUERY,
    result="Event",
    gives=(NDJSON, SSE),
)
def events(call: Call) -> None:
    from kurma_core.client.happenings import wanted

    exchange, query = call.exchange, call.query
    sent = SSE in exchange.headers.get("accept", "")
    journal = call.client.journal
    cursor = Cursor(journal, _since(call))
    fits = wanted(query["pod"], query["subject"], query["kind"])
    try:
        if not query["follow"]:
            batches: Iterator[list[Event]] = iter([list(cursor.read())])
        else:
            batches = _follow(cursor, journal, exchange)
        first = next(batches, [])
        exchange.begin(SSE if sent else NDJSON)
        form = _sent if sent else _line
        _send(exchange, form, filter(fits, first))
        for batch in batches:
            _send(exchange, form, filter(fits, batch))
    finally:
        cursor.close()
    exchange.end()


def _follow(cursor: Cursor, journal: Journal, exchange: Exchange) -> Iterator[list[Event]]:
    """Yields the events that there are, and then those that come.

    :raises Gone: the client has disconnected, or the daemon ends, which closes connections.
    :raises HostError: the kernel allows no more watches.
    """
    try:
        watch = journal.watch()
    except OSError as error:
        raise HostError(f"events cannot be followed: {error.strerror}", errno=error.errno) from None
    poll = select.poll()
    poll.register(watch, select.POLLIN)
    poll.register(exchange.socket, select.POLLRDHUP)
    with contextlib.closing(watch):
        ready: list[int] = []
        while exchange.socket.fileno() not in ready:
            yield list(cursor.read())
            ready = [fd for fd, _ in poll.poll()]
            watch.drain()
    # The answer is broken off, not ended: there may be more events.
    raise Gone


def _since(call: Call) -> int | None:
    """:raises UsageError: Last-Event-ID is no number."""
    last = call.exchange.headers.get("last-event-id")
    given = call.query["since"]
    if given is None and last is not None:
        if not (last.isascii() and last.isdigit() and len(last) < 20):
            raise UsageError("Last-Event-ID is no number of an event")
        given = int(last)
    if given is not None and given < 0:
        raise UsageError("parameter since: an event's number is not negative")
    if given is None:
        return None if call.query["follow"] else 0
    return int(given)


def _send(exchange: Exchange, form: Callable[[Event], bytes], found: Iterator[Event]) -> None:
    data = b"".join(form(event) for event in found)
    if data:
        exchange.piece(data)


def _line(event: Event) -> bytes:
    return json_line(event.to_json())


def _sent(event: Event) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n" % (event.seq, event.kind.encode(), _line(event))
