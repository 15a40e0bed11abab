"""The spawner's loop: one request, one answer. One thread, no lock, next to no memory; it ends with its client.

What is started, and namespaces that are made, have a process of their own, since such are joined for good. That
process reports on a pipe which its exec closes: its start time first, then, if so, the failure.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import errno
import fcntl
import marshal
import os

from kurma_core.linux import namespaces, process
from kurma_core.linux.clone import CLONE_PARENT, Birthplace
from kurma_core.spawner import child, root, wire
from kurma_core.spawner.root import StepError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Request = dict[str, Any]
    Answer = tuple[dict[str, object], list[int]]


def serve(fd: int) -> None:
    """Answer requests on the socket ``fd`` until its other end closes."""
    for number in (_signal.SIGINT, _signal.SIGQUIT, _signal.SIGHUP, _signal.SIGCHLD):
        # The terminal's signals are the client's business; its own helpers report by pipe and need no waiting.
        _signal.signal(number, _signal.SIG_IGN)
    process.close_others({0, 1, 2, fd})
    os.set_inheritable(fd, False)
    sock = _socket.socket(fileno=fd)
    while True:
        received = wire.receive(sock)
        if received is None:
            return
        request, fds = received
        try:
            answer, sent = _ACTIONS[str(request["action"])](request, fds)
        except StepError as error:
            answer, sent = _failure(error), []
        except OSError as error:
            answer, sent = _failure(StepError("spawn", str(error.filename or ""), error)), []
        try:
            wire.send(sock, answer, sent)
        except (BrokenPipeError, ConnectionResetError):
            return
        finally:
            for one in fds + sent:
                os.close(one)


def _failure(error: StepError) -> dict[str, object]:
    return {
        "step": error.step,
        "path": error.path,
        "errno": error.errno,
        "reason": error.reason,
        "on": error.on,
        "exit_code": error.exit_code,
    }


def _start(request: Request, fds: list[int]) -> Answer:
    flags = namespaces.CLONE_NEWPID if "pid" in request["namespaces"] else 0
    return _spawn(request, flags, lambda: child.start(request, _numbered(request, fds)))


def _enter(request: Request, fds: list[int]) -> Answer:
    pidfd, root_fd = _hold(request, fds)
    try:
        home = -1
        if "pid" in request["namespaces"]:
            # A PID namespace is joined by one's children.
            home = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
            namespaces.setns(pidfd, namespaces.CLONE_NEWPID)
        try:
            return _spawn(request, 0, lambda: child.enter(request, _numbered(request, fds), pidfd, root_fd))
        finally:
            if home >= 0:
                namespaces.setns(home, namespaces.CLONE_NEWPID)
                os.close(home)
    finally:
        os.close(root_fd)
        os.close(pidfd)


def _hold(request: Request, fds: list[int]) -> tuple[int, int]:
    """Descriptors of a running process and of its root, surely of the process that is meant."""
    pid = request["pid"]
    try:
        pidfd = os.dup(fds[-1]) if request["pidfd"] else process.pidfd_open(pid)
        root_fd = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        # Alive still, so its PID was its own when its root was opened.
        process.pidfd_send_signal(pidfd, 0)
    except OSError as error:
        gone = error.errno in (errno.ENOENT, errno.ESRCH)
        failure = ProcessLookupError(errno.ESRCH, "it has ended") if gone else error
        raise StepError("enter", f"process {pid}", failure) from None
    return pidfd, root_fd


def _numbered(request: Request, fds: list[int]) -> dict[int, int]:
    """Number in the program → descriptor here. What is missing of 0, 1, 2 is the host's /dev/null."""
    numbered = dict(zip(request["fds"], fds, strict=False))
    for number in range(3):
        if number not in numbered:
            numbered[number] = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    return numbered


def _spawn(request: Request, flags: int, run: Callable[[], None]) -> Answer:
    """Fork into the cgroup, run, and wait for the exec or the failure."""
    if request["child_of_caller"]:
        flags |= CLONE_PARENT
    try:
        place = Birthplace(request["cgroup"])
    except OSError as error:
        raise StepError("cgroup", str(error.filename), error) from None
    try:
        pid, pidfd, report = _fork(flags, run, place, request["move"])
    finally:
        place.close()
    started, failure = _read_report(report)
    answer: dict[str, object] = {"pid": pid, "start_time": started}
    if failure is not None:
        answer.update(failure)
        # The client's child, perhaps, so that only the client can see it off before the next is tried.
        answer["stillborn"] = not started and not request["move"]
    return answer, [pidfd]


_ANYWHERE = Birthplace(())


def _fork(
    flags: int, run: Callable[[], None], place: Birthplace = _ANYWHERE, move: bool = False
) -> tuple[int, int, int]:
    """:returns: PID, pidfd, and the end of the pipe on which the new process reports."""
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
    """The new process: run, report, end. Never returns, whatever happens."""
    code = 0
    try:
        write_end = _raised(write_end)
        os.write(write_end, process.start_time_of_self().to_bytes(8, "little"))
        _join(place)
        run()
    except StepError as error:
        code = error.exit_code or 125
        os.write(write_end, marshal.dumps(_failure(error)))
    except BaseException as error:  # noqa: BLE001 - a forked child must never return into the loop
        code = 125
        failure = error if isinstance(error, OSError) else OSError(errno.EINVAL, repr(error))
        os.write(write_end, marshal.dumps(_failure(StepError("spawn", "process", failure))))
    finally:
        os._exit(code)


