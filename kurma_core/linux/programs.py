"""Running a program: its input, its output, its time limit. By ``posix_spawn``: quick, and safe beside threads."""

from __future__ import annotations

import os
import select
import time

from kurma_core.linux.execute import DEFAULT_PATH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

#: Seconds that a program may take (Kurma Network Specification: one minute).
TIMEOUT = 60.0
#: Bytes of output that are looked at, and with which a program counts as running wild.
_OUTPUT_MAX = 4 << 20
_OUTPUT_WILD = 64 << 20
#: Of a message that is too long: characters of its beginning; the rest is of its end, where errors are.
_MESSAGE_MAX, _BEGINNING = 600, 200
#: Seconds between two looks at how much a slow program has printed by now.
_LOOK = 0.2
_SIGKILL, _SIGSTOP = 9, 19
#: SIGHUP, SIGINT, SIGPIPE, SIGTERM, SIGCHLD; the module `signal` is too heavy inside stagers.
_RESET = (1, 2, 13, 15, 17)


class ProgramTimeout(Exception):
    """The program was killed, with all that it had started, when its time was over."""


class ProgramWild(ProgramTimeout):
    """The same, before its time was over: it would not stop printing."""


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


def find_program(name: str) -> str | None:
    """Path of a program on :func:`search_path`; None: it is not installed."""
    for directory in search_path().split(":"):
        path = f"{directory}/{name}"
        if directory.startswith("/") and os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    return None


def one_line(said: bytes | str) -> str:
    """What a program has printed, for people: printable, one line, of bearable length. It is not trusted with the
    terminal, nor to be short.
    """
    text = said if isinstance(said, str) else said.decode(errors="replace")
    line = " ".join("".join([char if char.isprintable() else " " for char in text]).split())
    if len(line) <= _MESSAGE_MAX:
        return line
    return f"{line[:_BEGINNING]} … {line[len(line) - (_MESSAGE_MAX - _BEGINNING) :]}"


def run(
    arguments: list[str], *, stdin: bytes = b"", environment: Mapping[str, str], timeout: float = TIMEOUT
) -> Finished:
    """Runs ``arguments[0]`` (an absolute path) to its end, as root, in a session of its own: a Ctrl-C meant for
    Kurma does not leave it half done.

    :param timeout: seconds.
    :raises ProgramTimeout: it took longer, and is dead, as is all that it started.
    :raises ProgramWild: it printed beyond all measure; the same.
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
        status = _wait(pid, timeout, files[1:])
        return Finished(status, os.pread(files[1], _OUTPUT_MAX, 0), os.pread(files[2], _OUTPUT_MAX, 0))
    finally:
        for fd in files:
            os.close(fd)


def _wait(pid: int, timeout: float, outputs: list[int]) -> int:
    """The exit status of our child; it is dead and reaped whichever way this is left."""
    ended = wild = False
    try:
        fd = os.pidfd_open(pid)
        try:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            end = time.monotonic() + timeout
            while not ended and not wild and (left := end - time.monotonic()) > 0:
                ended = bool(poll.poll(min(left, _LOOK) * 1000))
                wild = any(os.fstat(output).st_size > _OUTPUT_WILD for output in outputs)
        finally:
            os.close(fd)
    finally:
        if not ended:  # too slow, running wild, or we are interrupted
            _kill_all(pid)
        _, status = os.waitpid(pid, 0)
    if wild:
        raise ProgramWild
    if not ended:
        raise ProgramTimeout
    return os.waitstatus_to_exitcode(status)


def _kill_all(pid: int) -> None:
    """Kills a child that is not reaped yet, what descends from it, and what is left in its session.

    Stopped first, until nobody new is found: what is stopped starts nothing any more.
    """
    found: set[int] = {pid}
    seen: set[int] = set()
    while found - seen:
        _signal(found - seen, _SIGSTOP)
        seen = set(found)
        found |= _family(pid, seen)
    _signal(found, _SIGKILL)


def _family(leader: int, known: set[int]) -> set[int]:
    """The processes of the leader's session, and those whose parent is known."""
    found = set()
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                _, parent, _, session = file.read().rpartition(b")")[2].split()[:4]
        except (OSError, ValueError):  # it has ended meanwhile
            continue
        if int(session) == leader or int(parent) in known:
            found.add(int(name))
    return found


def _signal(pids: set[int], number: int) -> None:
    for pid in pids:
        try:  # noqa: SIM105 - contextlib is heavy
            os.kill(pid, number)
        except ProcessLookupError:
            pass
