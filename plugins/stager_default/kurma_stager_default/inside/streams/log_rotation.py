"""Turning a log over: ``NAME`` becomes ``NAME.1``, that ``NAME.2``, and the oldest goes (H7).

A reader that follows holds a shared lock on each file that it has not read: such a file, and what is newer, is
kept beyond the number of files, within bounds. So a reader that stands still finds everything when it goes on, and
one that never does harms nobody.
"""

from __future__ import annotations

import fcntl
import os

#: Bytes of a log that are kept at most for whoever reads slowly.
KEPT_BYTES = 1 << 30
# Nothing is kept for readers when less than one part in so many of the disk is free.
_FREE_PART = 10
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def turn(path: str, count: int) -> int:
    """Gives every file of the log its next name, and removes what is too much.

    :param count: files that are kept, the new one included.
    :returns: how many old ones there are now.
    :raises OSError: the current file has its name still.
    """
    older = _older(path)
    room: int | None = None
    while older and older + 1 >= count:
        name = f"{path}.{older}"
        if _is_read(name):
            if room is None:
                room = _room(path, older)
            if room >= 0:
                break
            room += os.lstat(name).st_size
        _remove(name)
        older -= 1
    try:
        if count == 1 and not older and not _is_read(path):
            os.unlink(path)
            return 0
        for number in range(older, -1, -1):
            os.rename(f"{path}.{number}" if number else path, f"{path}.{number + 1}")
    except FileNotFoundError:
        # Somebody has removed it: so there is nothing to be kept.
        return older
    return older + 1


def shed(path: str, count: int) -> bool:
    """Removes what is only kept for readers; whether there was any."""
    older = _older(path)
    try:
        for number in range(older, count - 1, -1):
            _remove(f"{path}.{number}")
    except OSError:
        return False
    return older >= count


def _older(path: str) -> int:
    older = 0
    while os.path.lexists(f"{path}.{older + 1}"):
        older += 1
    return older


def _is_read(name: str) -> bool:
    """Whether a reader has yet to read it."""
    try:
        fd = os.open(name, _READ)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False


def _room(path: str, older: int) -> int:
    """Bytes that may yet be kept for readers; below zero: so many are too much."""
    kept = sum([os.lstat(f"{path}.{number}").st_size for number in range(1, older + 1)])
    disk = os.statvfs(os.path.dirname(path))
    return (KEPT_BYTES if disk.f_bavail * _FREE_PART >= disk.f_blocks else 0) - kept


def _remove(name: str) -> None:
    """Its space is free at once, also where a reader has it open, which sees that something is missing."""
    if os.stat(name, follow_symlinks=False).st_nlink == 1:
        os.truncate(name, 0)
    os.unlink(name)
