"""Processes: hold one by a pidfd, tell one from another, learn how it ended, start a thread of this one.

PID, start time and boot identify a process. A pidfd holds it, also if it is not our child.

:param pid: of a process. :param pidfd: descriptor of a process, as from :func:`pidfd_open`.
"""

from __future__ import annotations

import _thread
import errno
import os
import select
import time

from kurma_core.linux import libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: The search path if the environment has no PATH.
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Seconds: poll(2) can wait for less than 25 days.
LONGEST_POLL = 2_000_000
_SIGKILL = 9
_SIGSTOP = 19
_SIG_SETMASK = 2

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CLOSE_RANGE_CLOEXEC = 4
_LARGEST_FD = 0xFFFFFFFF
_P_PIDFD = 3
# Seconds to wait until the parent, or init, has reaped an ended process.
_REAPING = 2.0
# Attempts, and seconds between them, to reap an ended child whose tracer has not released it.
_TRACED_TURNS, _TRACED_TURN = 100, 0.02
# _IOWR(0xFF, 11, struct pidfd_info) with the structure's first published size
_PIDFD_INFO_SIZE = 64
_PIDFD_GET_INFO = (3 << 30) | (_PIDFD_INFO_SIZE << 16) | (0xFF << 8) | 11
_PIDFD_INFO_EXIT = 1 << 3


def pidfd_open(pid: int) -> int:
    """A pidfd of the process, close-on-exec. :raises ProcessLookupError: there is no such process."""
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # Older kernels answer so if the PID is that of a session or group whose leader has ended.
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH)) from None


def pidfd_send_signal(pidfd: int, signal: int) -> None:
    """Sends a signal. :raises ProcessLookupError: the process has ended, and was reaped."""
    libc.syscall("pidfd_send_signal", pidfd, signal, 0, 0)


def boot_id() -> str:
    """A random identity of this boot of the machine."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def _stat(pid: int) -> list[str]:
    """The fields of ``/proc/PID/stat`` from the third (the state) on; the second may hold spaces and brackets."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), str(pid)) from None


def start_time(pid: int) -> int:
    """When the process started, in clock ticks since boot. :raises ProcessLookupError: there is no such
    process."""
    return int(_stat(pid)[19])


def start_time_of_self() -> int:
    """As :func:`start_time` of this process, also if ``/proc`` shows another PID namespace."""
    with open("/proc/self/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def state(pid: int) -> str:
    """The process's state as one letter: ``R``, ``S``, ``D``, ``Z`` (ended, not reaped) …

    :raises ProcessLookupError: there is no such process.
    """
    return _stat(pid)[0]


class ProcessIdentity:
    """The identity of a process, which differs from that of any later process with the same PID.

    :param start_time: as from :func:`start_time`. :param boot_id: as from :func:`boot_id`.
    """

    __slots__ = ("boot_id", "pid", "start_time")

    def __init__(self, pid: int, start_time: int, boot_id: str) -> None:
        self.pid = pid
        self.start_time = start_time
        self.boot_id = boot_id

    @classmethod
    def current(cls, pid: int | None = None) -> ProcessIdentity:
        """The identity of the process that has ``pid`` now; None: this process.

        :raises ProcessLookupError: there is no such process.
        """
        pid = os.getpid() if pid is None else pid
        return cls(pid, start_time(pid), boot_id())

    def alive(self) -> bool:
        """Whether that process still runs; a zombie does not."""
        try:
            fields = _stat(self.pid)
        except ProcessLookupError:
            return False
        return int(fields[19]) == self.start_time and fields[0] not in "ZX" and self.boot_id == boot_id()

    def open(self) -> int | None:
        """A pidfd of that process, which the caller closes; None: it has ended."""
        try:
            fd = pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        alive = False
        try:
            # Compare after opening: the PID may have been reused before.
            alive = self.alive()
        finally:
            if not alive:
                os.close(fd)
        return fd if alive else None

    def to_json(self) -> dict[str, object]:
        """The identity, to be kept on disk."""
        return {"pid": self.pid, "startTime": self.start_time, "bootId": self.boot_id}

    @classmethod
    def from_json(cls, value: dict[str, object]) -> ProcessIdentity:
        """Reads a value that :meth:`to_json` made. :raises ValueError: the value has another shape."""
        pid, started, boot = value.get("pid"), value.get("startTime"), value.get("bootId")
        if not isinstance(pid, int) or not isinstance(started, int) or not isinstance(boot, str):
            raise ValueError(f"not a process identity: {value!r}")
        return cls(pid, started, boot)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ProcessIdentity):
            return NotImplemented
        return (self.pid, self.start_time, self.boot_id) == (other.pid, other.start_time, other.boot_id)

    def __hash__(self) -> int:
        return hash((self.pid, self.start_time, self.boot_id))

    def __repr__(self) -> str:
        return f"ProcessIdentity(pid={self.pid}, start_time={self.start_time}, boot_id={self.boot_id!r})"


