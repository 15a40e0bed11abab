"""What is to be done later, each thing at its time. While there is nothing, nobody wakes."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

from kurma_core.daemon.process.threads import Workers

_LOG = logging.getLogger("kurmad")


class Timetable:
    """:param name: of its threads. :param at_once: things that are done at a time."""

    def __init__(self, name: str, at_once: int) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._times: list[tuple[float, int, str]] = []
        #: By key: which entry counts, and what is to be done.
        self._entries: dict[str, tuple[int, Callable[[], None]]] = {}
        self._numbers = itertools.count()
        self._workers = Workers(at_once, name)
        self._thread: threading.Thread | None = None
        self._closing = False
        #: How many are being done.
        self._busy = 0
        #: Called, from any thread, when something was done.
        self.one_less: Callable[[], None] = lambda: None

    def at(self, key: str, delay: float, do: Callable[[], None]) -> None:
        """Has something done; what was to be done by that key before is not.

        :param delay: seconds until then.
        """
        with self._changed:
            if self._closing:
                return
            number = next(self._numbers)
            self._entries[key] = number, do
            heapq.heappush(self._times, (time.monotonic() + max(0.0, delay), number, key))
            self._begin()
            self._changed.notify()

    def start(self) -> None:
        """Starts the thread now. Else the first entry does, which waits for the next where no thread can be
        started.

        :raises RuntimeError: no thread can be started.
        """
        with self._changed:
            self._begin(required=True)

    def _begin(self, *, required: bool = False) -> None:
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            if required:
                raise
            _LOG.error("what is to be done later waits: no thread can be started")
        else:
            self._thread = thread

    def cancel(self, key: str) -> None:
        """May be repeated; what has begun goes on."""
        with self._changed:
            self._entries.pop(key, None)

    def waiting(self) -> bool:
        """Whether something is to be done, or is being done."""
        with self._changed:
            return bool(self._entries) or self._busy > 0

    def close(self) -> None:
        """Nothing more is begun; what has begun comes to its end."""
        with self._changed:
            self._closing = True
            self._entries.clear()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        self._workers.shutdown(cancel_futures=True)

    def _run(self) -> None:
        with self._changed:
            while not self._closing:
                now = time.monotonic()
                while self._times and self._times[0][0] <= now:
                    _, number, key = heapq.heappop(self._times)
                    if self._entries.get(key, (None,))[0] == number:
                        self._busy += 1
                        self._workers.submit(self._do, self._entries.pop(key)[1])
                self._changed.wait(self._times[0][0] - now if self._times else None)

    def _do(self, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception:  # noqa: BLE001 (the daemon goes on)
            _LOG.exception("a mistake in kurmad")
        finally:
            with self._changed:
                self._busy -= 1
            self.one_less()


__all__ = ["Timetable"]
