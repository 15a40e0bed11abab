"""Events over the API: what stands in the journal, and what comes, to as many as want to hear of it."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kurma_core.daemon.http.exchange import NDJSON, Exchange, Gone, json_line
from kurma_core.daemon.operations import Call, Query, operation
from kurma_core.daemon.process.threads import begin
from kurma_core.errors import HostError, UsageError
from kurma_core.journal import KINDS, SUBJECTS, Cursor

if TYPE_CHECKING:
    from collections.abc import Callable

    from kurma_core.daemon.http.server import Server
    from kurma_core.journal import Event, Journal
    from kurma_core.linux.inotify import Watch

Json = Any
SSE = "text/event-stream"


class Feed:
    """One watch on the journal for all who follow it; none while nobody does."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._changed = threading.Condition()
        self._turn = 0
        self._followers = 0
        self._closing = False
        self._stop: int | None = None

    def close(self) -> None:
        """Those who follow are let go."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def follow(self, cursor: Cursor, server: Server, exchange: Exchange) -> Iterator[list[Event]]:
        """What there is, and what comes.

        :raises Gone: who asked has, or the daemon ends.
        :raises HostError: the kernel lets nobody watch any more.
        """
        gone = False

        def leave() -> None:
            nonlocal gone
            with self._changed:
                gone = True
                self._changed.notify_all()

        self._enter()
        server.when_gone(exchange, leave)
        try:
            while not (gone or self._closing):
                turn = self._turn
                yield list(cursor.read())
                with self._changed:
                    while turn == self._turn and not (gone or self._closing):
                        self._changed.wait()
            # No end of what was asked for: there may be more that nobody tells.
            raise Gone
        finally:
            server.unwatch(exchange)
            self._leave()

    def _enter(self) -> None:
        with self._changed:
            if self._followers == 0:
                self._stop = self._start()
            self._followers += 1

    def _start(self) -> int:
        """Begins to watch. :returns: what ends that.

        :raises BusyError: there is no thread left for it.
        """
        with contextlib.ExitStack() as undo:
            try:
                watch = self._journal.watch()
                undo.callback(watch.close)
                stop = os.eventfd(0, os.EFD_CLOEXEC)
                undo.callback(os.close, stop)
            except OSError as error:
                raise HostError(f"events cannot be followed: {error.strerror}", errno=error.errno) from None
            begin(threading.Thread(target=self._run, args=(watch, stop), name="events", daemon=True))
            undo.pop_all()
            return stop

    def _leave(self) -> None:
        with self._changed:
            self._followers -= 1
            if self._followers == 0 and self._stop is not None:
                os.eventfd_write(self._stop, 1)
                self._stop = None

    def _run(self, watch: Watch, stop: int) -> None:
        poll = select.poll()
        poll.register(watch.fd, select.POLLIN)
        poll.register(stop, select.POLLIN)
        try:
            while all(fd != stop for fd, _ in poll.poll()):
                watch.drain()
                with self._changed:
                    self._turn += 1
                    self._changed.notify_all()
        finally:
            watch.close()
            os.close(stop)


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
            batches = call.daemon.feed.follow(cursor, call.daemon.server, exchange)
        first = next(batches, [])
        exchange.begin(SSE if sent else NDJSON)
        form = _sent if sent else _line
        _send(exchange, form, filter(fits, first))
        for batch in batches:
            _send(exchange, form, filter(fits, batch))
    finally:
        cursor.close()
    exchange.end()


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


__all__ = ["Feed"]
