"""What the supervisor does before it sleeps: it lets go of the memory that its work has taken."""

from __future__ import annotations

import gc
import time

from kurma_core.linux.libc import syscall, trim_heap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from kurma_stager_default.inside.event_loop import Loop

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
            trim_heap()
        drop_pages(program_pages())
        self._tired = False
        self._last = time.monotonic()


def _wake() -> None:
    """The loop turns; before it sleeps again, the rest is taken."""


_MADV_DONTNEED = 4
_KEPT_AS_THEY_ARE = (b"r-xp", b"r--p")


def program_pages() -> list[tuple[int, int]]:
    """Where code and constants of this process's program and libraries are: first address and size.

    Only what has never been written to, as the kernel says: not data, nor what the loader has relocated.

    :raises OSError: ``/proc`` does not show this process.
    """
    found = []
    place: tuple[int, int] | None = None
    untouched = 0
    for line in _lines("/proc/self/smaps"):
        word, _, rest = line.partition(b" ")
        if not word.endswith(b":"):
            fields = rest.split(None, 4)
            place, untouched = None, 0
            if len(fields) == 5 and fields[0] in _KEPT_AS_THEY_ARE and fields[3] != b"0":
                start, end = [int(one, 16) for one in word.split(b"-")]
                place = start, end - start
        elif place is not None and word in (b"Anonymous:", b"Swap:") and rest.split()[0] == b"0":
            untouched += 1
            if untouched == 2:
                found.append(place)
    return found


def _lines(path: str) -> Iterator[bytes]:
    """Little by little: what is read at once stays with who reads it, as memory that he has used."""
    rest = b""
    with open(path, "rb", 0) as file:
        while data := file.read(2048):
            *whole, rest = (rest + data).split(b"\n")
            yield from whole


def drop_pages(places: list[tuple[int, int]]) -> None:
    """Let go of the pages of :func:`program_pages` that were used so far.

    They stay in the machine's page cache, where every process finds them that runs the same files; what is
    used again comes back from there. What a start takes is many times what a sleeper wakes up for.
    """
    for start, size in places:
        syscall("madvise", start, size, _MADV_DONTNEED)
