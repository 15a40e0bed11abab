"""Replaces and locks files in Kurma's own directories, and spreads directories over the disk.

For paths in untrusted trees, see :mod:`kurma_core.linux.beneath`.

:param path: of the file. :param content: all of its new content. :param mode: permission bits of the file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from _thread import get_native_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_WRITABLE_BY_OTHERS = 0o022
#: Bytes of a file that has its place on the disk already: a block of most file systems.
_SPARE = 4096


def others_may_write(status: os.stat_result) -> bool:
    """Whether users other than root and the caller may write to the file with that status."""
    return status.st_uid not in (0, os.geteuid()) or bool(status.st_mode & _WRITABLE_BY_OTHERS)


def replace_file(path: str, content: bytes, mode: int = 0o600, *, alone: bool = False) -> None:
    """Writes ``path`` by way of a temporary file beside it and a rename.

    A crash leaves the old file, and at worst a ``.TID.tmp`` beside it (the thread's number), which the next writer
    with that number replaces; or a ``.tmp`` with ``alone``, for a caller that holds a lock. Not
    synced: a power cut may lose the newest version, never tear one (the rename is ordered behind the data on the
    file systems in use).

    :raises OSError: a full disk, a missing directory; the old file is as it was.
    """
    temporary = f"{path}.tmp" if alone else f"{path}.{get_native_id()}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
    except BaseException:
        os.close(fd)
        os.unlink(temporary)
        raise
    os.close(fd)
    os.rename(temporary, path)


def spare_file(path: str, content: bytes) -> None:
    """Makes a file for :func:`use_spare` ahead of time. With a content, its blocks are allocated on the disk soon:
    a later write uses the same blocks, and the rename does not wait for their allocation.

    :raises OSError: a full disk, a missing directory.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if content:
            os.write(fd, content.ljust(_SPARE))
            # Starts the write-back, without waiting for it.
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def use_spare(spare: str, path: str, content: bytes) -> None:
    """As :func:`replace_file`, by renaming the file of :func:`spare_file`, if it exists. After a power cut,
    ``path`` may have the spare file's first content, or blanks after the new one.

    :raises OSError: as :func:`replace_file`.
    """
    try:
        fd = os.open(spare, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        replace_file(path, content)
        return
    try:
        size = os.fstat(fd).st_size
        if size and len(content) > size:
            raise BufferError
        view = memoryview(content.ljust(size))
        while view:
            view = view[os.write(fd, view) :]
    except BaseException as error:
        os.close(fd)
        os.unlink(spare)
        if not isinstance(error, BufferError):
            raise
        replace_file(path, content)
        return
    os.close(fd)
    os.rename(spare, path)


#: Attempts to make a directory that other processes remove at the same time.
_ATTEMPTS = 100


def lock_file(
    path: str, *, alone: bool = True, wait: bool = True, flock: Callable[[int, int], object] = fcntl.flock
) -> int:
    """Locks a file. Makes it, and its directory, if they are missing; both are root's alone.

    The holder of an exclusive lock may remove the file, or its whole directory: a process that waits then locks a
    new file at its place.

    :param alone: the lock is exclusive; False: it is shared.
    :param wait: wait for another holder.
    :param flock: waits for the lock, e.g. :func:`kurma_core.cancellation.lock`, which can be cancelled.
    :returns: the descriptor that holds it, until it and all copies that children have inherited are closed.
    :raises BlockingIOError: ``wait`` is False and another process has it.
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
    """:func:`lock_file` for a ``with`` statement.

    :param alone: as there. :param flock: as there.
    """

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
    """Whether ``path`` (a link is not followed) is still the file that ``fd`` has open.

    :raises OSError: the path cannot be read.
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
            pass  # its parent was removed meanwhile; or, as in /proc, no directory can be made
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602  # FS_IOC_GETFLAGS and FS_IOC_SETFLAGS, of 64-bit machines
_TOP = 0x20000


def spread(directory: str) -> None:
    """Makes the file system place each new directory in that one in a block group of its own. It can be repeated.

    Does nothing on file systems without such groups, or without the right to set the attribute.
    """
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        (flags,) = struct.unpack("i", fcntl.ioctl(fd, _GET_FLAGS, bytes(4)))
        if not flags & _TOP:
            fcntl.ioctl(fd, _SET_FLAGS, struct.pack("i", flags | _TOP))
    except OSError:
        return
    finally:
        os.close(fd)
