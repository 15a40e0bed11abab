"""Rotates a log: ``NAME`` becomes ``NAME.1``, that ``NAME.2``, and the oldest is removed.

A reader that follows the log holds a shared lock on each file that it has not read. Such a file, and newer ones,
are kept beyond the number of files, within bounds. So a slow reader misses nothing, and one that never goes on
does not fill the disk.
"""

from __future__ import annotations

import fcntl
import os

#: Most bytes of a log that are kept for slow readers.
KEPT_BYTES = 1 << 30
# No files are kept for readers if less than 1/_FREE_PART of the disk is free.
_FREE_PART = 10
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def turn(path: str, count: int) -> int:
    """Gives every file of the log its next name, and removes the oldest.

    :param count: files that are kept, the new one included.
    :returns: the number of old files now.
    :raises OSError: the current file could not be renamed.
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
        # Another process has removed the current file.
        return older
    return older + 1


def shed(path: str, count: int) -> bool:
    """Removes the files that are kept for readers only. :returns: whether there were any."""
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
    """Whether a reader holds a lock on the file, and so has not read it yet."""
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
    """Bytes that may still be kept for readers; negative: the excess."""
    kept = sum([os.lstat(f"{path}.{number}").st_size for number in range(1, older + 1)])
    disk = os.statvfs(os.path.dirname(path))
    return (KEPT_BYTES if disk.f_bavail * _FREE_PART >= disk.f_blocks else 0) - kept


def _remove(name: str) -> None:
    """Removes a file, and truncates it first, so that its space is free at once even if a reader has it open. The
    reader notices the loss."""
    if os.stat(name, follow_symlinks=False).st_nlink == 1:
        os.truncate(name, 0)
    os.unlink(name)
