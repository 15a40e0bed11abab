"""Reports kurmad's state: to the service manager (sd_notify(3)), and to the command that started kurmad."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from kurma_core.client.remote.starting import READY
from kurma_core.errors import KurmaError
from kurma_core.linux import service_manager

if TYPE_CHECKING:
    from kurma_core.linux.service_manager import Service

_LOG = logging.getLogger("kurmad")


@contextmanager
def reporting_readiness(environment: MutableMapping[str, str]) -> Iterator[Callable[[], None]]:
    """Tells the command that started kurmad (:mod:`kurma_core.client.remote.starting`) that it is ready, or why
    not.

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
        from kurma_core.api.errors import error_to_json
        from kurma_core.daemon.failures import internal

        report(error_to_json(error if isinstance(error, KurmaError) else internal(error)))
        raise
    finally:
        if left:
            os.close(left.pop())


class Notifier:
    """Notifies the service manager.

    :param service: None: there is no service manager.
    :param well: whether the daemon works; asked regularly if the service manager has a watchdog. It may take some
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
                _LOG.error("kurmad does not get on: the service manager is not told that it is well")


__all__ = ["Notifier", "reporting_readiness"]
