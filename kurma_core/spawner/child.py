"""Forks a process, and sets it up until it execs: namespaces, root, user, descriptors.

Runs in the spawner's program, and must be quick to import.

The new process reports on a pipe that closes at exec: first its start time, then a failure, if there is one. All
steps run as root.
"""

from __future__ import annotations

import _socket
import errno
import fcntl
import marshal
import os

from kurma_core.linux import (
    descriptor_passing,
    exec_errors,  # noqa: F401 - see execute
    execute,
    mounts,
    namespaces,
    process,
)
from kurma_core.linux.clone import Birthplace
from kurma_core.spawner import root, wire
from kurma_core.spawner.root import StepError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Request = dict[str, Any]

_TIOCSCTTY = 0x540E
_MSG_NOSIGNAL = 0x4000


def step(name: str, path: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call ``function``; its :class:`OSError` becomes a :class:`StepError` of that name and path."""
    try:
        return function(*args)
    except OSError as error:
        raise StepError(name, path, error) from None


def start(request: Request, fds: dict[int, int]) -> None:
    """Become the program of a ``SpawnPlan``; returns only by :class:`StepError`."""
    reset()
    _enter_places(request)
    become(request, fds)


def _enter_places(request: Request) -> None:
    """Enters the network namespace, the new namespaces and the new root of a ``SpawnPlan``."""
    if request["netns_path"] is not None:
        # Before /sys is mounted, which shows the network namespace of the process that mounts it.
        step("join", request["netns_path"], namespaces.enter_netns, request["netns_path"])
    flags = 0
    for name in request["namespaces"]:
        if name != "pid":  # that one was made by the fork
            flags |= namespaces.FLAGS[name]
    if request["root"] is not None:
        flags |= namespaces.CLONE_NEWNS
    if flags:
        step("unshare", "namespaces", namespaces.unshare, flags)
    opened: dict[int, int] = {}
    if flags & namespaces.CLONE_NEWNS:
        opened = root.open_propagating(request["root"] or [])
        step("mount", "/", mounts.make_private)
    if request["hostname"] is not None:
        step("hostname", request["hostname"], namespaces.set_hostname, request["hostname"])
    if request["root"] is not None:
        root_fd = root.build(request["root"], opened)
        step("pivot", "/", mounts.pivot_root, root_fd)
        os.close(root_fd)


def hand_over(request: Request, fds: dict[int, int], place: Birthplace, answer: int, server: int) -> None:
    """Makes the root of a ``SpawnPlan``, and asks a fork server for a process in it.

    docs/reference/stager_protocol.md has the protocol ("Forked stagers"). The descriptors keep the namespaces, so
    this process need not wait.

    :param answer: the socket on which the fork server answers. :param server: the fork server's socket.
    """
    reset()
    # The new root may have no /proc.
    own = os.open("/proc/self/ns", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    _enter_places(request)
    step("directory", request["cwd"], os.chdir, request["cwd"])
    places = [os.open(kind, os.O_RDONLY | os.O_CLOEXEC, dir_fd=own) for kind in ("mnt", "net")]
    places += [os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for path in ("/", ".")]
    unified, tasks = place.descriptors()
    cgroups = [*([unified] if unified >= 0 else []), *tasks]
    numbers = ",".join(map(str, fds))
    signal = int(request["parent_death_signal"] or 0)
    words: dict[str, object] = {"unified": int(unified >= 0), "tasks": len(tasks), "move": int(request["move"])}
    words |= {"signal": signal, "parent": request["parent"], "descriptors": numbers}
    text = " ".join(["fork", *(f"{word}={value}" for word, value in words.items())])
    sent = [answer, *places, _environment(request), *cgroups, *fds.values()]
    sock = _socket.socket(fileno=server)
    beside = descriptor_passing.packed(sent)
    step(wire.FORK_SERVER, "request", sock.sendmsg, [text.encode()], beside, _MSG_NOSIGNAL)


def _environment(request: Request) -> int:
    """The environment in a file, which the fork server does not read: a forked process must not find another
    pod's in its memory."""
    fd = os.memfd_create("environment", os.MFD_CLOEXEC)
    content = b"".join([os.fsencode(f"{name}={value}") + b"\0" for name, value in request["environment"].items()])
    while content:
        content = content[os.write(fd, content) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def enter(request: Request, fds: dict[int, int], pidfd: int, root_fd: int) -> None:
    """Become the program of an ``EnterPlan``; returns only by :class:`StepError`.

    :param pidfd: holds the process whose namespaces are joined.
    :param root_fd: that process's root.
    """
    reset()
    flags = 0
    for name in request["namespaces"]:
        if name != "pid":
            flags |= namespaces.FLAGS[name]
    if flags:
        step("join", f"process {request['pid']}", namespaces.setns, pidfd, flags)
    # setns(2) changes to the mount namespace's root, but the process may have another one.
    step("enter", f"process {request['pid']}", os.fchdir, root_fd)
    step("enter", f"process {request['pid']}", os.chroot, ".")
    become(request, fds)


def reset() -> None:
    """Resets signals and the umask, so that the program does not inherit the spawner's."""
    process.reset_signals()
    os.umask(0o022)


def become(request: Request, fds: dict[int, int]) -> None:
    """The last steps, inside the new root: session, user, directory, descriptors, exec."""
    if request["new_session"]:
        step("session", "setsid", os.setsid)
    arrange(fds)
    if request["controlling_tty"]:
        step("terminal", "descriptor 0", fcntl.ioctl, 0, _TIOCSCTTY, 0)
    step("user", str(request["uid"]), _become_user, request)
    step("directory", request["cwd"], os.chdir, request["cwd"])
    if request["parent_death_signal"] is not None:
        step("signal", "parent death", process.set_pdeathsig, request["parent_death_signal"])
        if request["child_of_caller"] and os.getppid() not in (request["parent"], 0):
            os._exit(125)  # the parent ended before prctl(2) (0: it is outside of our PID namespace)
    try:
        execute.execute(request["argv"], request["environment"])
    except execute.ExecuteError as error:
        raise StepError("exec", str(error.filename), error, error.exit_code) from None


def _become_user(request: Request) -> None:
    uid, gid = request["uid"], request["gid"]
    os.setgroups(request["groups"])
    if gid:
        os.setresgid(gid, gid, gid)
    if uid:
        os.setresuid(uid, uid, uid)


def arrange(fds: dict[int, int]) -> None:
    """Give descriptors their numbers; all others close at exec, the pipe of the report included.

    Call it after all steps that use descriptors by their old numbers.
    """
    above = max(fds) + 1
    moved = {target: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for target, fd in fds.items()}
    for target, fd in moved.items():
        os.dup2(fd, target, inheritable=True)
    process.close_others(set(fds), on_exec=True)


_ANYWHERE = Birthplace(())


def fork(
    flags: int, run: Callable[[], None], place: Birthplace = _ANYWHERE, move: bool = False
) -> tuple[int, int, int]:
    """Forks a process that calls ``run``. :returns: PID, pidfd, and the read end of its report."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    try:
        pid, pidfd = place.clone(flags, move=move)
    except OSError as error:
        os.close(read_end)
        os.close(write_end)
        raise StepError("fork", "process", error) from None
    if pid == 0:
        _report(write_end, run, place)
    os.close(write_end)
    return pid, pidfd, read_end


def _report(write_end: int, run: Callable[[], None], place: Birthplace) -> None:
    """The new process: run, report, end. Never returns."""
    code = 0
    try:
        write_end = _raised(write_end)
        os.write(write_end, process.start_time_of_self().to_bytes(8, "little"))
        _join(place)
        run()
    except StepError as error:
        code = error.exit_code or 125
        os.write(write_end, marshal.dumps(failure_of(error)))
    except BaseException as error:  # noqa: BLE001 - a forked child must never return into the loop
        code = 125
        failure = error if isinstance(error, OSError) else OSError(errno.EINVAL, repr(error))
        os.write(write_end, marshal.dumps(failure_of(StepError("spawn", "process", failure))))
    finally:
        os._exit(code)


def _raised(fd: int) -> int:
    """Moves the descriptor above the numbers that programs use, or as high as RLIMIT_NOFILE allows."""
    for above in (512, 128, 40):
        try:
            return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EMFILE):
                raise
    return fd


def _join(place: Birthplace) -> None:
    try:
        place.join()
    except OSError as error:
        raise StepError("cgroup", str(error.filename), error) from None


def read_report(read_end: int) -> tuple[int, dict[str, object] | None]:
    """Reads a report. :returns: the start time, 0 if the process was killed at once; and the failure, if any."""
    parts = []
    try:
        while part := os.read(read_end, 65536):
            parts.append(part)
    finally:
        os.close(read_end)
    report = b"".join(parts)
    failure = marshal.loads(report[8:]) if len(report) > 8 else None  # noqa: S302 - from our own child
    if len(report) < 8:
        failure = failure_of(StepError("spawn", "process", OSError(errno.ECHILD, "the new process was killed")))
    return int.from_bytes(report[:8], "little"), failure


def failure_of(error: StepError) -> dict[str, object]:
    return {
        "step": error.step,
        "path": error.path,
        "errno": error.errno,
        "reason": error.reason,
        "on": error.on,
        "exit_code": error.exit_code,
    }
