"""The spawner's client: starts the spawner's program when it is first needed, and sends it requests."""

from __future__ import annotations

import _socket
import _thread
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self, cast

from kurma_core.errors import CommandNotExecutableError, CommandNotFoundError, HostError, KurmaError
from kurma_core.linux import process
from kurma_core.spawn_plan import (
    Bind,
    Directory,
    EnterPlan,
    File,
    FileSystemMount,
    Operation,
    Overlay,
    SpawnPlan,
    Symlink,
    UserMap,
)
from kurma_core.spawner import wire
from kurma_core.spawner.fork_server import ForkServer
from kurma_core.value import fields, frozen

#: A fork server that has failed so often in a row is not started again.
_MOST_FAILURES = 3
_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "program.py")


@frozen
class SpawnedProcess:
    """A started program.

    :param pidfd: a pidfd, which the caller closes.
    """

    pid: int
    identity: process.ProcessIdentity
    pidfd: int


class Spawner:
    """Makes namespaces and starts programs in them, by a small program of its own (``program.py``).

    A process with threads or an event loop must not fork Python code. The spawner's program has neither, and holds
    none of the caller's descriptors and locks. It is started at the first request, and again if it has died;
    programs that it has started live on. Threads send requests one after the other. Needs root.
    """

    def __init__(self) -> None:
        self._interpreter: str = getattr(sys, "_base_executable", "") or sys.executable
        self._socket: _socket.socket | None = None
        self._pid = 0
        #: The fork server that runs; None: there is none, or its last answer was a failure of its own.
        self.fork_server: ForkServer | None = None
        #: The key of the last fork server, and how often in a row it failed.
        self._fork_key, self._fork_failures = "", 0
        #: A request is waiting for its answer.
        self._busy = False
        #: Called with the PID of the spawner's program after each start of it, before the first request.
        self.settle: Callable[[int], None] = lambda pid: None
        # Held from a request to its answer, and while the program is started or ended.
        self._lock = _thread.RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Start the program now, so that the first request need not wait for it. It may run already."""
        with self._lock:
            if self._socket is None:
                self._start_program()

    def _start_program(self) -> None:
        ours, theirs = _socketpair()
        try:
            # Standard error stays the caller's, for unexpected exceptions; the program closes all other
            # descriptors.
            actions = [
                (os.POSIX_SPAWN_DUP2, theirs.fileno(), 3),
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
            ]
            argv = [self._interpreter, "-I", "-S", _PROGRAM, "3"]
            self._pid = os.posix_spawn(argv[0], argv, {"LC_ALL": "C.UTF-8"}, file_actions=actions)
        except OSError as error:
            ours.close()
            raise HostError(
                f"cannot start the spawner {self._interpreter}: {error.strerror}",
                errno=error.errno,
                path=self._interpreter,
            ) from None
        finally:
            theirs.close()
        self._socket = ours
        self.settle(self._pid)

    def close(self) -> None:
        """End the program and the fork server, and wait for them. It can be repeated."""
        with self._lock:
            self._end_fork_server()
            self._close()

    def _close(self) -> None:
        if self._socket is not None:
            try:  # noqa: SIM105 - as light as the rest
                # A forked process of the caller may hold a copy of the socket: shutdown(2) ends the program
                # anyway.
                self._socket.shutdown(_socket.SHUT_RDWR)
            except OSError:
                pass  # the program has closed its end already
            self._socket.close()
            self._socket = None
        if self._pid:
            pid, self._pid = self._pid, 0
            try:  # noqa: SIM105 - as light as the rest
                os.waitpid(pid, 0)
            except ChildProcessError:
                pass  # the caller reaps all its children, or ignores SIGCHLD

    def make_namespace(self, path: str, *, userns: str | None = None) -> None:
        """Make a network namespace and pin it at ``path``; ``linux.namespaces.unpin`` undoes it.

        :param path: ``/run/netns/NAME``.
        :param userns: path of the pinned user namespace that shall own it; None: the host's.
        :raises HostError: ``path`` exists already, or as the kernel says.
        """
        answer, _ = self._ask({"action": "network_namespace", "path": path, "userns": userns}, [])
        _raise_failure(answer, f"cannot make the network namespace {path}")

    def make_user_namespace(self, path: str, maps: UserMap) -> None:
        """Make a user namespace and pin it at ``path``; ``linux.namespaces.unpin`` undoes it.

        :raises HostError: ``path`` exists already, or as the kernel says.
        """
        message: dict[str, object] = {
            "action": "user_namespace",
            "path": path,
            "uids": maps.uids,
            "gids": maps.gids,
        }
        answer, _ = self._ask(message, [])
        _raise_failure(answer, f"cannot make the user namespace {path}")

    def start(self, plan: SpawnPlan) -> SpawnedProcess:
        """Start a program; returns once it has been exec'd.

        :raises CommandNotFoundError: the program does not exist in its root.
        :raises CommandNotExecutableError: it exists, and cannot be executed; the message has the reason.
        :raises HostError: a step before exec failed; ``data`` has ``step``, ``path`` and ``errno``.
        """
        message, fds = encode(plan)
        with self._lock:
            server = self.fork_server
            if server is not None and server.key == plan.fork_server and _can_be_forked(plan):
                asked = {**message, "action": "fork", "parent": os.getpid()}
                answer, received = self._ask_both_ways(asked, [*fds, server.fileno()])
                if answer.get("step") != wire.FORK_SERVER:
                    self._fork_failures = 0
                    return self._made(answer, received, plan.argv)
                self._end_fork_server()
                self._fork_failures += 1
        return self._spawned(message, fds, plan.argv)

    def keep_fork_server(self, key: str, plan: SpawnPlan) -> None:
        """Starts a fork server; see :meth:`kurma_core.spawn_plan.Starter.keep_fork_server`."""
        with self._lock:
            if key != self._fork_key:
                self._fork_key, self._fork_failures = key, 0
            server = self.fork_server
            if server is not None and server.key == key and server.alive():
                return
            self._end_fork_server()
            if self._fork_failures >= _MOST_FAILURES:
                return
            try:
                self.fork_server = ForkServer(key, plan, self.start)
            except KurmaError:
                self._fork_failures += 1
                raise

    def _end_fork_server(self) -> None:
        server, self.fork_server = self.fork_server, None
        if server is not None:
            server.end()

    def enter(self, plan: EnterPlan) -> SpawnedProcess:
        """Start a program in the namespaces and the root of a running process.

        :raises: as :meth:`start`; ``errno`` is ``ESRCH`` if that process has ended.
        """
        message, fds = encode(plan)
        return self._spawned(message, fds, plan.argv)

    def bind_into(
        self,
        pid: int,
        operations: Sequence[Operation],
        *,
        pidfd: int | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Carry out mount operations in the root of a running process; sources are the host's paths.

        :param pidfd: guards against a reused PID.
        :param meanwhile: called while the program works; its exception is raised once that is done. It must not
            ask the spawner for anything.
        :raises HostError: as :meth:`start`. Operations before the failed one stay.
        """
        message: dict[str, object] = {
            "action": "bind_into",
            "pid": pid,
            "pidfd": pidfd is not None,
            "operations": encode_operations(tuple(operations)),
        }
        answer, _ = self._ask(message, [] if pidfd is None else [pidfd], meanwhile)
        _raise_failure(answer, f"cannot mount into process {pid}")

    def unbind_from(self, pid: int, targets: Sequence[str], *, pidfd: int | None = None) -> None:
        """Unmount paths in the root of a running process, and remove the mount points; ignore missing ones.

        :param targets: absolute paths in that root.
        :raises HostError: as :meth:`enter`. Targets before the failed one are unmounted.
        """
        message: dict[str, object] = {
            "action": "unbind_from",
            "pid": pid,
            "pidfd": pidfd is not None,
            "targets": list(targets),
        }
        answer, _ = self._ask(message, [] if pidfd is None else [pidfd])
        _raise_failure(answer, f"cannot unmount from process {pid}")

    def probe(self) -> None:
        """Checks that the spawner answers. :raises HostError: it does not, and cannot be started again."""
        self._ask({"action": "probe"}, [])

    def _spawned(self, message: dict[str, object], fds: list[int], argv: tuple[str, ...]) -> SpawnedProcess:
        if message["parent_death_signal"] is not None:
            message["parent"] = os.getpid()
        return self._made(*self._ask_both_ways(message, fds), argv)

    @staticmethod
    def _made(answer: dict[str, object], received: list[int], argv: tuple[str, ...]) -> SpawnedProcess:
        _raise_failure(answer, f"cannot start {argv[0]}")
        pid, started = cast("int", answer["pid"]), cast("int", answer["start_time"])
        return SpawnedProcess(pid, process.ProcessIdentity(pid, started, process.boot_id()), received[0])

    def _ask_both_ways(self, message: dict[str, object], fds: list[int]) -> tuple[dict[str, object], list[int]]:
        """Asks for a child that is cloned into its cgroup, or else moves there: see linux.clone."""
        answer, received = self._ask_for_child({**message, "move": False}, fds)
        if answer.get("stillborn"):
            answer, received = self._ask_for_child({**message, "move": True}, fds)
        return answer, received

    def _ask_for_child(self, message: dict[str, object], fds: list[int]) -> tuple[dict[str, object], list[int]]:
        answer, received = self._ask(message, fds)
        if "step" in answer and received:
            # A process that failed before exec is our child: reap it.
            process.wait_pidfd(received[0])
            process.exit_status(received[0])
            os.close(received[0])
        return answer, received

    def _ask(
        self, message: dict[str, object], fds: list[int], meanwhile: Callable[[], None] | None = None
    ) -> tuple[dict[str, object], list[int]]:
        with self._lock:
            return self._asked(message, fds, meanwhile)

    def _asked(
        self, message: dict[str, object], fds: list[int], meanwhile: Callable[[], None] | None
    ) -> tuple[dict[str, object], list[int]]:
        if self._busy:
            raise HostError("the spawner is at work for who asks it")
        failed: Exception | None = None
        for attempt in range(2):
            fresh = self._socket is None
            self.open()
            assert self._socket is not None
            try:
                wire.send(self._socket, message, fds)
                if meanwhile is not None:
                    failed, meanwhile = self._failure_of(meanwhile), None
                answer = wire.receive(self._socket)
            except (BrokenPipeError, ConnectionResetError):
                # The program died before it read this request: send the request to a new one.
                self._close()
                if fresh or attempt:
                    break
                continue
            except BaseException:
                # Interrupted between request and answer: the next request must not get this one's answer.
                self._close()
                raise
            if failed is not None:
                raise failed
            if answer is not None:
                return answer
            self._close()
            break
        raise HostError("the spawner died before it answered", hint="is memory short? see the kernel's log")

    def _failure_of(self, work: Callable[[], None]) -> Exception | None:
        """Runs ``work`` while an answer is awaited. :returns: its exception. KeyboardInterrupt passes through."""
        self._busy = True
        try:
            work()
        except Exception as error:  # noqa: BLE001 - raised again, after the answer
            return error
        finally:
            self._busy = False
        return None


