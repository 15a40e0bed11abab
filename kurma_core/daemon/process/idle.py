"""The end of a daemon that nobody needs any more: one that was started for a detached pod, in the background.

It has nothing to do when nobody is connected, it owns no pod, and nothing is to come by itself. While it has, no
timer runs. Who comes as it ends is served, or starts another one: the end is decided under the lock under which
daemons are started (:mod:`kurma_core.client.starting`), and before the last look nobody can connect any more.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kurma_core.linux.lockfile import lock_file

if TYPE_CHECKING:
    from kurma_core.daemon.http.server import Server
    from kurma_core.daemon.process.timetable import Timetable

_LOG = logging.getLogger("kurmad")


class IdleEnd:
    """Used by the thread that accepts connections, and by no other.

    :param after: seconds without anything to do.
    :param has_work: whether there is, besides connections and what stands in a timetable.
    :param times: what is to be done by itself.
    :param lock: of those who start daemons.
    :param listen: listens anew, or ends the daemon; raises nothing.
    :param end: ends the daemon; returns at once.
    """

    def __init__(
        self,
        after: float,
        has_work: Callable[[], bool],
        times: Sequence[Timetable],
        lock: str,
        listen: Callable[[], None],
        end: Callable[[], None],
    ) -> None:
        self._after = after
        self._others = has_work
        self._times = times
        self._lock_path = lock
        self._listen = listen
        self._end = end
        self._until: float | None = None
        self._lock: int | None = None

    def touch(self) -> None:
        """Something was done: it counts anew."""
        self._until = None

    def remaining(self, server: Server) -> float | None:
        """Seconds until the end, if nothing happens; None: there is something to do."""
        if server.connections or self._has_work():
            self._until = None
            return None
        now = time.monotonic()
        if self._until is None:
            self._until = now + self._after
        return max(self._until - now, 0.0)

    def look(self, server: Server) -> bool:
        """Ends the daemon if its time has come. :returns: whether it has."""
        if self.remaining(server) != 0.0:
            return False
        try:
            self._lock = lock_file(self._lock_path, wait=False)
        except OSError:  # somebody wants a daemon just now
            self.touch()
            return False
        if self._somebody_came(server) or self._has_work():
            self.close()
            self.touch()
            return False
        _LOG.info("ends: nothing to do for %g seconds", self._after)
        self._end()
        return True

    def _has_work(self) -> bool:
        return self._others() or any(each.waiting() for each in self._times)

    def _somebody_came(self, server: Server) -> bool:
        """Takes no more connections, but for those that were made already."""
        mine = server.shut()
        if mine is None:
            return False  # a service manager's: it starts us again for who comes
        if not server.connections:
            return False
        self._listen()
        return True

    def close(self) -> None:
        """When the daemon has ended, and another may be started. May be repeated."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


__all__ = ["IdleEnd"]
