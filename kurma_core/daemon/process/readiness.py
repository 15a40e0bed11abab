"""What the service manager is told of the daemon: sd_notify(3)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from kurma_core.linux import service_manager

if TYPE_CHECKING:
    from kurma_core.linux.service_manager import Service

_LOG = logging.getLogger("kurmad")


class Notifier:
    """:param service: None: nobody wants to know.
    :param well: whether the daemon works; asked now and then if the service manager watches it. It may take some
        seconds.
    """

    def __init__(self, service: Service | None, well: Callable[[], bool]) -> None:
        self._address = service.notify if service is not None else None
        self._watchdog = service.watchdog if service is not None and service.notify is not None else None
        self._well = well
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def ready(self, status: str) -> None:
        """Requests are answered, for the first time or again."""
        self._tell(f"READY=1\nSTATUS={status}")
        if self._watchdog is not None and self._thread is None:
            self._thread = threading.Thread(
                target=self._watch, args=(self._watchdog,), name="watchdog", daemon=True
            )
            self._thread.start()

    def status(self, text: str) -> None:
        self._tell(f"STATUS={text}")

    def reloading(self) -> None:
        self._tell(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        self._closing.set()
        self._tell("STOPPING=1\nSTATUS=ends")

    def _tell(self, text: str) -> None:
        if self._address is not None:
            service_manager.tell(self._address, text)

    def _watch(self, seconds: float) -> None:
        """Three times within what the service manager waits for, so that one may be late."""
        while not self._closing.wait(seconds / 3):
            if self._well():
                self._tell("WATCHDOG=1")
            else:
                _LOG.error("kurmad does not get on: the service manager is not told that it is well")


__all__ = ["Notifier"]