def _can_be_forked(plan: SpawnPlan) -> bool:
    """Whether a fork server can make the process: one of root, without new namespaces, host name or terminal."""
    others = plan.namespaces or plan.hostname is not None or plan.controlling_tty
    user = plan.uid or plan.gid or plan.groups
    return plan.new_session and plan.child_of_caller and not others and not user


def _raise_failure(answer: dict[str, object], what: str) -> None:
    if "step" not in answer:
        return
    step, path, reason = answer["step"], answer["path"], answer["reason"]
    exit_code = answer["exit_code"]
    on = str(answer["on"])
    if on and on not in str(path):
        reason = f"{on}: {reason}"
    error: type[KurmaError] = HostError
    message = f"{what}: {step} {path}: {reason}"
    if step == "exec":
        error = CommandNotFoundError if exit_code == 127 else CommandNotExecutableError
        message = f"{what}: {reason}"
    raise error(message, step=step, path=path, errno=answer["errno"])


def _socketpair() -> tuple[_socket.socket, _socket.socket]:
    """Both ends close on exec."""
    return _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)


# --- encoding of plans as plain values, for the request ----------------------------------------------------------

_KINDS: dict[type, str] = {
    Overlay: "overlay",
    Bind: "bind",
    FileSystemMount: "filesystem",
    Directory: "directory",
    File: "file",
    Symlink: "symlink",
}


