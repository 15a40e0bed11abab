"""A while after it has done something, the daemon gives back the memory that this took.

A pod that has gone leaves nothing in it, but what was freed stays with a process: objects that hold each other,
until enough others are made; and pages that lie among those in use. In a process that lives long, both become more
for a long time. While nothing is done, nobody wakes.
"""

from __future__ import annotations

import gc
import threading

from kurma_core.linux import memory

#: Seconds: it takes some milliseconds, in which other threads wait, and so a thousandth of the time at most.
AFTER = 10.0


class MemoryTrimmer:
    """:param after: seconds from what was done until the rest."""

    def __init__(self, after: float = AFTER) -> None:
        self._after = after
        self._tired = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rest", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def tired(self) -> None:
        """Something was done. From any thread, as often as it likes."""
        if not self._tired.is_set():
            self._tired.set()

    def close(self) -> None:
        """May be repeated."""
        self._closing.set()
        self._tired.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._tired.wait()
            if self._closing.wait(self._after):
                return
            # What is done from here on makes tired anew.
            self._tired.clear()
            gc.collect()
            memory.trim()


__all__ = ["AFTER", "MemoryTrimmer"]
