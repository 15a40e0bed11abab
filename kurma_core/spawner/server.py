"""The spawner's loop: one request, one answer. One thread, no lock, next to no memory; it ends with its client.

Each program that is started, and each namespace that is made, has a process of its own, since a process cannot go
back from most namespaces.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import errno
import os

from kurma_core.linux import process
from kurma_core.linux.clone import CLONE_PARENT, Birthplace
from kurma_core.linux.namespaces import CLONE_NEWNS, CLONE_NEWPID, setns
from kurma_core.spawner import child, namespaces, root, wire
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
            answer, sent = child.failure_of(error), []
        except OSError as error:
            answer, sent = child.failure_of(StepError("spawn", str(error.filename or ""), error)), []
        try:
            wire.send(sock, answer, sent)
        except (BrokenPipeError, ConnectionResetError):
            return
        finally:
            for one in fds + sent:
                os.close(one)


def _start(request: Request, fds: list[int]) -> Answer:
    flags = CLONE_NEWPID if "pid" in request["namespaces"] else 0
    return _spawn(request, flags, lambda: child.start(request, _numbered(request, fds)))


def _enter(request: Request, fds: list[int]) -> Answer:
    pidfd, root_fd = _hold(request, fds)
    try:
        home = -1
        if "pid" in request["namespaces"]:
            # A PID namespace is joined by one's children.
            home = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
            setns(pidfd, CLONE_NEWPID)
        try:
            return _spawn(request, 0, lambda: child.enter(request, _numbered(request, fds), pidfd, root_fd))
        finally:
            if home >= 0:
                setns(home, CLONE_NEWPID)
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
    """Number in the program → descriptor here. Missing ones of 0, 1, 2 are the host's /dev/null."""
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
        pid, pidfd, report = child.fork(flags, run, place, request["move"])
    finally:
        place.close()
    started, failure = child.read_report(report)
    answer: dict[str, object] = {"pid": pid, "start_time": started}
    if failure is not None:
        answer.update(failure)
        # The client's child, perhaps, so that only the client can see it off before the next is tried.
        answer["stillborn"] = not started and not request["move"]
    return answer, [pidfd]


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
                child.step("join", f"process {self._pid}", setns, self._pidfd, CLONE_NEWNS)
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
            setns(self._home, CLONE_NEWNS)
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
    "network_namespace": namespaces.make_network,
    "user_namespace": namespaces.make_user,
    "bind_into": _bind_into,
    "unbind_from": _unbind_from,
    "probe": _probe,
}
