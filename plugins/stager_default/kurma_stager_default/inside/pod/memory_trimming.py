"""Trims the supervisor's memory before it sleeps: frees the heap and drops pages of code."""

from __future__ import annotations

import gc
import time

from kurma_core.linux.libc import syscall, trim_heap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from kurma_stager_default.inside.event_loop import Loop

# Seconds from work that takes much memory to the next trim; and least seconds between trims after little work.
_PAUSE, _AGAIN = 1.0, 10.0


class Rest:
    """Schedules the trims: one after work, none while the supervisor is idle.

    Dropped pages of code and constants are read from the page cache when they are used again.
    """

    __slots__ = ("_last", "_loop", "_moment", "_tired")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._tired = False
        self._moment = self._last = 0.0

    def worked(self, *, much: bool = False) -> None:
        """Schedules a trim after some work. :param much: the work took much memory, so trim soon."""
        now = time.monotonic()
        moment = now + _PAUSE if much else max(now + _PAUSE, self._last + _AGAIN)
        if not self._tired or moment < self._moment:
            self._tired = True
            self._moment = moment
            self._loop.at(self, moment, _wake)

    def begin(self) -> None:
        """Schedules a trim before the next sleep: the start takes many times the memory that is used later."""
        self._tired = True

    def due(self) -> bool:
        """Whether it is time for :meth:`take`."""
        return self._tired and not self._loop.waits(self)

    def take(self) -> None:
        """Trims the memory. Call it right before sleep, since any work loads pages of code again."""
        if self._last:
            # Not at the first trim: a collection would write to the start's objects, whose pages PID 1 shares.
            gc.collect()
            trim_heap()
        drop_pages(program_pages())
        self._tired = False
        self._last = time.monotonic()


def _wake() -> None:
    """A timer that does nothing: it makes the loop turn, and the supervisor trims before it sleeps again."""


_MADV_DONTNEED = 4
_KEPT_AS_THEY_ARE = (b"r-xp", b"r--p")


def program_pages() -> list[tuple[int, int]]:
    """The mappings of code and constants of this process's program and libraries: first address and size.

    Mappings that were written to, such as data and relocated pages, are left out.

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
    """The file's lines. It reads small pieces, since a large buffer would stay in the process's heap."""
    rest = b""
    with open(path, "rb", 0) as file:
        while data := file.read(2048):
            *whole, rest = (rest + data).split(b"\n")
            yield from whole


def drop_pages(places: list[tuple[int, int]]) -> None:
    """Drops the pages of :func:`program_pages` from this process.

    They stay in the page cache, which all processes share that run the same files, and come back from there when
    they are used again. A start uses many times the code that the sleeping supervisor needs later.
    """
    for start, size in places:
        syscall("madvise", start, size, _MADV_DONTNEED)
