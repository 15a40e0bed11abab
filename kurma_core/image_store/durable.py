"""Making things on disk that are either wholly there or not there (S1).

Whatever is being made lies in a directory of its own under ``tmp/``, on which its maker holds a lock; one that
nobody holds is dead, whatever happened to its maker, and anybody may remove it. Done, it is synced and renamed
into place.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from kurma_core.cancellation import lock
from kurma_core.errors import PrivilegeError, StoreError
from kurma_core.linux.beneath import remove_tree
from kurma_core.linux.libc import syscall
from kurma_core.linux.lockfile import is_at

_SYNCFS = {"x86_64": 306, "aarch64": 267, "arm64": 267}
_SYNC_FILE_RANGE = {"x86_64": 277, "aarch64": 84, "arm64": 84}
_START_WRITING = 2
#: How a file is opened that must not be there yet.
NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class WorkDirectory:
    """A new, empty, locked directory under ``tmp``; removed with all that is in it when it is left.

    :ivar path: absolute.
    """

    __slots__ = ("_fd", "_name", "_tmp", "path")

    def __init__(self, tmp: str) -> None:
        self._tmp = tmp
        while True:
            self._name = f"{os.getpid()}-{os.urandom(6).hex()}"
            self.path = f"{tmp}/{self._name}"
            os.mkdir(self.path, 0o700)
            try:
                self._fd = os.open(self.path, _DIRECTORY)
            except FileNotFoundError:
                continue  # swept before it could be locked
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            if is_at(self._fd, self.path):
                return
            os.close(self._fd)

    def __enter__(self) -> WorkDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        tmp = os.open(self._tmp, _DIRECTORY)
        try:
            remove_tree(tmp, self._name)
        finally:
            os.close(tmp)
            os.close(self._fd)


def try_lock(path: str) -> int | None:
    """Lock the file or directory ``path`` for oneself; None: somebody else has it, or it is gone.

    :returns: a descriptor that holds the lock until it is closed.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    if is_at(fd, path):
        return fd
    os.close(fd)
    return None


def share_lock(path: str, *, wait: bool = True) -> int | None:
    """Hold the directory ``path`` against removal; None: it is not there.

    :param wait: for somebody who has it alone; False: None as well then.
    :returns: a descriptor that holds the lock until it is closed.
    """
    try:
        fd = os.open(path, _DIRECTORY)
    except FileNotFoundError:
        return None
    try:
        if wait:
            lock(fd, fcntl.LOCK_SH)
        else:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if is_at(fd, path):
            return fd
    except BlockingIOError:
        pass
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


def sync_file_system(fd: int) -> None:
    """``syncfs(2)``: everything written so far to the file system that ``fd`` lies on.

    One call is cheaper than an ``fsync`` of each of thousands of files, and covers directories too.
    """
    number = _SYNCFS.get(os.uname().machine)
    if number is None:
        os.sync()  # of the whole machine: slower, and as safe
    else:
        syscall(number, fd)


def start_writing(fd: int, offset: int, size: int) -> None:
    """Have the disk begin with a stretch of ``fd`` that has been written; nothing is waited for, nothing promised.

    What is synced at the end is then on its way already, while more is unpacked.
    """
    number = _SYNC_FILE_RANGE.get(os.uname().machine)
    if number is not None:
        try:  # noqa: SIM105 - contextlib is not light
            syscall(number, fd, offset, size, _START_WRITING)
        except OSError:
            pass  # a file system that cannot; errors of the disk come from the sync at the end


def sync_directory(path: str) -> None:
    """Make renames within the directory ``path`` last. :raises OSError: as the kernel says."""
    fd = os.open(path, _DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def put_directory(source: str, target: str) -> bool:
    """Rename the directory ``source`` to ``target``; False: somebody was faster, and ``source`` stays.

    :raises OSError: as the kernel says.
    """
    import errno

    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


class Usage:
    """Bytes on disk that the removal of several trees frees. A file with several names counts at the last of them,
    and not at all while a name is left elsewhere."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], int] = {}

    def add(self, path: str) -> int:
        """What is freed if ``path`` goes as well, with all below it. What vanishes meanwhile counts nothing.

        :raises OSError: as the kernel says.
        """
        total = 0
        todo = [path]
        while todo:
            current = todo.pop()
            try:
                status = os.lstat(current)
                if stat.S_ISDIR(status.st_mode):
                    with os.scandir(current) as entries:
                        todo += [entry.path for entry in entries]
                elif status.st_nlink > 1 and not self._last(status):
                    continue
            except FileNotFoundError:
                continue
            total += status.st_blocks * 512
        return total

    def _last(self, status: os.stat_result) -> bool:
        key = (status.st_dev, status.st_ino)
        seen = self._seen[key] = self._seen.get(key, 0) + 1
        return seen == status.st_nlink


def write_new(path: str, content: bytes) -> None:
    """A new file with that content. :raises OSError: as the kernel says."""
    fd = os.open(path, NEW_FILE, 0o600)
    try:
        write_all(fd, content)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write everything to ``fd``. :raises OSError: as the kernel says."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


@contextmanager
def guard(what: str, place: str = "") -> Iterator[None]:
    """Turn the kernel's refusals into one clear line.

    :param place: directory that is written to: the kernel was given names beneath a descriptor, or none.

    :raises StoreError: in place of OSError. :raises PrivilegeError: likewise, where root would be let.
    """
    try:
        yield
    except OSError as error:
        message = f"{what}: {(error.strerror or str(error)).lower()}"
        path = error.filename
        if place:
            path = os.path.join(place, os.fsdecode(path) if isinstance(path, str | bytes) else "")
        if error.errno in (errno.EPERM, errno.EACCES) and os.geteuid() != 0:
            raise PrivilegeError(message, hint="run as root", errno=error.errno, path=path) from error
        raise StoreError(message, hint=room_hint(error), errno=error.errno, path=path) from error


def no_room(error: OSError) -> bool:
    """Whether the disk, or a quota, is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def room_hint(error: OSError) -> str | None:
    """What to do where the disk, or a quota, is full."""
    return "make room, perhaps by `kurma image gc`" if no_room(error) else None
