"""Processes that are born into a cgroup, on every hierarchy.

A write to ``cgroup.procs`` waits for a grace period of the kernel, some ten milliseconds, unless another such
write was just there. Being cloned into a v2 cgroup does not wait, and neither does, on v1, a single thread that
writes itself into ``tasks``.

On Linux 6.18 a child that is cloned into a cgroup dies at once, by SIGKILL, if that cgroup and the one that it is
cloned from were killed (by ``cgroup.kill``, their own or a parent's) a different number of times, however long
ago: from one that was never killed into one that was, and from one that was into a fresh one. One that moves by
``cgroup.procs`` lives, and so does one that is cloned into a cgroup which was removed and made anew. So whoever
clones here must learn whether the child has come to life, and if not, do it again by ``move``, as
:func:`fork_into` does. Needs root.
"""

from __future__ import annotations

import errno
import os

from kurma_core.linux import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# Kernels before 5.7 know no cgroup there; filters of system calls, such as those of containers, may refuse it.
# Where there may be no more processes none is born, and one that moves there is let in: to look after them.
_CANNOT = (errno.ENOSYS, errno.EINVAL, errno.E2BIG, errno.EPERM, errno.EAGAIN)


class Birthplace:
    """A cgroup, opened on every hierarchy. Close it.

    :param directories: the cgroup's, one per hierarchy, v1 or v2; none: children stay where their parent is.
    :raises OSError: one of them is not there, or is not a cgroup's.
    """

    __slots__ = ("_tasks", "_unified")

    def __init__(self, directories: Iterable[str]) -> None:
        self._tasks: list[tuple[str, int]] = []
        self._unified: tuple[str, int] | None = None
        try:
            for path in directories:
                try:
                    self._tasks.append((path, os.open(path + "/tasks", os.O_WRONLY | os.O_CLOEXEC)))
                except FileNotFoundError:
                    self._close_unified()
                    self._unified = (path, os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        except OSError:
            self.close()
            raise

    def clone(self, flags: int = 0, *, move: bool = False) -> tuple[int, int]:
        """As :func:`process.clone`. The child must call :meth:`join`.

        :param move: the child moves itself on v2, too: slower, and safe from what the module's text tells.
        """
        if self._unified is not None and not move:
            path, directory = self._unified
            try:
                made = process.clone(flags, directory)
            except OSError as error:
                if error.errno not in _CANNOT:
                    raise OSError(error.errno, error.strerror, path) from None
            else:
                if made[0] == 0:
                    self._close_unified()  # there already
                return made
        return process.clone(flags)

    def join(self) -> None:
        """In the child: go where it is not yet, before it has threads or children.

        :raises OSError: it could not; ``filename`` says where.
        """
        path = ""
        try:
            if self._unified is not None:
                path, directory = self._unified
                fd = os.open("cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=directory)
                os.write(fd, b"0")
                os.close(fd)
            for path, fd in self._tasks:  # noqa: B007 - for the error
                os.write(fd, b"0")
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None
        self.close()

    def close(self) -> None:
        """May be repeated."""
        self._close_unified()
        for _, fd in self._tasks:
            os.close(fd)
        self._tasks = []

    def _close_unified(self) -> None:
        if self._unified is not None:
            os.close(self._unified[1])
            self._unified = None


def fork_into(directories: Iterable[str]) -> int:
    """Fork; the child is in the cgroup on every hierarchy. For a process with one thread.

    :param directories: of the cgroup, as in :class:`Birthplace`.
    :returns: the child's PID; 0 in the child, which may only exec or end by ``os._exit``.
    :raises OSError: no child was made; or, in the child, it could not join.
    """
    place = Birthplace(directories)
    try:
        for move in (False, True):
            pid, lives = _fork(place, move)
            if lives:
                return pid
        raise OSError(errno.ECHILD, "the new process was killed")
    finally:
        place.close()


def _fork(place: Birthplace, move: bool) -> tuple[int, bool]:
    """:returns: the child's PID, and whether it has come to life; if it has not, it is gone."""
    heard, told = os.pipe2(os.O_CLOEXEC)
    try:
        pid, pidfd = place.clone(move=move)
        if pid == 0:
            os.write(told, b".")
            place.join()
            return 0, True
        os.close(told)
        told = -1
        lives = bool(os.read(heard, 1))
        if not lives:
            process.wait_pidfd(pidfd)
            process.exit_status(pidfd)
        os.close(pidfd)
        return pid, lives
    finally:
        os.close(heard)
        if told >= 0:
            os.close(told)
