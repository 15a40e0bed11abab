"""CNI plugins that still run for a pod though whoever has started them is gone (killed, out of memory).

They would go on making what a DEL has just taken away, and nobody would know of it any more.
"""

from __future__ import annotations

import os

from kurma_core.linux import process

#: How often is looked for those that were started meanwhile; seconds that one may take to die.
_TRIES, _PATIENCE = 10, 5.0
_SIGKILL = 9


def end(pod: str) -> None:
    """Kills them and what they have started, and waits until they are gone. To be called where none can be at work
    rightly: by whoever deletes.
    """
    for _ in range(_TRIES):
        pids = running(pod)
        if not pids:
            break
        for pid in pids:
            try:  # noqa: SIM105 - contextlib is heavy
                _kill(pid, pod)
            except OSError:  # it has ended meanwhile
                pass


def _kill(pid: int, pod: str) -> None:
    fd = process.pidfd_open(pid)
    try:
        if _is_for(pid, pod):
            process.pidfd_send_signal(fd, _SIGKILL)
            process.wait_pidfd(fd, _PATIENCE)
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
