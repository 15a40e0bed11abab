"""What a process that is going to sleep need not keep."""

from __future__ import annotations

from kurma_core.linux.libc import call, syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_MADV_DONTNEED = 4
_M_ARENA_MAX = -8
_KEPT_AS_THEY_ARE = (b"r-xp", b"r--p")


def programs() -> list[tuple[int, int]]:
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


def unmap(places: list[tuple[int, int]]) -> None:
    """Let go of the pages of :func:`programs` that were used so far.

    They stay in the machine's page cache, where every process finds them that runs the same files; what is
    used again comes back from there. What a start takes is many times what a sleeper wakes up for.
    """
    for start, size in places:
        syscall("madvise", start, size, _MADV_DONTNEED)


def one_heap() -> None:
    """Have all threads that begin from here on allocate from one heap, where this libc would give them several.

    For a process that runs Python, whose threads allocate one after the other anyway. What was freed in one of
    several heaps is of no use to the others, and :func:`trim` shortens none but the first.
    """
    call("mallopt", _M_ARENA_MAX, 1)


def trim() -> None:
    """Give back what was freed, where this libc can tell it from the rest."""
    call("malloc_trim", 0)
