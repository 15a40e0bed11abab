"""Running a stage1's entrypoints on the host's root, in the pod's directory (Z3, Z6)."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kurma_core.errors import CommandNotExecutableError, CommandNotFoundError, StagerError
from kurma_core.hookspecs import HostProgram
from kurma_core.linux import process
from kurma_core.linux.held_process import exit_code, put_to_death
from kurma_stager_rkt.contents import ROOTFS

if TYPE_CHECKING:
    from kurma_core.hookspecs import Started, Stdio
    from kurma_stager_rkt.records import Note

    Start = Callable[[HostProgram], Started]

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: The exit code of one whose own nobody could learn.
_UNKNOWN = 255
#: Of the caller's environment, for who has its terminal.
_PASSED = ("TERM", "LANG", "COLORTERM")


def begin(
    start: Start,
    note: Note,
    place: str,
    name: str,
    arguments: tuple[str, ...],
    *,
    fds: Mapping[int, int],
    environment: Mapping[str, str] | None = None,
    cgroup: str = "",
) -> Started:
    """Starts an entrypoint: a child of this process, in the pod's directory.

    :param place: the pod's directory.
    :raises StagerError: the image names none, or it cannot be executed.
    :raises HostError: it cannot be started.
    """
    path = note.stage1.entrypoints.get(name)
    if path is None:
        raise StagerError(f"stage1 image {note.stage1.name} has no entrypoint {name}")
    passed = {key: os.environ[key] for key in _PASSED if key in os.environ}
    try:
        return start(
            HostProgram(
                argv=(f"{place}/{ROOTFS}{path}", *arguments),
                environment={"PATH": _PATH, **passed, **(environment or {})},
                directory=place,
                cgroup=cgroup,
                fds=fds,
            )
        )
    except (CommandNotFoundError, CommandNotExecutableError) as error:
        # Not the command that the user asked for: the exit code must not say so.
        raise StagerError(f"stage1 image {note.stage1.name}: entrypoint {name}: {error.message}") from None


def finish(started: Started, timeout: float | None = None, signals: int = -1) -> int | None:
    """Waits for its end; its exit code, 128+N for signal N. None: the time was over, and it was killed.

    :param signals: see :class:`kurma_core.hookspecs.Stdio`.
    """
    try:
        if not _wait(started.pidfd, timeout, signals):
            return None
        status = process.exit_status(started.pidfd)
        return _UNKNOWN if status is None else exit_code(status)
    finally:
        put_to_death(started.pidfd)
        os.close(started.pidfd)


def _wait(pidfd: int, timeout: float | None, signals: int) -> bool:
    if signals < 0:
        return process.wait_pidfd(pidfd, timeout)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.register(signals, select.POLLIN)
    while True:
        ready = [fd for fd, _ in poll.poll(None if timeout is None else timeout * 1000)]
        if pidfd in ready or not ready:
            return bool(ready)
        numbers = os.read(signals, 64)
        if not numbers:  # who asked for it has gone
            poll.unregister(signals)
            numbers = bytes([signal.SIGTERM])
        for number in numbers:
            try:
                process.pidfd_send_signal(pidfd, number)
            except ProcessLookupError:
                return True


def descriptors(stdio: Stdio) -> dict[int, int]:
    return {0: stdio.stdin, 1: stdio.stdout, 2: stdio.stderr}
