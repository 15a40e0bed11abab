"""Tells which limit of the host an error is about: free bytes, free inodes, or processes and threads.

The kernel has one word for several limits (ENOSPC, EAGAIN), and Python raises RuntimeError for a thread that
cannot be started. A :class:`~kurma_core.errors.KurmaError` with such an ``errno`` gets its words and hint here.
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NO_SPACE = os.strerror(errno.ENOSPC)
_NO_PROCESS = os.strerror(errno.EAGAIN)
_NO_THREAD = "can't start new thread"
_REACHED = "the limit of processes and threads is reached"
_ROOM = "`kurma gc` and `kurma image gc` do in the state directory"
_RAISE = (
    "raise pids.max of its cgroup (a unit's TasksMax=, a pod's kurma.io/pids-limit) or the user's limit "
    "(ulimit -u), or end other processes"
)


def explained(message: str, hint: str | None, number: object, path: object) -> tuple[str, str | None]:
    """The message and the hint, with the limit that is reached.

    :param number: the ``errno``, ENOSPC or EAGAIN.
    :param path: of the file that could not be written; None: not known.
    """
    if number == errno.EAGAIN:
        message = message.replace(_NO_PROCESS, _REACHED)
        return message, hint or (_RAISE if _REACHED in message else None)
    at = message.lower().rfind(_NO_SPACE.lower())
    if at < 0 or "no free inodes" in message:
        return message, hint
    if no_inodes(path):
        words, end = message[at : at + len(_NO_SPACE)], message[at + len(_NO_SPACE) :]
        return f"{message[:at]}no free inodes ({words}){end}", hint or f"remove files there; {_ROOM}"
    if isinstance(path, str | bytes) and os.path.isabs(path):
        hint = hint or "make room there"
    return message, hint


def no_inodes(path: object) -> bool:
    """Whether the file system of ``path`` lacks inodes, and not bytes.

    Half-made files may have been removed since the error, so a few inodes (2 %) count as none where there are
    more free bytes. File systems without a fixed number of inodes (btrfs) say 0 of 0.
    """
    if not isinstance(path, str | bytes) or not os.path.isabs(path):
        return False
    place = os.fsdecode(path)
    while True:
        try:
            found = os.statvfs(place)
            break
        except OSError:
            if place == "/":
                return False
            place = os.path.dirname(place)
    if not found.f_files:
        return False
    return not found.f_favail or (found.f_favail * 50 < found.f_files and found.f_bavail * 50 >= found.f_blocks)


def described(error: BaseException) -> tuple[str, dict[str, Any]] | None:
    """Message and data for an error that is about one of these limits; else None."""
    number = error_number(error)
    if _no_process(error):
        return words(error), {"errno": number}
    if number != errno.ENOSPC or not isinstance(error, OSError):
        return None
    found = error.filename2 or error.filename  # the second is a new link's own
    if not isinstance(found, str | bytes):
        return None  # an output: the caller's own
    path = os.fsdecode(found)
    return f"cannot write {path}: {_NO_SPACE}", {"errno": number, "path": path}


def limit_of_stager(message: str, directory: str) -> tuple[str, int] | None:
    """The message and the ``errno`` of a stager's error that ends with a limit of the host; else None.

    :param directory: the pod's, which the stager writes to.
    """
    read_only = os.strerror(errno.EROFS)
    if message.endswith(read_only) and not os.statvfs(directory).f_flag & os.ST_RDONLY:
        # The kernel makes an overlay read-only for which it cannot make a directory to work in.
        message = message.removesuffix(read_only) + os.strerror(errno.ENOSPC)
    for number in (errno.ENOSPC, errno.EAGAIN):
        if message.endswith(os.strerror(number)):
            return message, number
    return None


def error_number(error: BaseException) -> int | None:
    """Its ``errno``; that of a process that cannot be started for a thread that cannot be."""
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        return errno.EAGAIN
    return error.errno if isinstance(error, OSError) else None


def words(error: BaseException) -> str:
    """Describes an error: the limit that is reached, else the kind of error and its text."""
    if _no_process(error):
        return f"cannot start a {'process' if isinstance(error, OSError) else 'thread'}: {_REACHED}"
    return f"{type(error).__name__}: {error}"


def _no_process(error: BaseException) -> bool:
    return error_number(error) == errno.EAGAIN and (
        not isinstance(error, OSError) or error.strerror == _NO_PROCESS
    )
