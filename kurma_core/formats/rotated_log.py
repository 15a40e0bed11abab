"""Reads a log that its writer rotates meanwhile: ``NAME``, older ``NAME.1``, still older ``NAME.2`` …

It opens every file of the chain when it first sees it, and keeps it open: so a file that is rotated away and
deleted can be read to its end, and its inode number is not reused meanwhile. The held files take space on the
disk, up to a limit.

The stager's image contains this module.
"""

from __future__ import annotations

import _thread
import errno
import fcntl
import os
import time

from kurma_core.linux.beneath import AT_FDCWD, NotRegularError, open_regular

_CHUNK = 1 << 20
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW
_TRIES = 16
#: Seconds to wait for a lock, and between two tries. A writer that looks for readers holds it for a moment, or
#: longer if the machine suspends it there.
_PATIENCE, _PAUSE = 1.0, 0.001
#: Most bytes of rotated files to hold for reading: beyond, the oldest are skipped.
HELD_BYTES = 1 << 30


class LogChain:
    """Reads the chain from its oldest file on, forward only. Another thread may call :meth:`look`.

    :param path: the current file; it need not exist yet.
    :param root: a directory on this path, below which no link is followed. Other programs rotate the log: rotated
        files have any name, and are read only if they were opened before.
    """

    def __init__(self, path: str, held_bytes: int = HELD_BYTES, root: str | None = None) -> None:
        self._root = root
        self._directory, _, self._name = path.rpartition("/")
        self._path = path
        self._held: dict[int, int] = {}  # inode → descriptor, of every file on disk and of those still to be read
        self._queue: list[int] = []  # inodes still to be read, the oldest first
        self._newest: int | None = None
        self._read_from: int | None = None  # inode of what was read last
        self._held_bytes = held_bytes
        self._gaps: set[int] = set()  # inodes of files before which something is missing
        self._lock = _thread.allocate_lock()
        self._shares = False
        self._patience = _PATIENCE
        #: Text is missing between the last two results of :meth:`read`.
        self.gap = False

    def start_at(self, inode: int, at: int) -> None:
        """Begins at that byte of that file, or at the oldest file if that one is gone. Call it before any read."""
        with self._lock:
            self._look()
            if inode in self._queue:
                del self._queue[: self._queue.index(inode)]
                os.lseek(self._held[inode], at, os.SEEK_SET)

    def share(self) -> None:
        """Makes the writer keep unread files from now on, by a shared lock on each."""
        if self._root is not None:
            return
        with self._lock:
            self._shares = True
            for inode in self._queue:
                self._share(self._held[inode])

    def read(self) -> bytes:
        """The next bytes; empty at the present end.

        :raises OSError: a file of the chain cannot be read.
        """
        while True:
            with self._lock:
                if self._queue:
                    data = self._read_first()
                    if data:
                        return data
            # The end for now. No data is added to a file that has a successor.
            if not self.look() and len(self._queue) < 2:
                return b""
            with self._lock:
                if len(self._queue) > 1:
                    data = self._read_first()
                    if data:
                        return data
                    self._leave()

    def back(self, count: int) -> bool:
        """Goes back by ``count`` bytes, to read them again: the writer may have changed them.

        :returns: False: it is not possible, since the file with these bytes has been left.
        """
        with self._lock:
            if not self._queue or self._queue[0] != self._read_from:
                return False
            fd = self._held[self._read_from]
            at = os.lseek(fd, 0, os.SEEK_CUR) - count
            if at < 0:
                return False
            os.lseek(fd, at, os.SEEK_SET)
            return True

    def _read_first(self) -> bytes:
        self._read_from = first = self._queue[0]
        if first in self._gaps:
            self._gaps.discard(first)
            self.gap = True
        return os.read(self._held[first], _CHUNK)

    def _leave(self) -> None:
        """Leaves the first file, which has been read to its end."""
        fd = self._held[self._queue.pop(0)]
        status = os.fstat(fd)
        # The writer truncates a file that it cannot keep any longer.
        if status.st_size < os.lseek(fd, 0, os.SEEK_CUR) or (status.st_size == 0 and status.st_nlink == 0):
            self._gaps.add(self._queue[0])
        if self._shares:
            fcntl.flock(fd, fcntl.LOCK_UN)

    def look(self) -> bool:
        """Opens new files. :returns: whether there are any."""
        with self._lock:
            return self._look()

    def _look(self) -> bool:
        try:
            if os.lstat(self._path).st_ino == self._newest:
                return False  # not rotated since the last call
        except FileNotFoundError:
            if self._newest is not None:
                return False  # it is being rotated
        for _ in range(_TRIES):
            names = self._names()
            opened = self._open_all(names)
            # A rotation renames the oldest file first, and each to the next number. So if both listings of the
            # directory are the same, the files that were opened in between are complete and in order.
            if self._names() == names and [os.fstat(fd).st_ino for fd in opened] == _inodes(names):
                return self._take(opened)
            for fd in opened:
                os.close(fd)
        return False

    def _names(self) -> list[str]:
        """The existing files, the oldest first. During a rotation, a number may be missing."""
        if self._root is not None:
            return [self._path] if os.path.lexists(self._path) else []
        prefix = self._name + "."
        try:
            found = os.listdir(self._directory or ".")
        except FileNotFoundError:
            return []
        numbers = [name[len(prefix) :] for name in found if name.startswith(prefix)]
        older = sorted([int(each) for each in numbers if each.isascii() and each.isdigit() and each[0] != "0"])
        current = [self._path] if self._name in found else []
        return [*[f"{self._path}.{number}" for number in reversed(older)], *current]

    def _open_all(self, names: list[str]) -> list[int]:
        """Opens these files. :returns: fewer descriptors, if a file is gone."""
        opened: list[int] = []
        for name in names:
            try:
                fd = self._open(name)
            except (FileNotFoundError, NotRegularError):
                break
            except OSError:
                for fd in opened:
                    os.close(fd)
                raise
            opened.append(fd)
        return opened

    def _open(self, path: str) -> int:
        if self._root is None:
            return open_regular(AT_FDCWD, path, _FLAGS, resolve=0)
        root = os.open(self._root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return open_regular(root, path[len(self._root) + 1 :], _FLAGS)
        finally:
            os.close(root)

    def _take(self, opened: list[int]) -> bool:
        inodes = [os.fstat(fd).st_ino for fd in opened]
        new = [inode for inode in inodes if inode not in self._held]
        if self._newest is not None and self._newest not in inodes and self._root is None:
            self._gaps.update(new[:1])
        for inode, fd in zip(inodes, opened, strict=True):
            if inode in self._held:
                os.close(fd)
            else:
                self._held[inode] = fd
                if self._shares:
                    self._share(fd)
        self._queue += new
        self._give_up()
        if inodes:
            self._newest = inodes[-1]
        for inode in [each for each in self._held if each not in inodes and each not in self._queue]:
            os.close(self._held.pop(inode))
        return bool(new)

    def _give_up(self) -> None:
        """Closes the oldest unread files above the limit, but never the first nor the newest."""
        waiting = sum([os.fstat(self._held[inode]).st_size for inode in self._queue[1:]])
        while waiting > self._held_bytes and len(self._queue) > 2:
            inode = self._queue.pop(1)
            waiting -= os.fstat(self._held[inode]).st_size
            if self._shares:
                fcntl.flock(self._held[inode], fcntl.LOCK_UN)
            self._gaps.discard(inode)
            self._gaps.add(self._queue[1])

    def _share(self, fd: int) -> None:
        """Takes the shared lock. After one timeout, it does not wait for the locks of other files."""
        end = time.monotonic() + self._patience
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= end:
                    self._patience = 0.0
                    return
                time.sleep(_PAUSE)
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                    raise
                return  # a file system without locks: open files can be read all the same
            else:
                self._patience = _PATIENCE
                return

    def close(self) -> None:
        with self._lock:
            for fd in self._held.values():
                os.close(fd)
            self._held.clear()
            self._queue.clear()


def _inodes(names: list[str]) -> list[int]:
    """The inodes of these files; fewer, if a file is gone."""
    found = []
    for name in names:
        try:
            found.append(os.lstat(name).st_ino)
        except FileNotFoundError:
            break
    return found
