"""Waits at the end of an app or pod for call-ins that still read its output, as long as they make progress.

The pod's end kills its call-ins. The kernel's I/O counters show whether a call-in still reads: on a busy machine a
reader may be slow, but one that makes no progress is not waited for.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_stager_default.inside.event_loop import Loop
    from kurma_stager_default.inside.pod.control_socket import Conversation

# Seconds without progress after which a reader is given up.
_STILL = 1.0
# Most seconds to wait in all.
_LONGEST = 10.0


class Farewell:
    """Watches the readers. :param people: the list of readers: a reader that has read everything removes itself
    from it, and readers without progress are removed here."""

    __slots__ = ("_end", "_loop", "_people", "_read")

    def __init__(self, loop: Loop, people: list[Conversation]) -> None:
        self._loop = loop
        self._people = people
        self._end = time.monotonic() + _LONGEST
        self._read = {person: _moved(person.pid) for person in people}
        loop.at(self, time.monotonic() + _STILL, self._look)

    def _look(self) -> None:
        now = time.monotonic()
        before, self._read = self._read, {person: _moved(person.pid) for person in self._people}
        for person, moved in self._read.items():
            if now >= self._end or not moved or moved == before.get(person):
                self._people.remove(person)
        if self._people:
            self._loop.at(self, now + _STILL, self._look)


def _moved(pid: int) -> bytes:
    """The I/O counters of a process; empty if the kernel does not have them, or the process has ended."""
    try:
        with open(f"/proc/{pid}/io", "rb", buffering=0) as file:
            return file.read(4096)
    except OSError:
        return b""
