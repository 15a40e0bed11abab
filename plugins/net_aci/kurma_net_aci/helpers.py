"""Processes that a setup has left running. They are known by their root directory, which is the network's: however
they forked, and whatever their parents are by now.

They have a cgroup of their own, ``kurma-networks/…``: in that of the command that happened to run the setup they
would be counted, and end, with its service.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from contextlib import suppress

from kurma_core.linux.cgroups import CgroupTree
from kurma_core.linux.process import pidfd_open, pidfd_send_signal, wait_pidfd

#: Seconds that they have to end after SIGTERM, and to be gone after SIGKILL.
_GRACE, _PATIENCE = 2.0, 10.0


def running(path: str) -> list[int]:
    """PIDs of the processes that have ``path`` as their root."""
    try:
        wanted = os.stat(path)
    except FileNotFoundError:
        return []
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and _has_root(int(name), wanted)]


def settle(path: str) -> None:
    """Moves them into their cgroup, if there are any. For who knows that nothing else runs in that root.

    :raises OSError: they stay where they are.
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
    """Ends them: by SIGTERM, then by force; their cgroup goes too. :returns: those that do not die.

    :raises OSError: the cgroup stays.
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
        # What was forked meanwhile is found by the next round.
        _round(path, signal.SIGKILL, limit)


def _round(path: str, number: int, limit: float) -> None:
    """Signals all of them, and waits until they are gone, or the time is over."""
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
                if _has_root(pid, wanted):  # still, now that it is held
                    pidfd_send_signal(fd, number)
        for fd in held:
            wait_pidfd(fd, limit - time.monotonic())
    finally:
        for fd in held:
            os.close(fd)


def _has_root(pid: int, wanted: os.stat_result) -> bool:
    try:
        found = os.stat(f"/proc/{pid}/root")
    except OSError:  # it has ended; it is a thread of the kernel's
        return False
    return (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino)