def _raised(fd: int) -> int:
    """The descriptor above all numbers that a program may ask for, or as high as RLIMIT_NOFILE lets it be."""
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


def _read_report(read_end: int) -> tuple[int, dict[str, object] | None]:
    """The start time, 0 if it has not come to life, and the failure if there is one."""
    parts = []
    try:
        while part := os.read(read_end, 65536):
            parts.append(part)
    finally:
        os.close(read_end)
    report = b"".join(parts)
    failure = marshal.loads(report[8:]) if len(report) > 8 else None  # noqa: S302 - from our own child
    if len(report) < 8:
        failure = _failure(StepError("spawn", "process", OSError(errno.ECHILD, "the new process was killed")))
    return int.from_bytes(report[:8], "little"), failure


def _make_user_namespace(request: Request, _fds: list[int]) -> Answer:
    def make() -> None:
        child.step("unshare", "user namespace", namespaces.unshare, namespaces.CLONE_NEWUSER)

    def write_maps(pid: int) -> None:
        namespaces.write_maps(pid, request["uids"], request["gids"])

    return _make_namespace("user", request["path"], make, write_maps)


def _make_network_namespace(request: Request, _fds: list[int]) -> Answer:
    owner = request["userns"]

    def make() -> None:
        if owner is not None:
            child.step("join", owner, namespaces.enter_userns, owner)
        child.step("unshare", "network namespace", namespaces.unshare, namespaces.CLONE_NEWNET)

    return _make_namespace("net", request["path"], make)


def _make_namespace(
    kind: str, path: str, make: Callable[[], None], finish: Callable[[int], None] = lambda _: None
) -> Answer:
    """Pinned here, on the host.

    :param make: run in a process of its own, which then has the namespace.
    :param finish: what is done to it from here, given the PID of that process.
    """
    go_read, go_write = os.pipe2(os.O_CLOEXEC)
    made_read, made_write = os.pipe2(os.O_CLOEXEC)

    def run() -> None:
        os.close(go_write)
        make()
        os.write(made_write, b"m")
        os.read(go_read, 1)  # stays until it is pinned; also ends if the spawner does

    pid, pidfd, report = _fork(0, run)
    os.close(pidfd)
    os.close(go_read)
    os.close(made_write)
    try:
        if os.read(made_read, 1):
            finish(pid)
            child.step("pin", path, namespaces.pin, f"/proc/{pid}/ns/{kind}", path)
    finally:
        os.close(go_write)
        os.close(made_read)
        _, failure = _read_report(report)
    return failure or {}, []


def _bind_into(request: Request, fds: list[int]) -> Answer:
    """Carry out mount operations in the root of a running process."""
    pidfd, root_fd = _hold(request, fds)
    prepared: list[tuple[dict[str, Any], int | None]] = []
    try:
        for operation in request["operations"]:
            mount_fd = child.step(operation["kind"], root.subject(operation), _prepare, operation)
            prepared.append((operation, mount_fd))
        prepared.reverse()
        with _mounts_of(pidfd, request["pid"]):
            while prepared:
                operation, mount_fd = prepared.pop()
                child.step(operation["kind"], root.subject(operation), root.place, operation, mount_fd, root_fd)
    finally:
        for _, mount_fd in prepared:
            if mount_fd is not None:
                os.close(mount_fd)
        os.close(root_fd)
        os.close(pidfd)
    return {}, []


class _mounts_of:
    """``with _mounts_of(pidfd, pid):`` runs the block in that process's mount namespace.

    Here and in no process of its own, which would take longer than what is done there; this one has one thread,
    and it is sure to come back or to end.
    """

    __slots__ = ("_home", "_pid", "_pidfd", "_root", "_umask")

    def __init__(self, pidfd: int, pid: int) -> None:
        self._pidfd = pidfd
        self._pid = pid

    def __enter__(self) -> None:
        self._home = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                child.step("join", f"process {self._pid}", namespaces.setns, self._pidfd, namespaces.CLONE_NEWNS)
            except BaseException:
                os.close(self._root)
                raise
        except BaseException:
            os.close(self._home)
            raise
        self._umask = os.umask(0o022)

    def __exit__(self, *_: object) -> None:
        os.umask(self._umask)
        try:
            namespaces.setns(self._home, namespaces.CLONE_NEWNS)
            # Joining leads to the namespace's own root, which may not be ours.
            os.fchdir(self._root)
            os.chroot(".")
        except BaseException:  # noqa: BLE001 - nothing may be done in the wrong place: the client starts another one
            os._exit(1)
        os.close(self._root)
        os.close(self._home)


def _unbind_from(request: Request, fds: list[int]) -> Answer:
    """Take mounts away again from the root of a running process."""
    pidfd, root_fd = _hold(request, fds)
    try:
        with _mounts_of(pidfd, request["pid"]):
            for target in request["targets"]:
                child.step("unmount", target, root.unplace, target, root_fd)
    finally:
        os.close(root_fd)
        os.close(pidfd)
    return {}, []


def _prepare(operation: dict[str, Any]) -> int | None:
    return root.prepare(operation, private=False)


def _probe(request: Request, fds: list[int]) -> Answer:
    """It answers: that is all."""
    return {}, []


_ACTIONS: dict[str, Callable[[Request, list[int]], Answer]] = {
    "start": _start,
    "enter": _enter,
    "network_namespace": _make_network_namespace,
    "user_namespace": _make_user_namespace,
    "bind_into": _bind_into,
    "unbind_from": _unbind_from,
    "probe": _probe,
}
