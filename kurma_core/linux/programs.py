"""Runs programs to their end within a time limit, by ``posix_spawn``; and holds a running process by a pidfd.

:param pid: of a process. :param pidfd: descriptor of a process.
"""

from __future__ import annotations

import os
import select
import time

from kurma_core.linux import process
from kurma_core.linux.process import DEFAULT_PATH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

#: Seconds that a program may take (Kurma Network Specification: one minute).
TIMEOUT = 60.0
#: Bytes of output that are read, and from which on a program is killed as running wild.
_OUTPUT_MAX = 4 << 20
_OUTPUT_WILD = 64 << 20
#: Most characters of a message, and those kept of its beginning; the others are of its end, where errors are.
_MESSAGE_MAX, _BEGINNING = 600, 200
#: Seconds between two checks of the size of a program's output.
_LOOK = 0.2
_SIGKILL, _SIGSTOP = 9, 19
#: SIGHUP, SIGINT, SIGPIPE, SIGTERM, SIGCHLD; the module `signal` is too heavy inside stagers.
_RESET = (1, 2, 13, 15, 17)


_PF_EXITING = 0x4


class ProgramTimeout(TimeoutError):
    """The program was killed with all its descendants: it took too long, or printed without end."""


class Finished:
    """The result of a program.

    :param status: exit status; negative: the signal that ended it.
    :param stdout: what it has printed. :param stderr: what it has printed on standard error.
    """

    __slots__ = ("status", "stderr", "stdout")

    def __init__(self, status: int, stdout: bytes, stderr: bytes) -> None:
        self.status = status
        self.stdout = stdout
        self.stderr = stderr


def search_path() -> str:
    """``PATH`` for programs that run others (``iptables``): the caller's, and the administrator's directories."""
    own = os.environ.get("PATH", "")
    return f"{own}:{DEFAULT_PATH}" if own else DEFAULT_PATH


def find_program(name: str) -> str | None:
    """Path of a program on :func:`search_path`; None: it is not installed. :param name: of the program."""
    for directory in search_path().split(":"):
        path = f"{directory}/{name}"
        if directory.startswith("/") and os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    return None


def one_line(said: bytes | str) -> str:
    """The output of a program, for people: printable, one line, of bearable length. It is not trusted with the
    terminal, nor to be short. :param said: the output.
    """
    text = said if isinstance(said, str) else said.decode(errors="replace")
    line = " ".join("".join([char if char.isprintable() else " " for char in text]).split())
    if len(line) <= _MESSAGE_MAX:
        return line
    return f"{line[:_BEGINNING]} … {line[len(line) - (_MESSAGE_MAX - _BEGINNING) :]}"


def run(
    arguments: list[str], *, stdin: bytes = b"", environment: Mapping[str, str], timeout: float = TIMEOUT
) -> Finished:
    """Runs ``arguments[0]`` (an absolute path) to its end, as root, in a session of its own, so that Ctrl-C does
    not interrupt it.

    :param stdin: what the program reads. :param environment: the whole environment of the program.
    :param timeout: seconds.
    :raises ProgramTimeout: it was killed with its descendants; the text is the reason.
    :raises OSError: it could not be started.
    """
    # Files in memory instead of pipes: a process that keeps one open cannot block us.
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
    """Waits for a child. :returns: its exit status. After an exception, the child is killed and reaped, too."""
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
        raise ProgramTimeout("it printed without end")
    if not ended:
        raise ProgramTimeout(f"it took longer than {timeout:g} seconds")
    return os.waitstatus_to_exitcode(status)


def _kill_all(pid: int) -> None:
    """Kills a child that is not reaped yet, what descends from it, and what is left in its session.

    Each is stopped first, until a look finds no new process: a stopped process cannot fork.
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


def exit_code(status: int) -> int:
    """An exit status as a shell shows it: 128+N for signal N, which is -N."""
    return status if status >= 0 else 128 - status


def put_to_death(pidfd: int) -> None:
    """Kills a process, waits for its end, and reaps it if it is our child."""
    try:
        process.pidfd_send_signal(pidfd, _SIGKILL)
    except ProcessLookupError:
        return
    process.wait_pidfd(pidfd)
    process.exit_status(pidfd)


def is_exiting(pid: int) -> bool:
    """Whether the process has ended or is exiting.

    The kernel marks an exiting process before it closes its descriptors: so the mark is set when a pipe is closed
    by the process's exit.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return fields[0] in (b"Z", b"X") or bool(int(fields[6]) & _PF_EXITING)


def is_killed(pid: int) -> bool:
    """Whether the process is exiting, or has a pending SIGKILL."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            pending = file.read().partition(b"\nSigPnd:")[2].split(None, 1)[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return bool(int(pending, 16) & 1 << (_SIGKILL - 1)) or is_exiting(pid)


class HeldProcess:
    """A running process, held by a pidfd: most of what a plugin's running stager is asked for
    (:class:`kurma_core.hookspecs.stager.RunningStagerHooks`); its subclass marks the methods as hooks.

    :param identity: of the process. :param pidfd: closed by :meth:`close`.
    """

    def __init__(self, identity: process.ProcessIdentity, pidfd: int) -> None:
        self._identity = identity
        self._pidfd = pidfd
        self._status: int | None = None

    @property
    def pid(self) -> int:
        """Its process ID."""
        return self._identity.pid

    def fileno(self) -> int:
        """The pidfd, which polls readable when the process has ended."""
        return self._pidfd

    def alive(self) -> bool:
        """Whether it has not ended."""
        return not process.wait_pidfd(self._pidfd, 0)

    def signal(self, number: int) -> None:
        """Sends it a signal; does nothing if it has ended. :param number: the signal's."""
        try:
            process.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return

    def wait(self, timeout: float | None = None) -> int | None:
        """Waits for its end. :param timeout: seconds; None: without end.
        :returns: its exit code; None: it is unknown, or the timeout is over."""
        if self._status is None and process.wait_pidfd(self._pidfd, timeout):
            status = process.exit_status(self._pidfd)
            self._status = None if status is None else exit_code(status)
        return self._status

    def wait_reaped(self) -> int | None:
        """The exit code of an ended process. It waits until the parent, mostly init, has reaped the process: only
        then the kernel gives the status to others."""
        if self._status is None:
            process.wait_reaped(self._pidfd)
        return self.wait(0)

    def close(self) -> None:
        """Closes the pidfd. The process runs on. It may be repeated."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
