"""Streams to the page: events as they come, usage while a page is open, and logs.

A reader that does not keep up with events is disconnected, so that it harms no other; the page then connects again
and reads everything anew. A reader of logs that does not keep up makes the reading of that log wait.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kurma_core.cancellation import Cancellation, governing, pause
from kurma_core.errors import Cancelled, HostError, KurmaError
from kurma_dashboard.views import event_json, log_json, usage_json

if TYPE_CHECKING:
    from logging import Logger

    from kurma_core.api.operations import Api

Json = Any
#: Seconds between two measurements.
_EVERY = 2.0
#: Messages that may wait for a reader.
_WAITING = 500


class Channel:
    """Messages from other threads to one reader."""

    def __init__(self, most: int = _WAITING) -> None:
        self._most = most
        self._messages: deque[tuple[str, Json]] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def offer(self, kind: str, value: Json) -> None:
        """Sends a message; closes the channel if too many wait."""
        with self._changed:
            if len(self._messages) >= self._most:
                self._closed = True
            elif not self._closed:
                self._messages.append((kind, value))
            self._changed.notify_all()

    def put(self, kind: str, value: Json) -> bool:
        """Sends a message, and waits for room. :returns: False: the channel is closed."""
        with self._changed:
            while len(self._messages) >= self._most and not self._closed:
                self._changed.wait()
            if not self._closed:
                self._messages.append((kind, value))
                self._changed.notify_all()
            return not self._closed

    def take(self, seconds: float) -> list[tuple[str, Json]] | None:
        """The messages that wait, after the first has come; none: none has come in time; None: it is closed."""
        end = time.monotonic() + seconds
        with self._changed:
            while not self._messages and not self._closed and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            if not self._messages and self._closed:
                return None
            found = list(self._messages)
            self._messages.clear()
            self._changed.notify_all()
            return found

    def close(self) -> None:
        """Messages that wait can still be taken. Repeatable."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Live:
    """Sends events and usage to all readers.

    :param failed: gets the error with which the events have ended.
    """

    def __init__(self, client: Api, log: Logger, failed: Callable[[KurmaError], None]) -> None:
        self._client, self._log, self._failed = client, log, failed
        self._readers: set[Channel] = set()
        self._changed = threading.Condition()
        self._ended = False

    def start(self, operation: Cancellation) -> list[threading.Thread]:
        """:param operation: its end ends them. :returns: the threads that it has started."""
        threads = [
            threading.Thread(target=self._run, args=(operation, work), name=f"dashboard-{name}", daemon=True)
            for name, work in (("events", self._events), ("usage", self._usage))
        ]
        for thread in threads:
            thread.start()
        return threads

    def open(self) -> Channel:
        channel = Channel()
        with self._changed:
            self._readers.add(channel)
            if self._ended:
                channel.close()
            self._changed.notify_all()
        return channel

    def close(self, channel: Channel) -> None:
        """Repeatable."""
        with self._changed:
            self._readers.discard(channel)
        channel.close()

    def end(self) -> None:
        """Closes all channels, and lets the threads end. Repeatable."""
        with self._changed:
            self._ended = True
            for channel in self._readers:
                channel.close()
            self._changed.notify_all()

    def _send(self, kind: str, value: Json) -> None:
        with self._changed:
            readers = list(self._readers)
        for channel in readers:
            channel.offer(kind, value)

    def _run(self, operation: Cancellation, work: Callable[[], None]) -> None:
        with governing(operation):
            try:
                work()
            except Cancelled:
                return
            except KurmaError as error:
                self._failed(error)
            except Exception as error:  # noqa: BLE001 (the thread belongs to the service alone)
                self._log.exception("dashboard: a mistake in the dashboard")
                self._failed(HostError(f"dashboard: a mistake in the dashboard: {type(error).__name__}"))

    def _events(self) -> None:
        for event in self._client.events(follow=True):
            self._send("event", event_json(event))
        raise HostError("dashboard: kurmad sends no more events")

    def _usage(self) -> None:
        while self._wait_for_reader():
            begun = time.monotonic()
            try:
                self._send("usage", usage_json(self._client.usage()))
            except KurmaError as error:
                self._log.debug("dashboard: usage: %s", error.message)
            # A slow measurement of many pods must not keep a processor busy.
            pause(max(_EVERY, 4 * (time.monotonic() - begun)))

    def _wait_for_reader(self) -> bool:
        """:returns: False: it has ended."""
        with self._changed:
            while not self._readers and not self._ended:
                self._changed.wait()
            return not self._ended


class LogReader:
    """Follows the log of a pod, in a thread of its own; for a ``with`` statement, which ends it.

    :param app: None: of all apps. :param tail: how many of the present lines.
    """

    def __init__(self, client: Api, pod: str, app: str | None, tail: int, operation: Cancellation) -> None:
        self._client, self._pod, self._app, self._tail = client, pod, app, tail
        self._operation = operation
        self.channel = Channel()
        self._thread = threading.Thread(target=self._run, name="dashboard-log", daemon=True)

    def __enter__(self) -> Channel:
        self._thread.start()
        return self.channel

    def __exit__(self, *_: object) -> None:
        self.channel.close()
        self._operation.cancel()
        self._thread.join()

    def _run(self) -> None:
        try:
            with governing(self._operation):
                for line in self._client.log_lines(self._pod, self._app, follow=True, tail=self._tail):
                    if not self.channel.put("line", log_json(line)):
                        return
                self.channel.put("end", None)
        except Cancelled:
            pass
        except KurmaError as error:
            self.channel.put("failed", {"message": error.message})
        finally:
            self.channel.close()
