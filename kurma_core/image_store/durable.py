"""Writes files and directories completely or not at all: work directories, locks, syncs.

A process makes files in a directory of its own under ``tmp/``, on which it holds a lock. A directory without a
lock was left by a process that died, and any process may remove it. A finished one is synced and renamed into
place.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from kurma_core.cancellation import lock, step
from kurma_core.errors import PrivilegeError, StoreError
from kurma_core.linux.beneath import bytes_below, remove_tree
from kurma_core.linux.files import is_at
from kurma_core.linux.libc import syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager
    from typing import Protocol

    from kurma_core.hookspecs.renderer import ImageLayer
    from kurma_core.image_store.tar_entries import Limits
    from kurma_core.models.image import ImageRecord

    class Store(Protocol):
        """The paths, records and locks of :class:`.store.ImageStore`, which documents each."""

        root: str
        limits: Limits
        holds: Holds

        def step(self, name: str, /) -> None: ...

        def path(self, *parts: str) -> str: ...
        def prepare(self) -> None: ...
        def locked(self, *, exclusive: bool = False) -> AbstractContextManager[None]: ...

        def ids(self) -> Sequence[str]: ...
        def get(self, image_id: str) -> ImageRecord: ...
        def manifest_bytes(self, image_id: str) -> bytes: ...
        def originals(self, image_id: str) -> Mapping[str, bytes]: ...
        def archive_path(self, image_id: str) -> str | None: ...
        def layers(self, image_id: str) -> tuple[ImageLayer, ...]: ...
        def list(self) -> tuple[ImageRecord, ...]: ...

        def layer(self, key: str) -> ImageLayer: ...


_SYNCFS = {"x86_64": 306, "aarch64": 267, "arm64": 267}
_SYNC_FILE_RANGE = {"x86_64": 277, "aarch64": 84, "arm64": 84}
_START_WRITING = 2
#: How a file is opened that must not be there yet.
NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class WorkDirectory:
    """A new, empty, locked directory under ``tmp``; removed with its contents at the end of the context.

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
            remove_tree(tmp, self._name, step)
        finally:
            os.close(tmp)
            os.close(self._fd)


def try_lock(path: str) -> int | None:
    """Locks the file or directory ``path`` exclusively; None: another process holds the lock, or it was removed.

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

    :param wait: for another process that has it exclusively; False: returns None then.
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
    """``syncfs(2)``: syncs everything written so far to the file system of ``fd``.

    One call is cheaper than an ``fsync`` of each of thousands of files, and covers directories too.
    """
    number = _SYNCFS.get(os.uname().machine)
    if number is None:
        os.sync()  # of the whole machine: slower, and as safe
    else:
        syscall(number, fd)


def start_writing(fd: int, offset: int, size: int) -> None:
    """Starts to write a range of ``fd`` to disk; does not wait for the end, and does not guarantee it.

    Then most data is already on disk when the file is synced at the end.
    """
    number = _SYNC_FILE_RANGE.get(os.uname().machine)
    if number is not None:
        try:  # noqa: SIM105 - contextlib is not light
            syscall(number, fd, offset, size, _START_WRITING)
        except OSError:
            pass  # not supported by the file system; the sync at the end reports errors of the disk


def sync_directory(path: str) -> None:
    """Makes renames within the directory ``path`` durable. :raises OSError: as the kernel says."""
    fd = os.open(path, _DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def put_directory(source: str, target: str) -> bool:
    """Renames the directory ``source`` to ``target``; False: ``target`` exists already, and ``source`` stays.

    :raises OSError: as the kernel says.
    """
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
        #: Number of files and directories that were looked at.
        self.files = 0
        self._seen: dict[tuple[int, int], int] = {}

    def add(self, path: str) -> int:
        """Bytes that are freed if ``path`` is removed as well, with everything below it: see
        :func:`kurma_core.linux.beneath.bytes_below`."""
        return bytes_below(path, self._bytes_of)

    def _bytes_of(self, status: os.stat_result) -> int:
        self.files += 1
        step()
        alone = stat.S_ISDIR(status.st_mode) or status.st_nlink == 1 or self._last(status)
        return status.st_blocks * 512 if alone else 0

    def _last(self, status: os.stat_result) -> bool:
        key = (status.st_dev, status.st_ino)
        seen = self._seen[key] = self._seen.get(key, 0) + 1
        return seen == status.st_nlink


def write_new(path: str, content: bytes) -> None:
    """Writes a new file with that content. :raises OSError: as the kernel says."""
    fd = os.open(path, NEW_FILE, 0o600)
    try:
        write_all(fd, content)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Writes all bytes to ``fd``. :raises OSError: as the kernel says."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


@contextmanager
def guard(what: str, place: str = "") -> Iterator[None]:
    """Turns OSErrors into errors with one clear line.

    :param place: the directory that is written to, since the kernel knows only names relative to a descriptor, or
        none.
    :raises StoreError: in place of OSError.
    :raises PrivilegeError: likewise, if root would be permitted.
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
    """The hint for a full disk or quota."""
    return "make room, perhaps by `kurma image gc`" if no_room(error) else None