def encode(plan: SpawnPlan | EnterPlan) -> tuple[dict[str, object], list[int]]:
    """A plan as plain values, and the descriptors to send (in the order of ``message["fds"]``)."""
    message = _plain(plan)
    message["fds"] = sorted(plan.fds)
    message["namespaces"] = sorted(plan.namespaces)
    fds = [plan.fds[target] for target in sorted(plan.fds)]
    if isinstance(plan, SpawnPlan):
        message["root"] = None if plan.root is None else encode_operations(plan.root.operations)
        message["action"] = "start"
    else:
        message["action"] = "enter"
        message["pidfd"] = plan.pidfd is not None
        if plan.pidfd is not None:
            fds.append(plan.pidfd)
    return message, fds


def encode_operations(operations: tuple[Operation, ...]) -> list[dict[str, object]]:
    """Mount operations as plain values."""
    return [{"kind": _KINDS[type(operation)], **_plain(operation)} for operation in operations]


def _plain(value: SpawnPlan | EnterPlan | Operation) -> dict[str, object]:
    plain: dict[str, object] = {}
    for one in fields(value):
        item = getattr(value, one.name)
        if isinstance(item, Mapping):
            item = dict(item)
        elif isinstance(item, int) and not isinstance(item, bool):
            item = int(item)  # a signal's number may come as an enumeration's member
        plain[one.name] = item
    return plain
