"""One app of a running pod: its executions one after the other, each with its root, its pipes and its log."""

from __future__ import annotations

import os
import time

from kurma_core.formats.timestamps import timestamp
from kurma_stager_default.inside.app import child
from kurma_stager_default.inside.manifest import App, Pod
from kurma_stager_default.inside.pod import pod_cgroups
from kurma_stager_default.inside.streams import app_log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kurma_core.linux.cgroups import CgroupTree
    from kurma_stager_default.inside.app.listening_sockets import Listening
    from kurma_stager_default.inside.app.notify_socket import Readiness
    from kurma_stager_default.inside.pod.control_socket import Conversation

#: Phases besides those of a child: waiting for the next execution, over, and never begun (G10).
WAITING = "waiting"
ENDED = "ended"
ADDED = "added"

_CHUNK = 1 << 18
_F_SETPIPE_SZ = 1031
# Executions remembered in status.json besides the last one.
_REMEMBERED = 10
# Seconds: the pause before the first restart, the longest, and how long an execution must have lasted to be no
# failure of the start.
_FIRST_PAUSE, _LONGEST_PAUSE, _SETTLED = 0.1, 60.0, 10.0


class Instance:
    """One execution."""

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
        "reason",
        "shown",
        "signal",
        "slave",
        "started",
        "streams",
    )

    def __init__(self, app: App, number: int, log: app_log.AppLog, stdin: int, oom: int) -> None:
        apps = "/pod/apps"
        self.number = number
        self.directory = f"{apps}/{app.name}/{number}"
        out, out_end = _pipe()
        err, err_end = _pipe()
        #: read ends, and what the log calls them
        self.streams = {out: app_log.STDOUT, err: app_log.STDERR}
        self.files = child.Files(self.directory, out_end, err_end, stdin)
        #: of its terminal, held so that the master always has another side; -1: it has none
        self.slave = -1
        self.log = log
        #: told of the stream and what of it could not be written to the log
        self.lost: Callable[[bytes, bytes], None] | None = None
        #: told of the stream and of all that is read of it
        self.shown: Callable[[bytes, bytes], None] | None = None
        #: how often the kernel had ended a process of the app for want of memory, when this execution began, and
        #: when the main process was last known to have outlived that
        self.oom_before = self.oom = oom
        #: whose content files below ``/etc`` have, by name
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
        """What is written to the app's terminal is that stream."""
        from kurma_core.linux import terminal

        self.streams[master] = stream
        self.slave = terminal.open_other(master)

    def drain(self, fd: int, limit: int = 1 << 30) -> int:
        """Log what is waiting in a pipe. :param limit: at most so many bytes, for a writer that does not stop.

        :returns: how many there were.
        """
        count = 0
        while count < limit:
            try:
                data = os.read(fd, _CHUNK)
            except OSError:
                break  # nothing there; or EIO of a terminal that was hung up
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
            "log": os.path.basename(self.log.path),
        }
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
    """A pipe whose read end does not block and whose write end does, somewhat larger than usual."""
    import fcntl

    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(write, True)
    try:  # noqa: SIM105 - contextlib costs every pod's start
        fcntl.fcntl(read, _F_SETPIPE_SZ, _CHUNK)
    except OSError:
        pass  # the user's allowance of pipe memory is spent; the usual size does
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
        "pause",
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
        #: of the next execution
        self.number = 0
        #: how often its policy has started it again
        self.restarts = 0
        #: the sockets that it is given, from its first execution to its last; None: none, or not yet
        self.listening: Listening | None = None
        #: what it says of itself, likewise
        self.readiness: Readiness | None = None
        #: a descriptor that tells of its want of memory; -1: none
        self.memory = -1
        self.pause = _FIRST_PAUSE
        self.history: list[dict[str, Any]] = []
        #: it was asked to end, by itself, and is not started again
        self.quitting = False
        #: whom to tell once it runs (True) or has ended (False)
        self.waiting: list[tuple[bool, Conversation]] = []

    @property
    def over(self) -> bool:
        """Nothing of it runs, nor will unless somebody asks for it."""
        return self.phase in (ENDED, ADDED)

    @property
    def unready(self) -> bool:
        """It is one that says when it is ready, and has not said so."""
        return self.readiness is not None and not self.readiness.ready

    def new_instance(self, pod: Pod, stdin: int) -> Instance:
        """A fresh root, a log of its own."""
        old = self.instance
        while os.path.lexists(self._log()):
            self.number += 1  # left by an earlier run of the pod
        log = app_log.AppLog(self._log(), pod.log_size, pod.log_count)
        try:
            self.instance = Instance(self.app, self.number, log, stdin, pod_cgroups.oom_kills(self.tree))
        except OSError:
            log.close()
            app_log.remove(log.path)
            raise
        self.instance.shown = pod.shown
        self.number += 1
        if old is not None:
            self._remember(old)
        return self.instance

    def _log(self) -> str:
        return f"/pod/logs/{app_log.file_name(self.app.name, self.number)}"

    def _remember(self, instance: Instance) -> None:
        """How it ended, and its log, kept apart from the next one's: of the last few."""
        self.history = [*self.history, instance.to_json(None)]
        while len(self.history) > _REMEMBERED:
            app_log.remove(f"/pod/logs/{self.history.pop(0)['log']}")

    def started(self) -> None:
        if self.instance is not None and self.instance.started is None:
            self.instance.started = timestamp()

    def record(self, code: int, reason: str, message: str | None = None) -> None:
        """How the execution ended."""
        instance = self.instance
        if instance is not None and instance.finished is None:
            instance.finished = timestamp()
            instance.code, instance.reason, instance.message = code, reason, message

    def record_status(self, status: int) -> None:
        """:param status: as ``waitpid`` gives it, of the main process."""
        code = os.waitstatus_to_exitcode(status)
        instance = self.instance
        assert instance is not None
        number = 128 - code if code < 0 else code
        reason, message = "killed" if code < 0 else "exited", None
        kills = pod_cgroups.oom_kills(self.tree)
        # A shell ends with 137, too, when the command that it was for was killed so.
        if number == 137 and kills > instance.oom:
            reason = "oom"
        if kills > instance.oom_before:
            message = f"killed for want of memory: {kills - instance.oom_before} of its processes"
        instance.signal = -code if code < 0 else None
        self.record(number, reason, message)

    def survived_oom(self) -> None:
        """The main process runs, although the kernel has ended another one of the app for want of memory."""
        if self.instance is not None and self.instance.finished is None:
            self.instance.oom = pod_cgroups.oom_kills(self.tree)

    def settle(self) -> None:
        """Somebody starts it by hand: what its policy had counted begins anew."""
        self.restarts = 0
        self.quitting = False
        self.pause = _FIRST_PAUSE

    def next_pause(self) -> float | None:
        """Seconds until the app is to be started again; None: it is not (H5)."""
        instance = self.instance
        if instance is None or self.app.restart == "never":
            return None
        if instance.reason == "start-failed" and (instance.code != child.SETUP_FAILED or not self.history):
            return None  # what is not there, or never was to be had, is not there the next time
        if self.app.restart == "on-failure" and instance.code == 0:
            return None
        if time.monotonic() - instance.began >= _SETTLED:
            self.pause = _FIRST_PAUSE
        pause, self.pause = self.pause, min(self.pause * 2, _LONGEST_PAUSE)
        return pause

    def to_json(self) -> dict[str, Any]:
        if self.instance is None:
            return {"pid": None, "exited": False, "phase": self.phase}
        # Not before exec: until then its namespaces may still be the stager's, and nobody may enter those.
        running = self.child is not None and self.phase == child.MAIN and self.instance.started is not None
        value = self.instance.to_json(self.child.pid if running and self.child is not None else None)
        if self.phase == WAITING and value["exited"]:
            # It will run again: for others it has not ended.
            value["exited"] = False
            value["restarting"] = True
        value["phase"] = self.phase
        value["restarts"] = self.restarts
        if self.readiness is not None:
            value["ready"] = self.readiness.ready
            value["statusText"] = self.readiness.text
        if self.history:
            value["earlier"] = self.history
        return value