#: Attempts to find and hold an image while other processes remove it.
_TRIES = 20
#: The file whose modification time is the time of the last use.
_TOUCHED = {"images": "used", "trees": "tree.json"}


def touch(path: str) -> None:
    """Sets the time of the last use, and makes its file if needed.

    :raises OSError: its directory is gone.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        # The kernel's own stamp may be some milliseconds old, and a sweep compares it with the time of day.
        now = time.time_ns()
        os.utime(fd, ns=(now, now))
    finally:
        os.close(fd)


class Holds:
    """Holds images, layers and trees, so that they are not removed before the end of the block that began with
    :meth:`keeping`: in its thread, and in threads that run in a copy of its context. Images that enter the store
    in such a block are held from the start.

    :param path_in: makes a path in the store from its parts.
    """

    def __init__(self, path_in: Callable[..., str]) -> None:
        self._path_in = path_in
        self._mine: ContextVar[dict[str, int] | None] = ContextVar("kurma_held_images", default=None)

    @contextlib.contextmanager
    def keeping(self, *, used: bool = True) -> Iterator[None]:
        """Images, layers and trees held inside stay at least until the block is left. Blocks may nest.

        :param used: images and trees count as used then.
        """
        if self._mine.get() is not None:
            yield
            return
        held: dict[str, int] = {}
        token = self._mine.set(held)
        try:
            yield
        finally:
            self._mine.reset(token)
            for place, fd in held.items():
                # So that a garbage collection that read the pods before this one was made sees this use.
                kind, _, ident = place.partition("/")
                if used and kind in _TOUCHED:
                    with contextlib.suppress(OSError):
                        touch(self._path_in(kind, ident, _TOUCHED[kind]))
                os.close(fd)

    def found(self, what: str, find: Callable[[], ImageRecord]) -> ImageRecord:
        """The image that ``find`` finds or brings into the store, held.

        :param what: the reference, for messages.
        :raises StoreError: other processes remove it at each attempt.
        """
        for _ in range(_TRIES):
            record = find()
            if self.hold(record.id):
                return record
        raise StoreError(f"{what}: is removed from the store as fast as it comes", image=record.id)

    def hold(self, image_id: str, *, wait: bool = True) -> bool:
        """False: it is not in the store (any more). Outside of :meth:`keeping` nothing is held.

        :param wait: until a process that is about to remove it has decided; False: returns False meanwhile.
        """
        return self._hold(f"images/{image_id}", wait=wait)

    def hold_layer(self, key: str) -> bool:
        """The same for a layer."""
        return self._hold(f"layers/{key}")

    def hold_tree(self, tree_id: str) -> bool:
        """The same for a rendered tree."""
        return self._hold(f"trees/{tree_id}")

    def _hold(self, place: str, *, wait: bool = True) -> bool:
        held = self._mine.get()
        if held is None:
            return os.path.isdir(self._path_in(place))
        if place not in held:
            fd = share_lock(self._path_in(place), wait=wait)
            if fd is None:
                return False
            if held.setdefault(place, fd) != fd:
                os.close(fd)  # another thread was faster
        return True
