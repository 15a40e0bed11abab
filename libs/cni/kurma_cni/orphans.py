"""Kills CNI plugins that still run for a pod after the process that started them died.

They would make again what a DEL has just removed, and no record would say so.
"""

from __future__ import annotations

import os
import select

#: Attempts to find plugins that were started meanwhile; seconds that one may take to die.
_TRIES, _PATIENCE = 10, 5.0
_SIGKILL = 9


def end(container: str) -> None:
    """Kills them and waits until they are gone. For a caller that deletes, while no plugin may rightly run."""
    for _ in range(_TRIES):
        pids = running(container)
        if not pids:
            break
        for pid in pids:
            try:  # noqa: SIM105 - contextlib is heavy
                _kill(pid, container)
            except OSError:  # it has ended meanwhile
                pass


def _kill(pid: int, container: str) -> None:
    import signal

    fd = os.pidfd_open(pid)
    try:
        if _is_for(pid, container):
            signal.pidfd_send_signal(fd, _SIGKILL)
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            poll.poll(_PATIENCE * 1000)
    finally:
        os.close(fd)


def running(container: str) -> list[int]:
    """PIDs of plugins that were told to work for that pod."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and _is_for(int(name), container)]


def _is_for(pid: int, container: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return False
    wanted = b"CNI_CONTAINERID=" + os.fsencode(container)
    return wanted in words and any(word.startswith(b"CNI_COMMAND=") for word in words)
