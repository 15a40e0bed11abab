"""Finds, moves and ends processes that a network's setup has left running (helpers).

A helper is identified by its root directory, which is the network's, independent of forks and parents. Helpers get
a cgroup of their own, ``kurma-networks/…``: in the cgroup of the command that ran the setup they would be
accounted to its service, and end with it.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from contextlib import suppress

from kurma_core.linux.cgroups import CgroupTree
from kurma_core.linux.process import pidfd_open, pidfd_send_signal, wait_pidfd

#: Seconds that helpers have to end after SIGTERM, and after SIGKILL.
_GRACE, _PATIENCE = 2.0, 10.0


def running(path: str) -> list[int]:
    """Returns the PIDs of the processes that have ``path`` as their root."""
    try:
        wanted = os.stat(path)
    except FileNotFoundError:
        return []
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and _has_root(int(name), wanted)]


def settle(path: str) -> None:
    """Moves the helpers into their cgroup. No other process may run in that root meanwhile.

    :raises OSError: the cgroup cannot be made or written to; the helpers stay in theirs.
    """
    settled: set[int] = set()
    while fresh := [pid for pid in running(path) if pid not in settled]:
        home = _home(path)
        home.create()
        for pid in fresh:
            with suppress(ProcessLookupError):
                home.add(pid)
            settled.add(pid)


def end(path: str) -> list[int]:
    """Ends the helpers by SIGTERM, then by SIGKILL, and removes their cgroup. :returns: PIDs of helpers that do
    not die.

    :raises OSError: the cgroup cannot be removed.
    """
    left = _end(path)
    if not left:
        _home(path).remove()
    return left


def _home(path: str) -> CgroupTree:
    return CgroupTree(f"kurma-networks/{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}")


def _end(path: str) -> list[int]:
    _round(path, signal.SIGTERM, time.monotonic() + _GRACE)
    limit = time.monotonic() + _PATIENCE
    while True:
        left = running(path)
        if not left or time.monotonic() > limit:
            return left
        # The next round finds processes that were forked meanwhile.
        _round(path, signal.SIGKILL, limit)


def _round(path: str, number: int, limit: float) -> None:
    """Signals all helpers, and waits until they have ended or the time has expired."""
    held = []
    try:
        wanted = os.stat(path)
    except FileNotFoundError:
        return
    try:
        for pid in running(path):
            with suppress(ProcessLookupError):
                fd = pidfd_open(pid)
                held.append(fd)
                if _has_root(pid, wanted):  # checked again: before pidfd_open the PID could be reused
                    pidfd_send_signal(fd, number)
        for fd in held:
            wait_pidfd(fd, limit - time.monotonic())
    finally:
        for fd in held:
            os.close(fd)


def _has_root(pid: int, wanted: os.stat_result) -> bool:
    try:
        found = os.stat(f"/proc/{pid}/root")
    except OSError:  # it has ended, or is a kernel thread
        return False
    return (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino)
