"""A child that is born into a cgroup.

A write to ``cgroup.procs`` waits for a grace period of the kernel, some ten milliseconds, unless another such
write was just there. Being cloned into a v2 cgroup does not, and neither does, on v1, a single thread that writes
itself into ``tasks``.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import errno
import os

from kurma_core.linux import libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.linux.cgroups import CgroupTree

_CLONE3 = 435
_CLONE_INTO_CGROUP = 0x200000000
# Kernels before 5.7 know no cgroup there.
_TOO_OLD = (errno.ENOSYS, errno.EINVAL, errno.E2BIG)


def fork_into(tree: CgroupTree) -> int:
    """Fork; the child is in the cgroup on every hierarchy. For a process with one thread.

    :returns: the child's PID; 0 in the child, which may only exec or end by ``os._exit``.
    :raises OSError: no child was made; or, in the child, it could not join.
    """
    unified = -1
    files = []
    try:
        for directory in tree.directories():
            if os.path.exists(directory + "/tasks"):
                files.append(os.open(directory + "/tasks", os.O_WRONLY | os.O_CLOEXEC))
            elif os.path.isdir(directory):
                unified = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        pid = _clone_into(unified) if unified >= 0 else os.fork()
        if pid < 0:
            files.append(os.open("cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=unified))
            pid = os.fork()
        if pid == 0:
            for fd in files:
                os.write(fd, b"0")
        return pid
    finally:
        for fd in (*files, unified):
            if fd >= 0:
                os.close(fd)


def _clone_into(cgroup: int) -> int:
    """As ``fork``; -1: this kernel cannot."""
    arguments = libc.words(_CLONE_INTO_CGROUP, 0, 0, 0, _signal.SIGCHLD, 0, 0, 0, 0, 0, cgroup)
    try:
        return libc.syscall(_CLONE3, arguments, len(arguments))
    except OSError as error:
        if error.errno in _TOO_OLD:
            return -1
        raise
