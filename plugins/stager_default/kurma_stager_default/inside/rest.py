"""What the supervisor does before it sleeps: it lets go of the memory that its work has taken."""

from __future__ import annotations

import gc
import time

from kurma_core.linux import memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_stager_default.inside.loop import Loop

# Seconds from much work until a rest; and between two, however little was done.
_PAUSE, _AGAIN = 1.0, 10.0


class Rest:
    """Nothing wakes up for it unless something was done, and then once.

    Code and constants come back from the machine's page cache when they are used again.
    """

    __slots__ = ("_last", "_loop", "_moment", "_tired")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._tired = False
        self._moment = self._last = 0.0

    def worked(self, *, much: bool = False) -> None:
        """Something was done. :param much: what takes memory of its own, so that it is soon time to rest."""
        now = time.monotonic()
        moment = now + _PAUSE if much else max(now + _PAUSE, self._last + _AGAIN)
        if not self._tired or moment < self._moment:
            self._tired = True
            self._moment = moment
            self._loop.at(self, moment, _wake)

    def begin(self) -> None:
        """The start is over, which took many times what is used from here on: the next sleep is after a rest."""
        self._tired = True

    def due(self) -> bool:
        """Whether it is time to :meth:`take` it."""
        return self._tired and not self._loop.waits(self)

    def take(self) -> None:
        """Right before sleep, since whatever is done takes the code for it."""
        if self._last:
            # Not of the start's leavings, which PID 1 shares as long as nobody looks at them.
            gc.collect()
            memory.trim()
        memory.unmap(memory.programs())
        self._tired = False
        self._last = time.monotonic()


def _wake() -> None:
    """The loop turns; before it sleeps again, the rest is taken."""
