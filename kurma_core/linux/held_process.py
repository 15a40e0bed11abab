"""A process that is held by a pidfd: from the one that started it, or found again by any other.

Whoever is its parent waits for it; others learn its exit status from the kernel (Linux 6.15 and later), or not at
all. Nothing here depends on being the parent.
"""

from __future__ import annotations

import os

from kurma_core.linux import process

_PF_EXITING = 0x4
_SIGKILL = 9


def exit_code(status: int) -> int:
    """What a shell makes of an exit status: 128+N for signal N, which is -N."""
    return status if status >= 0 else 128 - status


def put_to_death(pidfd: int) -> None:
    """Ends a process that may be our child, and waits for it."""
    try:
        process.pidfd_send_signal(pidfd, _SIGKILL)
    except ProcessLookupError:
        return
    process.wait_pidfd(pidfd)
    process.exit_status(pidfd)


def is_exiting(pid: int) -> bool:
    """Whether the process has ended or is on its way out.

    The kernel marks a process before it closes its descriptors: its mark is there once its exit has closed a pipe.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return fields[0] in (b"Z", b"X") or bool(int(fields[6]) & _PF_EXITING)


def is_killed(pid: int) -> bool:
    """Whether the process is on its way out, or will be as soon as the kernel runs it: SIGKILL was sent to it."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            pending = file.read().partition(b"\nSigPnd:")[2].split(None, 1)[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return bool(int(pending, 16) & 1 << (_SIGKILL - 1)) or is_exiting(pid)


class HeldProcess:
    """Most of :class:`kurma_core.hookspecs.stager.RunningStager`.

    :param pidfd: closed by :meth:`close`.
    """

    def __init__(self, identity: process.ProcessIdentity, pidfd: int) -> None:
        self._identity = identity
        self._pidfd = pidfd
        self._status: int | None = None

    @property
    def pid(self) -> int:
        return self._identity.pid

    def fileno(self) -> int:
        return self._pidfd

    def alive(self) -> bool:
        return not process.wait_pidfd(self._pidfd, 0)

    def signal(self, number: int) -> None:
        try:
            process.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return

    def wait(self, timeout: float | None = None) -> int | None:
        """Its exit code; None: it cannot be known, or the time is over. :param timeout: seconds."""
        if self._status is None and process.wait_pidfd(self._pidfd, timeout):
            status = process.exit_status(self._pidfd)
            self._status = None if status is None else exit_code(status)
        return self._status

    def wait_reaped(self) -> int | None:
        """As :meth:`wait`, of one that has ended, for who cannot do without knowing how: its parent, mostly init,
        may take its time to hear of it, and the kernel tells others then."""
        if self._status is None:
            process.wait_reaped(self._pidfd)
        return self.wait(0)

    def close(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
