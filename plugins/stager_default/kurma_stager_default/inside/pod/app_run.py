"""The state of one app of a running pod: its executions, each with its root, pipes, log and exit code."""

from __future__ import annotations

import os
import time

from kurma_core.formats.timestamps import timestamp
from kurma_stager_default.inside.app import child
from kurma_stager_default.inside.errors import SetupError
from kurma_stager_default.inside.manifest import App, Pod
from kurma_stager_default.inside.pod import pod_cgroups
from kurma_stager_default.inside.pod.app_restarts import Restarts
from kurma_stager_default.inside.streams import app_log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kurma_core.linux.cgroups import CgroupTree
    from kurma_stager_default.inside.app.listening_sockets import Listening
    from kurma_stager_default.inside.app.notify_socket import Readiness
    from kurma_stager_default.inside.pod.control_socket import Conversation
    from kurma_stager_default.inside.streams.outside_log import NoLog

#: Phases besides the kinds of a child: waiting for a restart, ended for good, and added but never started.
WAITING = "waiting"
ENDED = "ended"
ADDED = "added"

_CHUNK = 1 << 18
_F_SETPIPE_SZ = 1031
# Earlier executions that status.json lists.
_REMEMBERED = 10


class Instance:
    """One execution of an app."""

    __slots__ = (
        "began",
        "code",
        "directory",
        "files",
        "finished",
        "log",
        "lost",
        "message",
        "number",
        "oom",
        "oom_before",
        "own_files",
        "plain_log",
        "reason",
        "shown",
        "signal",
        "slave",
        "started",
        "streams",
    )

    def __init__(self, app: App, number: int, log: app_log.AppLog | NoLog, stdin: int, oom: int) -> None:
        apps = "/pod/apps"
        self.number = number
        self.directory = f"{apps}/{app.name}/{number}"
        out, out_end = _pipe()
        err, err_end = _pipe()
        #: the read ends of the pipes, and their streams' names in the log
        self.streams = {out: app_log.STDOUT, err: app_log.STDERR}
        self.files = child.Files(self.directory, out_end, err_end, stdin)
        #: the slave of its terminal, held so that reads of the master do not fail with EIO; -1: it has no terminal
        self.slave = -1
        self.log = log
        #: the log is in the pod's directory
        self.plain_log = app.log_path is None
        #: called with the stream and the data that could not be written to the log
        self.lost: Callable[[bytes, bytes], None] | None = None
        #: called with the stream and all data that is read from it
        self.shown: Callable[[bytes, bytes], None] | None = None
        #: the cgroup's count of OOM kills when this execution began, and when the main process was last known to
        #: have survived one
        self.oom_before = self.oom = oom
        #: the source of the files below ``/etc``, by name
        self.own_files: dict[str, str] = {}
        self.began = time.monotonic()
        self.started: str | None = None
        self.finished: str | None = None
        self.code: int | None = None
        self.reason: str | None = None
        self.signal: int | None = None
        self.message: str | None = None

    def close(self) -> None:
        for fd in (
            *self.streams,
            self.slave,
            self.files.stdin,
            self.files.stdout,
            self.files.stderr,
            self.files.namespace,
        ):
            if fd >= 0:
                os.close(fd)
        self.streams = {}
        self.slave = self.files.stdin = self.files.stdout = self.files.stderr = self.files.namespace = -1
        self.log.close()

    def add_terminal(self, master: int, stream: bytes) -> None:
        """Logs the output on the app's terminal as that stream."""
        from kurma_core.linux import terminal

        self.streams[master] = stream
        self.slave = terminal.open_other(master)

    def drain(self, fd: int, limit: int = 1 << 30) -> int:
        """Logs the data that is waiting in a pipe. :param limit: stop after so many bytes, for an endless writer.

        :returns: the number of bytes.
        """
        count = 0
        while count < limit:
            try:
                data = os.read(fd, _CHUNK)
            except OSError:
                break  # no data; or EIO: the terminal was hung up
            if not data:
                break
            count += len(data)
            kept_from = self.log.dropped_in_all
            self.log.write(self.streams[fd], data)
            if self.shown is not None:
                self.shown(self.streams[fd], data)
            if self.lost is not None and self.log.dropped_in_all > kept_from:
                self.lost(self.streams[fd], data[-(self.log.dropped_in_all - kept_from) :])
        return count

    def to_json(self, pid: int | None) -> dict[str, Any]:
        value: dict[str, Any] = {
            "instance": self.number,
            "pid": pid,
            "exited": self.finished is not None,
            "startedAt": self.started,
        }
        if self.plain_log:
            value["log"] = os.path.basename(self.log.path)
        if self.finished is not None:
            value["exitCode"] = self.code
            value["exitReason"] = self.reason
            value["signal"] = self.signal
            value["finishedAt"] = self.finished
        if self.message is not None:
            value["message"] = self.message
        if self.own_files:
            value["files"] = self.own_files
        if self.log.dropped_in_all:
            value["logDropped"] = self.log.dropped_in_all
        return value


def _pipe() -> tuple[int, int]:
    """A pipe with a larger buffer than usual. Its read end does not block, its write end does."""
    import fcntl

    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(write, True)
    try:  # noqa: SIM105 - contextlib costs every pod's start
        fcntl.fcntl(read, _F_SETPIPE_SZ, _CHUNK)
    except OSError:
        pass  # the user's limit of pipe memory is reached: keep the usual size
    return read, write


