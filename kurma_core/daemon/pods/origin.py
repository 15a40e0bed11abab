"""Whether who has come by an app's socket comes from that app's pod: another's volume may lead to it, too."""

from __future__ import annotations

import errno
import itertools
import os
import select
import socket

#: Of Linux 6.5: a descriptor of the process that has connected.
_SO_PEERPIDFD = getattr(socket, "SO_PEERPIDFD", 77)


def is_strange(connected: socket.socket, pid: int, pod: str) -> bool:
    """Whether that process, as we know its number, belongs to another pod. What belongs to none is the host's own:
    of its processes, only root's come by. Of who has ended meanwhile nobody knows, and it is none of the pod's.

    The descriptor stands for the process itself: another that gets its number is not taken for it. Where the
    kernel gives none with the connection, that holds from here on.
    """
    try:
        pidfd = _pidfd(connected, pid)
    except OSError:
        return True
    try:
        theirs = _pods(pid)
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        if poll.poll(0):
            return True
        # kurmad may be in a pod itself, and all that it sees with it.
        return pod not in theirs and bool(theirs - _pods(os.getpid()))
    except OSError:
        return True
    finally:
        os.close(pidfd)


def _pidfd(connected: socket.socket, pid: int) -> int:
    """:raises OSError: the process has ended, or is not in sight."""
    try:
        found = connected.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
        return os.pidfd_open(pid)
    os.set_inheritable(found, False)
    return found


def _pods(pid: int) -> set[str]:
    """The pods whose cgroups a process is in, by UUID; of each kurma."""
    with open(f"/proc/{pid}/cgroup", errors="surrogateescape") as file:
        paths = [line.rstrip("\n").split(":", 2)[2].split("/") for line in file]
    return {name for parts in paths for above, name in itertools.pairwise(parts) if above == "kurma"}


__all__ = ["is_strange"]
