"""The spawner's server: reads requests and answers them, one at a time, in one thread. It ends with its client.

Each started program, and each new namespace, gets a forked process, since a process cannot leave most namespaces
again.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import errno
import os
import time

from kurma_core.linux import descriptor_passing, namespaces, process
from kurma_core.linux.clone import CLONE_PARENT, Birthplace
from kurma_core.linux.namespaces import CLONE_NEWNS, CLONE_NEWPID, setns
from kurma_core.spawner import child, root, wire
from kurma_core.spawner.root import StepError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Request = dict[str, Any]
    Answer = tuple[dict[str, object], list[int]]

_MSG_CMSG_CLOEXEC = 0x40000000


def serve(fd: int) -> None:
    """Answer requests on the socket ``fd`` until its other end closes."""
    for number in (_signal.SIGINT, _signal.SIGQUIT, _signal.SIGHUP, _signal.SIGCHLD):
        # The client handles the terminal's signals. Ignoring SIGCHLD reaps children, which report by pipe.
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


#: Seconds within which a fork server must have answered, and the most bytes of an answer.
_PATIENCE, _LONGEST = 10.0, 4096


def _fork(request: Request, fds: list[int]) -> Answer:
    """Answers the request ``fork``: as ``start``, by the fork server whose socket is the last descriptor."""
    place = _birthplace(request)
    heard, told = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET | _socket.SOCK_CLOEXEC)

    def run() -> None:
        child.hand_over(request, _numbered(request, fds), place, told.fileno(), fds[-1])

    try:
        _, pidfd, report = child.fork(0, run)
        os.close(pidfd)
        told.close()
        _, failure = child.read_report(report)
        return (failure, []) if failure is not None else _forked(request, heard)
    finally:
        place.close()
        heard.close()
        told.close()


def _forked(request: Request, heard: _socket.socket) -> Answer:
    """Reads a fork server's answer: ``pid N`` with a pidfd from the server, and ``ready`` or ``error TEXT`` from
    the new process. That process waits for ``go``, and ends without it: so there is never one of which the client
    does not know."""
    deadline = time.monotonic() + _PATIENCE
    pid, pidfd, reason, ready = 0, -1, "", False
    try:
        while not (pid and (ready or reason)):
            heard.settimeout(max(deadline - time.monotonic(), 0.001))
            data, beside, _, _ = heard.recvmsg(_LONGEST, descriptor_passing.room(1), _MSG_CMSG_CLOEXEC)
            word, _, rest = data.partition(b" ")
            fds = descriptor_passing.unpacked(beside)
            if word == b"pid" and len(fds) == 1 and pidfd < 0:
                pidfd = fds[0]
                pid = int(rest)
            elif word == b"ready" and not fds:
                ready = True
            elif word == b"error" and not fds:
                reason = rest.decode(errors="replace") or "an error"
            else:
                for fd in fds:
                    os.close(fd)
                reason = reason or data.decode(errors="replace")
                break
        if pid and ready and not reason:
            heard.send(b"go")
            return {"pid": pid, "start_time": process.start_time(pid)}, [pidfd]
    except (OSError, ValueError) as error:
        reason = str(error)
    if pidfd >= 0:
        try:  # noqa: SIM105 - contextlib is not light
            process.pidfd_send_signal(pidfd, _signal.SIGKILL)  # it may hang; the client waits for its end
        except ProcessLookupError:
            pass
    failure = OSError(errno.ECHILD, reason or "it has ended")
    answer = child.failure_of(StepError(wire.FORK_SERVER, "answer", failure))
    # See linux.clone.
    answer["stillborn"] = pidfd >= 0 and not reason and not request["move"]
    return answer, [] if pidfd < 0 else [pidfd]


def _enter(request: Request, fds: list[int]) -> Answer:
    pidfd, root_fd = _hold(request, fds)
    try:
        home = -1
        if "pid" in request["namespaces"]:
            # After setns(2), only new children are in the PID namespace.
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
    """Opens a pidfd of a running process and its root, and checks that the PID was not reused."""
    pid = request["pid"]
    try:
        pidfd = os.dup(fds[-1]) if request["pidfd"] else process.pidfd_open(pid)
        root_fd = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        # The process is still alive, so its PID was not reused when its root was opened.
        process.pidfd_send_signal(pidfd, 0)
    except OSError as error:
        gone = error.errno in (errno.ENOENT, errno.ESRCH)
        failure = ProcessLookupError(errno.ESRCH, "it has ended") if gone else error
        raise StepError("enter", f"process {pid}", failure) from None
    return pidfd, root_fd


def _birthplace(request: Request) -> Birthplace:
    """The cgroup of the new process, opened; the caller closes it."""
    try:
        return Birthplace(request["cgroup"])
    except OSError as error:
        raise StepError("cgroup", str(error.filename), error) from None


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
    place = _birthplace(request)
    try:
        pid, pidfd, report = child.fork(flags, run, place, request["move"])
    finally:
        place.close()
    started, failure = child.read_report(report)
    answer: dict[str, object] = {"pid": pid, "start_time": started}
    if failure is not None:
        answer.update(failure)
        # It may be the client's child, which only the client can reap: so the client makes the next attempt.
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

    This process itself joins the namespace, since a fork would take longer than the block. It has one thread, and
    it either comes back or exits.
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
            # setns(2) changes to the namespace's root, which may not be this process's.
            os.fchdir(self._root)
            os.chroot(".")
        except BaseException:  # noqa: BLE001 - never serve in a wrong namespace: the client starts a new program
            os._exit(1)
        os.close(self._root)
        os.close(self._home)


def _unbind_from(request: Request, fds: list[int]) -> Answer:
    """Unmount paths in the root of a running process."""
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


def _make_user_namespace(request: Request, _fds: list[int]) -> Answer:
    """Answers the request ``user_namespace``."""

    def make() -> None:
        child.step("unshare", "user namespace", namespaces.unshare, namespaces.CLONE_NEWUSER)

    def write_maps(pid: int) -> None:
        namespaces.write_maps(pid, request["uids"], request["gids"])

    return _make_namespace("user", request["path"], make, write_maps)


def _make_network_namespace(request: Request, _fds: list[int]) -> Answer:
    """Answers the request ``network_namespace``."""
    owner = request["userns"]

    def make() -> None:
        if owner is not None:
            child.step("join", owner, namespaces.enter_userns, owner)
        child.step("unshare", "network namespace", namespaces.unshare, namespaces.CLONE_NEWNET)

    return _make_namespace("net", request["path"], make)


def _make_namespace(
    kind: str, path: str, make: Callable[[], None], finish: Callable[[int], None] = lambda _: None
) -> Answer:
    """Makes a namespace in a child process, and pins it on the host.

    :param make: called in the child, which enters the new namespace.
    :param finish: called here with the child's PID, before the namespace is pinned.
    """
    go_read, go_write = os.pipe2(os.O_CLOEXEC)
    made_read, made_write = os.pipe2(os.O_CLOEXEC)

    def run() -> None:
        os.close(go_write)
        make()
        os.write(made_write, b"m")
        os.read(go_read, 1)  # until the namespace is pinned, or the spawner has ended

    pid, pidfd, report = child.fork(0, run)
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
        _, failure = child.read_report(report)
    return failure or {}, []


def _probe(request: Request, fds: list[int]) -> Answer:
    """Answers, to show that the spawner works."""
    return {}, []


_ACTIONS: dict[str, Callable[[Request, list[int]], Answer]] = {
    "start": _start,
    "fork": _fork,
    "enter": _enter,
    "network_namespace": _make_network_namespace,
    "user_namespace": _make_user_namespace,
    "bind_into": _bind_into,
    "unbind_from": _unbind_from,
    "probe": _probe,
}
