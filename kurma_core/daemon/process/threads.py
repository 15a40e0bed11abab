"""Threads of kurmad: a pool of workers, a poller of descriptors, a timetable of delayed work."""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import select
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from kurma_core.errors import BusyError

_LOG = logging.getLogger("kurmad")
#: Seconds: the first pause after a failure of background work, and the longest.
_FIRST, _LONGEST = 1.0, 300.0


def pause_after(failures: int) -> float:
    """Seconds until the next attempt at background work: they double with each failure.

    :param failures: before the last one.
    """
    return min(_LONGEST, _FIRST * 2.0 ** min(failures, 20))


def begin(thread: threading.Thread) -> None:
    """Starts a thread. :raises BusyError: the host, or the daemon's cgroup, allows no more."""
    try:
        thread.start()
    except RuntimeError:
        raise BusyError(
            "kurmad cannot start a thread: the host's limit is reached",
            hint="try again; or raise TasksMax= of its unit (pids.max of its cgroup)",
        ) from None


class Workers:
    """A pool of threads that loses no work if no thread can be started: a running thread of the pool does it
    later. If the pool has no thread yet, the caller does the work.

    :param at_once: the most threads. :param name: of the threads.
    """

    def __init__(self, at_once: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(at_once, name)
        self._closed = False
        #: Whether a thread was started: threads stay until the pool is shut down.
        self._any = False

    def submit(self, work: Callable[..., object], *arguments: object) -> Future[object]:
        """:raises RuntimeError: the pool is shut down."""
        done: Future[object] = Future()
        first = threading.Lock()

        def run() -> None:
            if not first.acquire(blocking=False):
                return
            try:
                done.set_result(work(*arguments))
            except BaseException as error:  # noqa: BLE001 (raised in the thread that waits for the result)
                done.set_exception(error)

        try:
            self._pool.submit(run)
            self._any = True
        except RuntimeError:
            if self._closed:
                raise
            # The pool keeps the work for the next thread that is free.
            if not self._any:
                run()
        return done

    def shutdown(self, *, cancel_futures: bool = False) -> None:
        """Waits for work that has begun. :param cancel_futures: drops work that has not."""
        self._closed = True
        self._pool.shutdown(cancel_futures=cancel_futures)


class Poller:
    """A thread that waits for descriptors, and calls the function of each that is ready.

    :param name: of the thread.
    :param wait: called by the thread before each wait; returns its longest time in seconds, None: any time.
    """

    def __init__(self, name: str, wait: Callable[[], float | None] = lambda: None) -> None:
        self._wait = wait
        self._lock = threading.Lock()
        self._calls: dict[int, Callable[[], object]] = {}
        self._poll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._wake, select.EPOLLIN)
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.closing = False

    def start(self) -> None:
        self._thread.start()

    def alive(self) -> bool:
        return self._thread.is_alive()

    def answers(self, patience: float) -> bool:
        """Whether the thread gets on. :param patience: in seconds."""
        self._woken.clear()
        self.wake()
        return self._woken.wait(patience)

    def wake(self) -> None:
        """Ends the present wait."""
        os.eventfd_write(self._wake, 1)

    def add(self, fd: int, call: Callable[[], object], events: int = select.EPOLLIN) -> None:
        """Calls ``call`` when the descriptor is ready, until it is removed or closed."""
        with self._lock:
            self._calls[fd] = call
        self._poll.register(fd, events)

    def remove(self, fd: int) -> None:
        """Repeatable."""
        with self._lock:
            if self._calls.pop(fd, None) is not None:
                self._poll.unregister(fd)

    def close(self) -> None:
        """Waits for the function that is running. Repeatable."""
        self.closing = True
        self.wake()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            timeout = self._wait()
            if self.closing:
                return
            for fd, _ in self._poll.poll(timeout):
                if fd == self._wake:
                    os.eventfd_read(fd)
                    self._woken.set()
                    continue
                with self._lock:
                    call = self._calls.get(fd)
                if call is not None:
                    call()


class Timetable:
    """Does each piece of work at its time. Its thread sleeps while nothing is due.

    :param name: of its threads. :param at_once: the most pieces of work at a time.
    """

    def __init__(self, name: str, at_once: int) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._times: list[tuple[float, int, str]] = []
        #: By key: the number of the entry that counts, and its work.
        self._entries: dict[str, tuple[int, Callable[[], None]]] = {}
        self._numbers = itertools.count()
        self._workers = Workers(at_once, name)
        self._thread: threading.Thread | None = None
        self._closing = False
        #: Pieces of work that have begun.
        self._busy = 0
        #: Called, from any thread, after each piece of work.
        self.on_done: Callable[[], None] = lambda: None

    def at(self, key: str, delay: float, do: Callable[[], None]) -> None:
        """Plans work, in place of earlier work with the same key.

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
        """Starts the thread now; otherwise the first entry does, or a later one if no thread can be started then.

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
            _LOG.error("cannot start a thread for delayed work (%s): it waits", self._name)
        else:
            self._thread = thread

    def cancel(self, key: str) -> None:
        """Drops the planned work of that key; work that has begun is completed. Repeatable."""
        with self._changed:
            self._entries.pop(key, None)

    def pending(self) -> bool:
        """Whether work is planned or has begun."""
        with self._changed:
            return bool(self._entries) or self._busy > 0

    def close(self) -> None:
        """Drops all planned work, and waits for work that has begun."""
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
            self.on_done()
