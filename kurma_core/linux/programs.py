"""Running a program: its input, its output, its time limit. By ``posix_spawn``: quick, and safe beside threads."""

from __future__ import annotations

import os
import select

from kurma_core.linux.execute import DEFAULT_PATH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

#: Seconds that a program may take (Kurma Network Specification: one minute).
TIMEOUT = 60.0
#: Bytes of output that are looked at.
_OUTPUT_MAX = 4 << 20
_SIGKILL = 9
#: SIGHUP, SIGINT, SIGPIPE, SIGTERM, SIGCHLD; the module `signal` is too heavy inside stagers.
_RESET = (1, 2, 13, 15, 17)


class ProgramTimeout(Exception):
    """The program was killed, with its process group, when its time was over."""


class Finished:
    """:param status: exit status; negative: the signal that ended it."""

    __slots__ = ("status", "stderr", "stdout")

    def __init__(self, status: int, stdout: bytes, stderr: bytes) -> None:
        self.status = status
        self.stdout = stdout
        self.stderr = stderr


def search_path() -> str:
    """``PATH`` for programs that run others (``iptables``): the caller's, and where an administrator's are."""
    own = os.environ.get("PATH", "")
    return f"{own}:{DEFAULT_PATH}" if own else DEFAULT_PATH


def run(
    arguments: list[str], *, stdin: bytes = b"", environment: Mapping[str, str], timeout: float = TIMEOUT
) -> Finished:
    """Runs ``arguments[0]`` (an absolute path) to its end, as root, in a session of its own: a Ctrl-C meant for
    Kurma does not leave it half done.

    :param timeout: seconds.
    :raises ProgramTimeout: it took longer, and is dead.
    :raises OSError: it could not be started.
    """
    # Files in memory instead of pipes: nothing can block, whoever keeps an end of them.
    files = [os.memfd_create(name, os.MFD_CLOEXEC) for name in ("stdin", "stdout", "stderr")]
    try:
        os.pwrite(files[0], stdin, 0)
        actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(files)]
        pid = os.posix_spawn(
            arguments[0],
            arguments,
            environment,
            file_actions=actions,
            setsid=True,
            setsigmask=(),
            setsigdef=_RESET,
        )
        status = _wait(pid, timeout)
        return Finished(status, os.pread(files[1], _OUTPUT_MAX, 0), os.pread(files[2], _OUTPUT_MAX, 0))
    finally:
        for fd in files:
            os.close(fd)


def _wait(pid: int, timeout: float) -> int:
    """The exit status of our child; it is dead and reaped whichever way this is left."""
    ended = False
    try:
        fd = os.pidfd_open(pid)
        try:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            ended = bool(poll.poll(timeout * 1000))
        finally:
            os.close(fd)
    finally:
        if not ended:  # too slow, or we are interrupted; it leads a process group of its own
            try:  # noqa: SIM105 - contextlib is heavy
                os.killpg(pid, _SIGKILL)
            except ProcessLookupError:
                pass
        _, status = os.waitpid(pid, 0)
    if not ended:
        raise ProgramTimeout
    return os.waitstatus_to_exitcode(status)
