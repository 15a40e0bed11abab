"""Processes of a pod that its stage1 has taken out of the pod's cgroup: told by what they hold and have mounted.

The number in ``pid`` alone says nothing once the pod has ended: it may be another process's by now.
"""

from __future__ import annotations

import os
import signal

from kurma_core.linux import process
from kurma_stager_rkt.podpid import pod_pid


def end_strays(place: str) -> bool:
    """Kills those that have inherited the pod's lock, and the pod's first process. Repeatable.

    :param place: the pod's directory.
    :returns: whether there were any.
    """
    try:
        lock = os.stat(place)
    except FileNotFoundError:
        return False
    first = pod_pid(place)
    found = [
        _kill(int(name), lock, place)
        for name in filter(str.isdigit, os.listdir("/proc"))
        if int(name) == first or _has_inherited(name, lock)
    ]
    return any(found)


def _kill(pid: int, lock: os.stat_result, place: str) -> bool:
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        # Looked at again, now that its number cannot become another one's.
        if pid == os.getpid() or not (_has_inherited(str(pid), lock) or _is_of(pid, os.path.basename(place))):
            return False
        process.pidfd_send_signal(fd, signal.SIGKILL)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)


def _has_inherited(pid: str, lock: os.stat_result) -> bool:
    """Programs of Kurma that look at the lock have it for themselves alone: it is closed when they execute."""
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            if os.path.samestat(os.stat(f"/proc/{pid}/fd/{fd}"), lock) and not _closes(pid, fd):
                return True
    except OSError:
        return False  # it has ended
    return False


def _closes(pid: str, fd: str) -> bool:
    with open(f"/proc/{pid}/fdinfo/{fd}", "rb") as stream:
        flags = next(line.split()[1] for line in stream if line.startswith(b"flags:"))
    return bool(int(flags, 8) & os.O_CLOEXEC)


def _is_of(pid: int, uuid: str) -> bool:
    """Whether the pod is named where its root is, or in its cgroups or arguments."""
    name = uuid.encode()
    try:
        if uuid in os.readlink(f"/proc/{pid}/root"):
            return True
        with open(f"/proc/{pid}/mountinfo", "rb") as stream:
            # Of others' mounts it may see any.
            if any(name in line for line in stream if line.split()[4] == b"/"):
                return True
        for file in ("cgroup", "cmdline"):
            with open(f"/proc/{pid}/{file}", "rb") as stream:
                if name in stream.read():
                    return True
    except OSError:
        return False  # it has ended
    return False
