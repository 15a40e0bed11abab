"""Threads of kurmad, on a host that may let it start no more of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from kurma_core.errors import BusyError


def begin(thread: threading.Thread) -> None:
    """Starts it. :raises BusyError: there are as many as the host, or the daemon's cgroup, lets it have."""
    try:
        thread.start()
    except RuntimeError:
        raise BusyError(
            "kurmad has as many threads as the host lets it have",
            hint="try again; or raise TasksMax= of its unit (pids.max of its cgroup)",
        ) from None


class Workers:
    """A pool of threads that loses no work where no thread can be started: a thread of the pool does it later. If
    there is none yet, the caller does it itself.

    :param at_once: the most threads. :param name: of the threads.
    """

    def __init__(self, at_once: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(at_once, name)
        self._closed = False
        #: Whether there is a thread: they stay until the pool is shut down.
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
            except BaseException as error:  # noqa: BLE001 (of whoever waits)
                done.set_exception(error)

        try:
            self._pool.submit(run)
            self._any = True
        except RuntimeError:
            if self._closed:
                raise
            if not self._any:
                run()
        return done

    def shutdown(self, *, cancel_futures: bool = False) -> None:
        """Waits for what has begun. :param cancel_futures: what has not begun is not done."""
        self._closed = True
        self._pool.shutdown(cancel_futures=cancel_futures)


__all__ = ["Workers", "begin"]