class AppRun:
    """An app and its current execution."""

    __slots__ = (
        "app",
        "child",
        "history",
        "instance",
        "listening",
        "memory",
        "number",
        "phase",
        "quitting",
        "readiness",
        "restarts",
        "tree",
        "waiting",
    )

    def __init__(self, app: App, tree: CgroupTree, phase: str = WAITING) -> None:
        self.app = app
        self.tree = tree
        self.phase = phase
        self.child: child.Child | None = None
        self.instance: Instance | None = None
        #: the number of the next execution
        self.number = 0
        self.restarts = Restarts()
        #: its listening sockets, kept from its first execution to its last; None: none, or not made yet
        self.listening: Listening | None = None
        #: its readiness socket, kept likewise
        self.readiness: Readiness | None = None
        #: the descriptor of :func:`.pod_cgroups.watch_oom`; -1: none
        self.memory = -1
        self.history: list[dict[str, Any]] = []
        #: it is being stopped on its own, and is not restarted
        self.quitting = False
        #: conversations to answer once it runs (True) or has ended (False)
        self.waiting: list[tuple[bool, Conversation]] = []

    @property
    def over(self) -> bool:
        """Whether it does not run, and will not be started without a request."""
        return self.phase in (ENDED, ADDED)

    @property
    def unready(self) -> bool:
        """Whether it reports its readiness, and has not reported it yet."""
        return self.readiness is not None and not self.readiness.ready

    def new_instance(self, pod: Pod, stdin: int) -> Instance:
        """Makes the next execution's state, with its log.

        :raises SetupError: the log cannot be opened in the directory that the pod names.
        :raises OSError: there are no pipes.
        """
        old = self.instance
        log = self._new_log(pod)
        try:
            self.instance = Instance(self.app, self.number, log, stdin, pod_cgroups.oom_kills(self.tree))
        except OSError:
            log.close()
            if self.app.log_path is None:
                app_log.remove(log.path)
            raise
        self.instance.shown = pod.shown
        self.number += 1
        if old is not None:
            self._remember(old)
        return self.instance

    def _new_log(self, pod: Pod) -> app_log.AppLog | NoLog:
        if self.app.log_path is None:
            while os.path.lexists(self._log()):
                self.number += 1  # the log of an earlier run of the pod
            return app_log.AppLog(self._log(), pod.log_size, pod.log_count)
        from kurma_stager_default.inside.streams import outside_log

        if not self.app.log_path:
            return outside_log.NoLog(self.app.name)
        try:
            return outside_log.outside_log(pod.log_directory, self.app.log_path)
        except OSError as error:
            raise SetupError(f"app {self.app.name}: {error.filename} cannot be opened: {error.strerror}") from None

    def _log(self) -> str:
        return f"/pod/logs/{app_log.file_name(self.app.name, self.number)}"

    def _remember(self, instance: Instance) -> None:
        """Adds an execution's result to the history; removes the logs of executions that drop out of it."""
        self.history = [*self.history, instance.to_json(None)]
        while len(self.history) > _REMEMBERED:
            log = self.history.pop(0).get("log")
            if log is not None:
                app_log.remove(f"/pod/logs/{log}")

    def started(self) -> None:
        if self.instance is not None and self.instance.started is None:
            self.instance.started = timestamp()

    def record(self, code: int, reason: str, message: str | None = None) -> None:
        """Records how the execution ended."""
        instance = self.instance
        if instance is not None and instance.finished is None:
            instance.finished = timestamp()
            instance.code, instance.reason, instance.message = code, reason, message

    def record_status(self, status: int) -> None:
        """Records the end of the main process. :param status: as from waitpid(2)."""
        code = os.waitstatus_to_exitcode(status)
        instance = self.instance
        assert instance is not None
        number = 128 - code if code < 0 else code
        reason, message = "killed" if code < 0 else "exited", None
        kills = pod_cgroups.oom_kills(self.tree)
        # A shell, too, exits with 137 when its command was killed with SIGKILL.
        if number == 137 and kills > instance.oom:
            reason = "oom"
        if kills > instance.oom_before:
            message = f"killed for want of memory: {kills - instance.oom_before} of its processes"
        instance.signal = -code if code < 0 else None
        self.record(number, reason, message)

    def survived_oom(self) -> None:
        """Notes that the main process still runs after the kernel has OOM-killed another process of the app."""
        if self.instance is not None and self.instance.finished is None:
            self.instance.oom = pod_cgroups.oom_kills(self.tree)

    def settle(self) -> None:
        """A user starts it: earlier restarts no longer count."""
        self.restarts.reset()
        self.quitting = False

    def to_json(self) -> dict[str, Any]:
        if self.instance is None:
            return {"pid": None, "exited": False, "phase": self.phase}
        # Show the PID only after exec: until then the process may be in the stager's namespaces, and a call-in
        # would enter those.
        running = self.child is not None and self.phase == child.MAIN and self.instance.started is not None
        value = self.instance.to_json(self.child.pid if running and self.child is not None else None)
        if self.phase == WAITING and value["exited"]:
            # It will be restarted, so it does not count as ended.
            value["exited"] = False
            value["restarting"] = True
        value["phase"] = self.phase
        value["restarts"] = self.restarts.count
        if self.readiness is not None:
            value["ready"] = self.readiness.ready
            value["statusText"] = self.readiness.text
        if self.history:
            value["earlier"] = self.history
        return value
