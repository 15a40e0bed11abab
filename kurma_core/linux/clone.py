"""Forks processes by clone(2) directly into a cgroup, on every hierarchy.

A write to ``cgroup.procs`` waits for a grace period of the kernel, some ten milliseconds, unless there was another
such write just before. A clone into a v2 cgroup does not wait; on v1, neither does a single thread that writes
itself into ``tasks``.

On Linux 6.18, a child that is cloned into a cgroup gets SIGKILL at once if that cgroup and the parent's cgroup
were killed (by ``cgroup.kill``, their own or a parent's) a different number of times, however long ago: for
example from a cgroup that was never killed into one that was. A child that moves by ``cgroup.procs`` lives, and so
does one that is cloned into a cgroup which was removed and made anew. So the caller must find out whether the
child lives, and if not, clone again with ``move``, as :func:`fork_into` does. Needs root.
"""

from __future__ import annotations

import errno
import os

from kurma_core.linux import libc, process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

CLONE_PIDFD = 0x1000
CLONE_PARENT = 0x8000
_CLONE_INTO_CGROUP = 0x200000000
_SIGCHLD = 17

# Kernels before 5.7 know no cgroup there; filters of system calls, such as those of containers, may refuse it.
# A cgroup that is full (EAGAIN) refuses a clone, but accepts a process that moves there.
_CANNOT = (errno.ENOSYS, errno.EINVAL, errno.E2BIG, errno.EPERM, errno.EAGAIN)


def clone(flags: int = 0, cgroup: int = -1) -> tuple[int, int]:
    """Fork by the system call, without libc's handlers. Only for a process with one thread; the child must exec,
    or end by ``os._exit``.

    :param flags: ``CLONE_PARENT`` makes the child a child of our own parent; ``namespaces.CLONE_NEW…`` work too.
    :param cgroup: a descriptor of a v2 cgroup's directory, into which the child is cloned.
    :returns: ``(pid, pidfd)`` in the parent, ``(0, -1)`` in the child.
    :raises OSError: as the kernel says; ``ENOSYS``, ``EINVAL`` or ``E2BIG`` from one that knows no ``cgroup``.
    """
    pidfd = bytearray(8)
    if cgroup < 0:
        pid = libc.syscall("clone", flags | CLONE_PIDFD | _SIGCHLD, 0, libc.buffer(pidfd), 0, 0)
    else:
        # The kernel's struct clone_args. A child of our parent ends with the signal that we end with ourselves.
        signal = 0 if flags & CLONE_PARENT else _SIGCHLD
        flags |= CLONE_PIDFD | _CLONE_INTO_CGROUP
        arguments = libc.words(flags, libc.address(pidfd), 0, 0, signal, 0, 0, 0, 0, 0, cgroup)
        pid = libc.syscall("clone3", arguments, len(arguments))
    if pid == 0:
        return 0, -1
    return pid, int.from_bytes(pidfd[:4], "little")


class Birthplace:
    """A cgroup, opened on every hierarchy, for children to join. Close it.

    :param directories: the cgroup's, one per hierarchy, v1 or v2; none: children stay in their parent's cgroup.
    :raises OSError: a directory is missing, or is not a cgroup's.
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

    @classmethod
    def of_descriptors(cls, unified: int, tasks: Iterable[int]) -> Birthplace:
        """A cgroup that another process has opened, see :meth:`descriptors`. It owns the descriptors now."""
        place = cls(())
        if unified >= 0:
            place._unified = ("its cgroup", unified)
        place._tasks = [("its cgroup", fd) for fd in tasks]
        return place

    def descriptors(self) -> tuple[int, list[int]]:
        """The directory on the v2 hierarchy (-1: it is on none), and the files ``tasks`` on v1."""
        return -1 if self._unified is None else self._unified[1], [fd for _, fd in self._tasks]

    def clone(self, flags: int = 0, *, move: bool = False) -> tuple[int, int]:
        """As :func:`clone`. The child must call :meth:`join`.

        :param move: the child moves itself on v2, too: slower, and without the SIGKILL that the module's text
            describes.
        """
        if self._unified is not None and not move:
            path, directory = self._unified
            try:
                made = clone(flags, directory)
            except OSError as error:
                if error.errno not in _CANNOT:
                    raise OSError(error.errno, error.strerror, path) from None
            else:
                if made[0] == 0:
                    self._close_unified()  # the child is in the v2 cgroup already
                return made
        return clone(flags)

    def join(self) -> None:
        """Joins the hierarchies that the child is not in yet. Call it in the child, before it has threads or
        children.

        :raises OSError: the child could not join; ``filename`` is the cgroup.
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


def fork_into(directories: Iterable[str], flags: int = 0) -> int:
    """Fork a child into the cgroup, on every hierarchy. For a process with one thread.

    :param directories: of the cgroup, as in :class:`Birthplace`. :param flags: as for :func:`clone`.
    :returns: the child's PID; 0 in the child, which may only exec or end by ``os._exit``.
    :raises OSError: no child was made; or, in the child, it could not join.
    """
    place = Birthplace(directories)
    try:
        for move in (False, True):
            pid, lives = _fork(place, move, flags)
            if lives:
                return pid
        raise OSError(errno.ECHILD, "the new process was killed")
    finally:
        place.close()


def _fork(place: Birthplace, move: bool, flags: int) -> tuple[int, bool]:
    """:returns: the child's PID, and whether it lives; if not, it has been reaped."""
    heard, told = os.pipe2(os.O_CLOEXEC)
    try:
        pid, pidfd = place.clone(flags, move=move)
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
