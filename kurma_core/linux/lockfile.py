"""Lock files: flock(2) on a file that may be removed, with its directory, while somebody waits for it."""

from __future__ import annotations

import errno
import fcntl
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: How often a directory is made again that others remove at the same time.
_ATTEMPTS = 100


def lock_file(
    path: str, *, alone: bool = True, wait: bool = True, flock: Callable[[int, int], object] = fcntl.flock
) -> int:
    """Locks a file, which is made where it is not there, its directory too, both root's alone.

    Who holds it alone may remove it, or its whole directory: whoever waits locks a new file at its place then.

    :param alone: nobody else has it; False: it is shared with others who do not want it alone.
    :param flock: waits, where that may be given up, as by :func:`kurma_core.cancellation.lock`.
    :returns: the descriptor that holds it, until it and all copies that children have inherited are closed.
    :raises BlockingIOError: ``wait`` is False and somebody else has it.
    :raises OSError: it cannot be made.
    """
    how = (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | (0 if wait else fcntl.LOCK_NB)
    while True:
        fd = _open(path)
        try:
            flock(fd, how)
            if is_at(fd, path):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


class locked:
    """:func:`lock_file` for a ``with`` statement."""

    __slots__ = ("_alone", "_fd", "_flock", "_path")

    def __init__(
        self, path: str, *, alone: bool = True, flock: Callable[[int, int], object] = fcntl.flock
    ) -> None:
        self._path = path
        self._alone = alone
        self._flock = flock

    def __enter__(self) -> int:
        self._fd = lock_file(self._path, alone=self._alone, flock=self._flock)
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def is_at(fd: int, path: str) -> bool:
    """Whether ``path`` itself, not what it links to, is still what ``fd`` has open.

    :raises OSError: it cannot be told.
    """
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), there)


def _open(path: str) -> int:
    for _ in range(_ATTEMPTS):
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:
            pass
        try:  # noqa: SIM105 - contextlib is not light
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        except FileNotFoundError:
            pass  # its parent was removed just then; or, as in /proc, there can be none
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
