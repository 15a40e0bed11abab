"""Opens a regular file in a tree that strangers fill, and nothing else."""

from __future__ import annotations

import errno
import os
import stat

from kurma_core.linux.beneath import RESOLVE_BENEATH, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, openat2

_STRICTLY = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS


class NotRegularError(OSError):
    """Something else than a regular file: ``mode`` says what."""

    def __init__(self, path: str, mode: int) -> None:
        super().__init__(errno.EINVAL, "not a regular file", path)
        self.mode = mode


def open_regular(
    dir_fd: int, path: str, flags: int = os.O_RDONLY, *, resolve: int = _STRICTLY, proc: bool = True
) -> int:
    """Open a regular file of a tree that strangers fill. Nothing else is ever opened.

    To open a device has effects (a watchdog starts, a tape rewinds), and to open a FIFO waits for its other end.
    So the file is found with ``O_PATH``, which opens nothing, looked at, and opened by that descriptor: whatever
    takes its name meanwhile is not opened.

    :param flags: ``O_NOFOLLOW`` refuses a link at the end of the path where ``resolve`` permits links.
    :param resolve: as for :func:`kurma_core.linux.beneath.openat2`. Without it no link is followed, and no way
        leads out of ``dir_fd``.
    :param proc: False: ``/proc`` is not to be trusted, as in an app's root. The file is then opened by its name
        again, and refused if it is another one by now.
    :raises NotRegularError: it is something else.
    :raises OSError: ``ELOOP`` for a link that is not to be followed, and all that ``open`` raises; with the path.
    """
    flags |= os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    found = openat2(dir_fd, path, os.O_PATH | flags & os.O_NOFOLLOW, 0, resolve)
    try:
        status = os.fstat(found)
        if stat.S_ISLNK(status.st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        if not stat.S_ISREG(status.st_mode):
            raise NotRegularError(path, status.st_mode)
        if proc:
            try:
                return os.open(f"/proc/self/fd/{found}", flags & ~os.O_NOFOLLOW)
            except OSError as error:
                raise OSError(error.errno, error.strerror, path) from None
        again = openat2(dir_fd, path, flags, 0, resolve)
        if not os.path.samestat(os.fstat(again), status):
            os.close(again)
            raise OSError(errno.ESTALE, "replaced while it was opened", path)
        return again
    finally:
        os.close(found)
