"""Who still reads what there was, once nothing more comes: waited for as long as it reads on, within bounds.

Call-ins are taken down with the pod. How much one has read is the kernel's to tell: on a busy machine a reader may
need long for what another one has in a moment, and one that stands still is not waited for.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_stager_default.inside.event_loop import Loop
    from kurma_stager_default.inside.pod.control_socket import Conversation

# Seconds in which a reader has read something, or is given up.
_STILL = 1.0
# Seconds for all of them.
_LONGEST = 10.0


class Farewell:
    """:param people: who has read all takes itself out of this list; who is given up is taken out of it."""

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
    """What a process has read and written so far; nothing where the kernel does not tell, or it has gone."""
    try:
        with open(f"/proc/{pid}/io", "rb", buffering=0) as file:
            return file.read(4096)
    except OSError:
        return b""
