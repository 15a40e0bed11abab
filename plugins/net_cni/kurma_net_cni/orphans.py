"""Plugins that still run for a pod though whoever has started them is gone (killed, out of memory).

They would go on making what a DEL has just taken away, and nobody would know of it any more.
"""

from __future__ import annotations

import os
import select
from contextlib import suppress
from signal import SIGKILL

#: How often is looked for those that were started meanwhile; milliseconds that one may take to die.
_TRIES, _PATIENCE = 10, 5000


def end(pod: str) -> None:
    """Kills them and what they have started, and waits until they are gone. To be called where none can be at work
    rightly: by whoever deletes.
    """
    for _ in range(_TRIES):
        pids = running(pod)
        if not pids:
            break
        for pid in pids:
            with suppress(OSError):  # it has ended meanwhile
                _kill(pid, pod)


def _kill(pid: int, pod: str) -> None:
    fd = os.pidfd_open(pid)
    try:
        if _is_for(pid, pod):
            os.kill(pid, SIGKILL)
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            poll.poll(_PATIENCE)
    finally:
        os.close(fd)


def running(pod: str) -> list[int]:
    """PIDs of plugins that were told to work for that pod."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and _is_for(int(name), pod)]


def _is_for(pid: int, pod: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return False
    return b"CNI_CONTAINERID=" + os.fsencode(pod) in words and any(w.startswith(b"CNI_COMMAND=") for w in words)
