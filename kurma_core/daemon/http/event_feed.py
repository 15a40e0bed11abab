"""Follows the journal of events for clients that ask for events to come."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kurma_core.daemon.http.exchange import Gone
from kurma_core.daemon.process.threads import begin
from kurma_core.errors import HostError

if TYPE_CHECKING:
    from kurma_core.daemon.http.exchange import Exchange
    from kurma_core.daemon.http.server import Server
    from kurma_core.journal import Cursor, Event, Journal
    from kurma_core.linux.inotify import Watch


class EventFeed:
    """Wakes clients that follow the journal. They share one watch, which exists only while a client follows."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._changed = threading.Condition()
        self._turn = 0
        self._followers = 0
        self._closing = False
        self._stop: int | None = None

    def close(self) -> None:
        """Ends :meth:`follow` for all clients."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def follow(self, cursor: Cursor, server: Server, exchange: Exchange) -> Iterator[list[Event]]:
        """Yields the events that there are, and then those that come.

        :raises Gone: the client has disconnected, or the daemon ends.
        :raises HostError: the kernel allows no more watches.
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
            # The answer is broken off, not ended: there may be more events.
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
        """Starts the watching thread. :returns: the eventfd that ends it.

        :raises BusyError: no thread can be started.
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


__all__ = ["EventFeed"]