def wait_pidfd(pidfd: int, timeout: float | None = None) -> bool:
    """Wait until a process has ended, which need not be a child.

    :param timeout: seconds; None: for ever.
    :returns: whether it has ended.
    """
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    if timeout is None:
        return bool(poll.poll())
    while timeout > LONGEST_POLL:
        if poll.poll(LONGEST_POLL * 1000):
            return True
        timeout -= LONGEST_POLL
    return bool(poll.poll(max(0, round(timeout * 1000))))


def exit_status(pidfd: int) -> int | None:
    """The exit status of an ended process, as of ``os.waitstatus_to_exitcode``: the exit code, or minus the
    signal.

    A child is reaped by this. For other processes, the kernel has the status since Linux 6.15, once they are
    reaped.

    :returns: None: it still runs, or the kernel does not have the status.
    """
    for _ in range(_TRACED_TURNS):
        try:
            result = os.waitid(_P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            return _exit_of_stranger(pidfd)
        if result is not None or not wait_pidfd(pidfd, 0):
            break
        # A child that has ended and cannot be reaped is traced: its tracer (such as strace) must release it first.
        time.sleep(_TRACED_TURN)
    if result is None:
        return None
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


def _exit_of_stranger(pidfd: int) -> int | None:
    import fcntl

    info = bytearray(_PIDFD_INFO_SIZE)
    info[0:8] = libc.words(_PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
    except OSError:
        return None  # older kernels
    if not int.from_bytes(info[0:8], "little") & _PIDFD_INFO_EXIT:
        return None  # older kernels, too; or it has not been reaped yet
    return os.waitstatus_to_exitcode(int.from_bytes(info[60:64], "little", signed=True))


def wait_reaped(pidfd: int, timeout: float = _REAPING) -> None:
    """Waits until the parent of an ended process, mostly init, has reaped it: only then other processes can read
    its exit status. Older kernels do not signal it.

    :param timeout: seconds.
    """
    poll = select.poll()
    poll.register(pidfd, 0)  # POLLHUP alone
    poll.poll(timeout * 1000)


def reset_signals() -> None:
    """Resets all signals to the kernel's defaults and unblocks them, also those that libc reserves (32, 33).

    For a process that is about to exec: it removes the interpreter's own handlers, too.
    """
    by_default = bytes(32)  # the kernel's struct sigaction: SIG_DFL, no flags, no mask
    for number in range(1, 65):
        if number not in (_SIGKILL, _SIGSTOP):
            libc.syscall("rt_sigaction", number, by_default, None, 8)
    libc.syscall("rt_sigprocmask", _SIG_SETMASK, bytes(8), None, 8)


def start_thread(function: Callable[..., object], *arguments: object) -> None:
    """Starts a thread, and waits until it runs: Python 3.11 crashes if it ends while a thread begins. The process
    may end before the thread does.

    :param function: called in the thread. :param arguments: its arguments.
    :raises RuntimeError: the host allows no more threads.
    """
    runs = _thread.allocate_lock()
    runs.acquire()

    def run() -> None:
        runs.release()
        function(*arguments)

    _thread.start_new_thread(run, ())
    runs.acquire()


def set_pdeathsig(signal: int) -> None:
    """Makes the kernel send ``signal`` to this process when the thread that forked it ends; 0: no signal."""
    libc.prctl(_PR_SET_PDEATHSIG, signal)


def set_child_subreaper(enabled: bool = True) -> None:
    """Make orphaned descendants children of this process. :param enabled: False: no more."""
    libc.prctl(_PR_SET_CHILD_SUBREAPER, int(enabled))


def close_others(keep: set[int], *, on_exec: bool = False) -> None:
    """Close every descriptor that is not in ``keep``; with ``on_exec``, at the next exec."""
    flags = _CLOSE_RANGE_CLOEXEC if on_exec else 0
    first = 0
    for fd in sorted(keep):
        if fd > first:
            libc.syscall("close_range", first, fd - 1, flags)
        first = fd + 1
    libc.syscall("close_range", first, _LARGEST_FD, flags)


def signal_number(text: str) -> int | None:
    """Reads a signal by name or number, as people and images write it.

    :param text: ``15``, ``TERM``, ``SIGTERM``, ``SIGRTMIN+3``. :returns: its number; None: the text names none.
    """
    import signal

    if text.isascii() and text.isdecimal():
        return int(text) if 0 < int(text) <= 64 else None
    name = text.upper().removeprefix("SIG")
    for base, first in (("RTMIN", signal.SIGRTMIN), ("RTMAX", signal.SIGRTMAX)):
        rest = name.removeprefix(base)
        if name.startswith(base) and rest[:1] in ("+", "-") and rest[1:].isascii() and rest[1:].isdecimal():
            number = first + int(rest)
            return number if signal.SIGRTMIN <= number <= signal.SIGRTMAX else None
    try:
        return signal.Signals[f"SIG{name}"].value
    except KeyError:
        return None
