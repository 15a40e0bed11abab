"""What a process that is going to sleep need not keep mapped."""

from __future__ import annotations

from kurma_core.linux.libc import syscall

_MADV_DONTNEED = 4


def programs() -> list[tuple[int, int]]:
    """Where the code of this process's program and libraries is: first address and size.

    Only what can never have been written to: code, not data, and not what the loader has relocated.

    :raises OSError: ``/proc`` does not show this process.
    """
    found = []
    with open("/proc/self/maps", "rb", 0) as file:
        lines = file.readall().split(b"\n")
    for line in lines:
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[1] == b"r-xp" and fields[4] != b"0":
            start, end = [int(one, 16) for one in fields[0].split(b"-")]
            found.append((start, end - start))
    return found


def unmap(places: list[tuple[int, int]]) -> None:
    """Let go of the pages of :func:`programs` that were executed so far.

    They stay in the machine's page cache, where every process finds them that runs the same files; what is
    executed again comes back from there. What a start takes is many times what a sleeper wakes up for.
    """
    for start, size in places:
        syscall("madvise", start, size, _MADV_DONTNEED)
