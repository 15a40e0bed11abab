"""Notifies the service manager or the starting command of readiness, trims memory, ends an idle kurmad."""

from __future__ import annotations

import gc
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from kurma_core.client.remote.start_kurmad import READY
from kurma_core.daemon.process import service_manager
from kurma_core.errors import KurmaError
from kurma_core.linux import libc
from kurma_core.linux.files import lock_file

if TYPE_CHECKING:
    from kurma_core.daemon.process.service_manager import Service

_LOG = logging.getLogger("kurmad")
#: Seconds from work to trimming. A trim stops all threads for some milliseconds: a thousandth of the time at most.
TRIM_AFTER = 10.0


@contextmanager
def reporting_readiness(environment: MutableMapping[str, str]) -> Iterator[Callable[[], None]]:
    """Reports to the command that started kurmad (:mod:`kurma_core.client.remote.start_kurmad`) that it is ready,
    or why it is not.

    For a ``with`` statement around the daemon's whole life. Yields the function to call once kurmad is ready. An
    error before that is reported instead. Does nothing if no command started kurmad.
    """
    text = environment.pop(READY, "")
    if not text.isdecimal():
        yield lambda: None
        return
    fd = int(text)
    left = [fd]
    os.set_inheritable(fd, False)

    def report(message: object) -> None:
        if left:
            with suppress(OSError):  # the command may have ended: kurmad is ready all the same
                os.write(fd, json.dumps(message).encode())
            os.close(left.pop())

    try:
        yield lambda: report({"ready": os.getpid()})
    except Exception as error:
        from kurma_core.api.wire import error_to_json
        from kurma_core.daemon.http.error_status import internal_error

        report(error_to_json(error if isinstance(error, KurmaError) else internal_error(error)))
        raise
    finally:
        if left:
            os.close(left.pop())


class Notifier:
    """Notifies the service manager.

    :param service: None: there is no service manager.
    :param well: whether the daemon works; called regularly if the service manager has a watchdog. It may take some
        seconds.
    """

    def __init__(self, service: Service | None, well: Callable[[], bool]) -> None:
        self._address = service.notify if service is not None else None
        self._watchdog = service.watchdog if service is not None and service.notify is not None else None
        self._well = well
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def ready(self, status: str) -> None:
        """Requests are answered: after the start, or after a reload."""
        self._notify(f"READY=1\nSTATUS={status}")
        if self._watchdog is not None and self._thread is None:
            self._thread = threading.Thread(
                target=self._watch, args=(self._watchdog,), name="watchdog", daemon=True
            )
            self._thread.start()

    def status(self, text: str) -> None:
        self._notify(f"STATUS={text}")

    def reloading(self) -> None:
        self._notify(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        self._closing.set()
        self._notify("STOPPING=1\nSTATUS=ends")

    def _notify(self, text: str) -> None:
        if self._address is not None:
            service_manager.tell(self._address, text)

    def _watch(self, seconds: float) -> None:
        # Three times within the watchdog's limit, so that one notification may be late.
        while not self._closing.wait(seconds / 3):
            if self._well():
                self._notify("WATCHDOG=1")
            else:
                _LOG.error("kurmad is stuck: it sends the service manager no watchdog message")


class MemoryTrimmer:
    """Collects garbage and trims the heap some time after each work.

    Reference cycles stay until Python has made enough other objects, and free pages stay in the heap between used
    ones: without this, memory would grow for a long time. The thread sleeps while kurmad does nothing.

    :param after: seconds from work to trimming.
    """

    def __init__(self, after: float = TRIM_AFTER) -> None:
        self._after = after
        self._worked = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trim", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def trim_later(self) -> None:
        """Work was done. Any thread may call it, at any rate."""
        if not self._worked.is_set():
            self._worked.set()

    def close(self) -> None:
        """Repeatable."""
        self._closing.set()
        self._worked.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._worked.wait()
            if self._closing.wait(self._after):
                return
            # Before trimming: work that is done meanwhile is trimmed after as well.
            self._worked.clear()
            gc.collect()
            libc.trim_heap()


class IdleEnd:
    """Ends a kurmad without connections, pods and planned work after a while.

    A client that connects at that moment is served, or starts another kurmad: the end is decided under the lock
    for starting kurmad (:mod:`kurma_core.client.remote.start_kurmad`), after the socket was shut and the
    connections were counted again. Used by the accepting thread only.

    :param after: seconds without work.
    :param connections: counts the connections.
    :param has_work: whether there is, or is planned, work besides connections.
    :param lock: path of the lock for starting kurmad.
    :param shut: shuts the sockets, as :meth:`Server.shut`.
    :param listen: listens again, or ends the daemon; raises nothing.
    :param end: ends the daemon; returns at once.
    """

    def __init__(
        self,
        after: float,
        connections: Callable[[], int],
        has_work: Callable[[], bool],
        lock: str,
        shut: Callable[[], bool],
        listen: Callable[[], None],
        end: Callable[[], None],
    ) -> None:
        self._after = after
        self._connections = connections
        self._has_work = has_work
        self._lock_path = lock
        self._shut = shut
        self._listen = listen
        self._end = end
        self._until: float | None = None
        self._lock: int | None = None

    def touch(self) -> None:
        """Starts counting the seconds anew."""
        self._until = None

    def remaining(self) -> float | None:
        """Seconds until the end, if nothing happens; None: there is work."""
        if self._connections() or self._has_work():
            self._until = None
            return None
        now = time.monotonic()
        if self._until is None:
            self._until = now + self._after
        return max(self._until - now, 0.0)

    def look(self) -> bool:
        """Ends the daemon if it has been idle for long enough. :returns: whether it has."""
        if self.remaining() != 0.0:
            return False
        try:
            self._lock = lock_file(self._lock_path, wait=False)
        except OSError:  # a command is about to connect or to start a daemon
            self.touch()
            return False
        if self._client_came() or self._has_work():
            self.close()
            self.touch()
            return False
        _LOG.info("ends: nothing to do for %g seconds", self._after)
        self._end()
        return True

    def _client_came(self) -> bool:
        """Shuts the sockets, and accepts the connections that were made before."""
        if not self._shut() or not self._connections():
            return False
        self._listen()
        return True

    def close(self) -> None:
        """Lets another kurmad be started, once this one has ended. Repeatable."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
