"""Ends all descendants of this process. It must be their subreaper, so that they stay its descendants however they
fork, and must have no other children.
"""

from __future__ import annotations

import os
import time

from kurma_core.linux import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_SIGKILL, _SIGSTOP = 9, 19
#: Rounds of finding and stopping descendants, which may fork before they are stopped.
_ROUNDS = 100
_TURN = 0.005


def end_all(patience: float) -> list[int]:
    """Kills every descendant and waits for its end.

    :param patience: seconds.
    :returns: PIDs of descendants that do not die, since they hang in the kernel.
    """
    end = time.monotonic() + patience
    while _reaped():
        held: dict[int, int] = {}
        try:
            # All are stopped before they are killed, so that they cannot fork faster than they are found.
            for _ in range(_ROUNDS):
                fresh = _hold_new(held)
                for pid in fresh:
                    _signal(held[pid], _SIGSTOP)
                if not fresh:
                    break
            for fd in held.values():
                _signal(fd, _SIGKILL)
            if time.monotonic() > end:
                return sorted(held)
        finally:
            for fd in held.values():
                os.close(fd)
        time.sleep(_TURN)
    return []


def _reaped() -> bool:
    """Reaps children that have ended; returns whether others remain."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return True
        except ChildProcessError:
            return False


def _hold_new(held: dict[int, int]) -> list[int]:
    """Opens a pidfd for each new descendant, puts it into ``held``, and returns the new PIDs."""
    parents = dict(_parents())
    known = {os.getpid(), *held}
    found = []
    grown = True
    while grown:
        grown = False
        for pid, parent in parents.items():
            if parent not in known or pid in known:
                continue
            try:
                fd = process.pidfd_open(pid)
            except ProcessLookupError:
                continue
            # The PID may have been reused before pidfd_open: check the parent again.
            if _parent(pid) not in known:
                os.close(fd)
                continue
            held[pid] = fd
            known.add(pid)
            found.append(pid)
            grown = True
    return found


def _parents() -> Iterator[tuple[int, int]]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            parent = _parent(int(name))
            if parent:
                yield int(name), parent


def _parent(pid: int) -> int:
    """Returns the PID of the parent; 0: the process does not exist, or is a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if fields[0] in (b"Z", b"X") else int(fields[1])


def _signal(fd: int, number: int) -> None:
    try:  # noqa: SIM105 - contextlib is not light
        process.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        pass
