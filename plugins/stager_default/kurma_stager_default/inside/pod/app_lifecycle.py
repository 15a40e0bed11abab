"""The lifecycle of a pod's apps: pre-start handler → main process → post-stop handler, and restarts by the restart
policy. Callbacks of the event loop begin each step; no step blocks.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import gc
import os
import time

from kurma_stager_default.inside.app import child
from kurma_stager_default.inside.errors import SetupError
from kurma_stager_default.inside.manifest import Pod
from kurma_stager_default.inside.pod import pod_cgroups
from kurma_stager_default.inside.pod.app_run import ENDED, WAITING, AppRun, Instance

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from kurma_stager_default.inside.pod.control_socket import Conversation
    from kurma_stager_default.inside.pod.supervisor import Supervisor
    from kurma_stager_default.inside.streams.attach import Attaching

# Most bytes to read at the end from processes that the app has left behind, and that still write.
_LAST_WORDS = 1 << 20
# Seconds between two writes of an app's status text to status.json.
_STATUS_TEXT = 1.0
# Bytes: from one read of this size on, the memory that it took is trimmed.
_MUCH = 1 << 15
# Seconds that a process may take to end after SIGKILL; after that it counts as hanging in the kernel.
_DYING = 1.5
# Seconds between two checks of processes that are ending.
_LOOK_AGAIN = 0.01
# Seconds until a restart that failed before a process was made is tried again.
_RETRY = 5.0
# Seconds for which an OOM kill may explain the end of the main process: a later end has another reason.
_OOM_COUNTS = 5.0


class Lifecycle:
    """Runs each app through its lifecycle.

    :param supervisor: the pod's supervisor, whose methods are called when an app ends or fails.
    :param stdin: the standard input for the app that wants it; -1: none.
    """

    __slots__ = ("_attached", "_loop", "_pod", "_stdin", "_supervisor")

    def __init__(self, supervisor: Supervisor, pod: Pod, stdin: int) -> None:
        self._supervisor = supervisor
        self._pod = pod
        self._loop = supervisor.loop
        self._stdin = stdin
        self._attached: Attaching | None = None

    def watch_memory(self, run: AppRun) -> None:
        """Watches the app's cgroup for OOM kills."""
        fd, events = pod_cgroups.watch_oom(run.tree)
        run.memory = fd

        def look(fd: int, _events: int) -> None:
            pod_cgroups.saw_oom(fd)
            # The main process may be the killed one, and about to end: so wait before it counts as survived.
            self._loop.at(("oom", fd), time.monotonic() + _OOM_COUNTS, run.survived_oom)

        if fd >= 0:
            self._loop.watch(fd, look, events)

    def forget(self, run: AppRun) -> None:
        """Drops the state of an app that was removed from the pod. The app does not run."""
        if self._attached is not None:
            self._attached.forget(run)
        if run.memory >= 0:
            self._loop.unwatch(run.memory)
            self._loop.cancel(("oom", run.memory))
            os.close(run.memory)

    # --- sockets: socket activation and readiness --------------------------------------------------------------

    def equip(self, run: AppRun) -> None:
        """Makes the app's listening sockets and its readiness socket, unless it has them already.

        :raises SetupError: they cannot be made.
        """
        if run.app.sockets and run.listening is None:
            from kurma_stager_default.inside.app.listening_sockets import Listening

            run.listening = Listening(run.app)
        if run.app.notifies and run.readiness is None:
            from kurma_stager_default.inside.app.notify_socket import Readiness

            run.readiness = Readiness()
            self._loop.watch(run.readiness.fileno(), lambda _fd, _events: self._on_word(run))

    def _give(self, run: AppRun, instance: Instance) -> None:
        if run.listening is not None:
            instance.files.sockets, instance.files.names = run.listening.fds(), run.listening.names
        if run.readiness is not None:
            run.readiness.begin()
            instance.files.notify = run.readiness.path

    def _take_back(self, run: AppRun) -> None:
        """Closes the sockets of an app that is not started again, so that connections are refused."""
        if run.listening is not None:
            run.listening.close()
            run.listening = None
        if run.readiness is not None:
            self._loop.unwatch(run.readiness.fileno())
            self._loop.cancel(("text", run))
            run.readiness.close()
            run.readiness = None

    def _on_word(self, run: AppRun) -> None:
        if run.readiness is None:
            return
        changed = run.readiness.receive()
        if run.phase != child.MAIN:
            run.readiness.ready = False  # a handler has sent it: only the main process may report readiness
        elif changed:
            self._supervisor.changed = True
            self._tell_started(run)
        elif not self._loop.waits(("text", run)):
            # Limits the writes of status.json for an app that changes its status text often.
            self._loop.at(("text", run), time.monotonic() + _STATUS_TEXT, self._supervisor.look_again)

    def _tell_started(self, run: AppRun) -> None:
        if run.waiting and not run.unready:
            _changing().started(self._supervisor, run)

    # --- an execution begins -----------------------------------------------------------------------------------

    def begin(self, run: AppRun) -> None:
        """Begins a new execution of the app, on a new root. :raises SetupError: its sockets cannot be made."""
        self.equip(run)
        instance = run.new_instance(self._pod, -1)
        self._give(run, instance)
        instance.files.ahead = self._supervisor.take_ahead(run)
        instance.files.maker = self._supervisor.take_maker(run, instance.directory)
        for fd in instance.streams:
            self._loop.watch(fd, lambda fd, _: self._read(instance, fd))
        handlers = run.app.pre_start is not None or run.app.post_stop is not None
        self._spawn(run, child.ROOT if handlers else child.MAIN, run.app.exec)

    def _spawn(self, run: AppRun, kind: str, argv: list[str]) -> None:
        instance = run.instance
        assert instance is not None
        run.phase = kind
        self._loop.cancel(run)
        if kind in (child.PRE_START, child.POST_STOP):
            self._bound_handler(run)
        attaching = None
        if kind == child.MAIN and (run.app.terminal is not None or run.app.stdin or run.app.stdin_open):
            attaching = self._attaching()
        try:
            if attaching is not None:
                attaching.prepare(run)
            run.child = child.spawn(self._pod, run.app, kind, argv, instance.files, run.tree, self._main_of)
        except (OSError, SetupError) as error:
            one = child.Child(-1, -1, kind)
            text = f"no process can be made for it: {error.strerror}" if isinstance(error, OSError) else str(error)
            one.failure = child.SETUP_FAILED, text
            self.on_exit(run, one, child.SETUP_FAILED << 8)
            return
        if attaching is not None:
            attaching.started(run)
        self._loop.watch(run.child.report, lambda _fd, _events: self._on_report(run))
        self._supervisor.changed = True

    def _main_of(self, name: str) -> int:
        """The PID of an app's main process, which has not been reaped. :raises SetupError: it does not run."""
        for run in self._supervisor.runs:
            if run.app.name == name and run.phase == child.MAIN and run.child is not None:
                return run.child.pid
        raise SetupError(f"app {name}, whose PID namespace it shares, does not run")

    def _bound_handler(self, run: AppRun) -> None:
        """Starts the timeout of the running handler. While the app or the pod stops, it is at most the stop
        timeout.
        """
        bound = self._pod.handler_timeout
        if self._ends(run):
            bound = min(bound, self._pod.stop_timeout)
        self._loop.at(run, time.monotonic() + bound, lambda: self._too_long(run))

    def _on_report(self, run: AppRun) -> None:
        one = run.child
        if one is None or one.report < 0:
            return
        ended = one.read_report()
        for text in one.notes:
            self._supervisor.note(text)
        one.notes.clear()
        if one.own_files and run.instance is not None:
            run.instance.own_files = one.own_files
            self._supervisor.changed = True
        if one.kind == child.ROOT and one.ready and run.instance is not None and run.instance.files.namespace < 0:
            try:
                path = f"/proc/{one.pid}/ns/mnt"
                run.instance.files.namespace = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                pass  # it has been killed meanwhile: on_exit() handles that
            _kill(one.pid, _signal.SIGKILL)
        if ended:
            self._loop.unwatch(one.report)
            one.close()
            if one.kind == child.MAIN and one.executing and one.failure is None:
                run.started()
                self._supervisor.changed = True
                self._supervisor.worked()
                self._tell_started(run)

    @staticmethod
    def starting(run: AppRun) -> bool:
        """Whether the main process has not been executed yet, or has failed to and is not reaped yet."""
        one = run.child
        return (
            run.phase == child.MAIN
            and one is not None
            and (one.report >= 0 or one.failure is not None or not one.executing)
        )

    # --- an execution ends -------------------------------------------------------------------------------------

    def _ends(self, run: AppRun) -> bool:
        """Whether the app is being stopped, with its pod or on its own."""
        return self._supervisor.stopping or run.quitting

    def on_exit(self, run: AppRun, one: child.Child, status: int) -> None:
        while one.report >= 0:
            # Read the report to its end. No other process holds the pipe open.
            self._on_report(run)
        run.child = None
        self._loop.cancel(run)
        self._supervisor.changed = True
        instance = run.instance
        assert instance is not None
        if one.kind == child.ROOT:
            if instance.files.namespace < 0 or self._ends(run):
                self._not_started(run, one, status, "its root")
            elif run.app.pre_start is not None:
                self._spawn(run, child.PRE_START, run.app.pre_start)
            else:
                self._spawn(run, child.MAIN, run.app.exec)
        elif one.kind == child.PRE_START:
            if status != 0 or self._ends(run):
                self._not_started(run, one, status, "its pre-start handler")
            else:
                self._spawn(run, child.MAIN, run.app.exec)
        elif one.kind == child.MAIN:
            if one.failure is not None or not one.executing:
                self._not_started(run, one, status, "its start")
                return
            run.started()
            run.record_status(status)
            after = run.app.post_stop
            if after is not None:
                self._end_leftovers(run, lambda: self._spawn(run, child.POST_STOP, after))
            else:
                self._finish(run)
        else:
            if status != 0:
                self._supervisor.note(f"app {run.app.name}: its post-stop handler {_how(one, status)}")
            self._finish(run)

    def _not_started(self, run: AppRun, one: child.Child, status: int, what: str) -> None:
        """Records the end of an execution whose main process never ran."""
        if self._ends(run) and one.failure is None:
            run.record(128 + _signal.SIGKILL, "killed", "stopped before it had started")
        else:
            code, text = child.SETUP_FAILED, f"{what} {_how(one, status)}"
            if one.failure is not None and one.kind != child.PRE_START:
                code, text = one.failure
            run.record(code, "start-failed", text)
            # A program that cannot be executed (126, 127) is the app's failure; any other failure is the pod's.
            if code == child.SETUP_FAILED:
                self._supervisor.could_not_start(f"app {run.app.name}: {text}")
        self._finish(run)

    def _end_leftovers(self, run: AppRun, then: Callable[[], None], until: float | None = None) -> None:
        """Kills the processes that are left in the app's cgroup, and calls ``then`` once they have ended."""
        some = pod_cgroups.end_all(run.tree)
        self._drain(run)
        now = time.monotonic()
        until = now + _DYING if until is None else until
        if some and now < until:
            self._loop.at(run, now + _LOOK_AGAIN, lambda: self._end_leftovers(run, then, until))
            return
        if some:
            self._supervisor.hangs = (
                f"app {run.app.name}: a process that it has left hangs in the kernel, and does not die"
            )
            self._supervisor.note(self._supervisor.hangs)
        then()

    def _drain(self, run: AppRun) -> None:
        if run.instance is not None:
            for fd in run.instance.streams:
                run.instance.drain(fd, _LAST_WORDS)

    def _finish(self, run: AppRun) -> None:
        """Ends an execution, once none of its processes runs."""
        self._supervisor.worked()
        self._end_leftovers(run, lambda: self._finished(run))

    def _finished(self, run: AppRun) -> None:
        self._close(run)
        pause = (
            None
            if self._ends(run)
            else run.restarts.next_pause(run.app.restart, run.instance, first=not run.history)
        )
        if pause is not None:
            run.phase = WAITING
            if run.listening is not None:
                run.listening.renew()
            self._loop.at(run, time.monotonic() + pause, lambda: self._again(run))
            if run.waiting:
                _changing().ended(self._supervisor, run)
            gc.collect()
            return
        self._ended(run)

    def _close(self, run: AppRun) -> None:
        if self._attached is not None:
            self._attached.collect(run)
        self._drain(run)
        instance = run.instance
        assert instance is not None
        if self._attached is not None:
            self._attached.over(run)
        for fd in list(instance.streams):
            self._loop.unwatch(fd)
        instance.close()
        self._supervisor.changed = True

    def _ended(self, run: AppRun) -> None:
        """Marks the app as ended for good; it is not started again."""
        run.phase = ENDED
        self._take_back(run)
        if run.waiting:
            _changing().ended(self._supervisor, run)
        self._supervisor.app_ended()

    def _too_long(self, run: AppRun) -> None:
        """Kills a handler whose timeout is over."""
        if run.child is not None:
            self._supervisor.note(f"app {run.app.name}: its {run.phase} handler took too long and was killed")
            self._end_now(run)

    def _end_now(self, run: AppRun) -> None:
        """Sends SIGKILL to all processes of the app, and waits a limited time for their end."""
        pod_cgroups.end_all(run.tree)
        self._loop.at(run, time.monotonic() + _DYING, lambda: self._gives_up(run))

    def _gives_up(self, run: AppRun) -> None:
        """Stops waiting for a process that hangs in the kernel: the pod has failed, and its other parts end."""
        one, run.child = run.child, None
        if one is None:
            return
        self._supervisor.hangs = f"app {run.app.name}: its process {one.pid} hangs in the kernel, and does not die"
        run.record(128 + _signal.SIGKILL, "killed", f"process {one.pid} hangs in the kernel, and does not die")
        if one.report >= 0:
            self._loop.unwatch(one.report)
            one.close()
        self._close(run)
        self._ended(run)

    def cut_off(self, run: AppRun) -> None:
        """Records the end of an app whose pod has failed. Its processes were killed, and are not waited for."""
        if not run.over and run.instance is not None:
            run.record(128 + _signal.SIGKILL, "killed", "its pod could not go on")
            self._close(run)
            run.phase = ENDED

    def ask_to_end(self, run: AppRun) -> None:
        """Sends the app's stop signal; an app whose main process has not started ends at once."""
        if run.phase == WAITING:
            self._loop.cancel(run)
            self._supervisor.changed = True
            self._ended(run)
        elif run.phase == child.MAIN and run.child is not None:
            if not _kill(run.child.pid, run.app.stop_signal):
                self._supervisor.note(f"app {run.app.name}: its stop signal cannot be sent: permission denied")
        elif run.phase in (child.ROOT, child.PRE_START) and run.child is not None:
            _kill(run.child.pid, _signal.SIGKILL)
        elif run.phase == child.POST_STOP and run.child is not None:
            self._bound_handler(run)

    def insist(self, run: AppRun) -> None:
        """Kills the app, whose stop timeout is over."""
        if run.phase == child.MAIN and run.child is not None:
            self._end_now(run)

    def _again(self, run: AppRun) -> None:
        run.restarts.count += 1
        try:
            self.begin(run)
        except (OSError, SetupError) as error:
            # Its log cannot be opened, say. It is tried again after a pause: a failed restart must not end the
            # pod.
            self._supervisor.note(f"app {run.app.name} cannot be started again: {error}")
            self._loop.at(run, time.monotonic() + _RETRY, lambda: self._again(run))

    # --- input and output --------------------------------------------------------------------------------------

    def _read(self, instance: Instance, fd: int) -> None:
        if instance.drain(fd, 1) >= _MUCH:  # one read only, so that other descriptors get their turn
            self._supervisor.worked()
        if instance.log.changed:
            instance.log.changed = False
            self._supervisor.changed = True

    def attach(self, asked: Conversation, request: dict[str, Any]) -> None:
        """Handles the request of a call-in that attaches to an app's input and output."""
        self._attaching().attach(asked, request, self._supervisor.runs)

    def lingering(self) -> bool:
        """Whether an attached call-in has not read all output yet."""
        return self._attached is not None and self._attached.lingering()

    def _attaching(self) -> Attaching:
        """The attach service. It is loaded when first needed: few pods' apps have input, or get a call-in
        attached."""
        if self._attached is None:
            from kurma_stager_default.inside.streams.attach import Attaching

            self._attached = Attaching(self._loop, self._stdin, self._read)
        return self._attached


def _changing() -> ModuleType:
    """The module for changes of a running pod. It is loaded when first needed, since few pods change."""
    from kurma_stager_default.inside.pod import app_changes

    return app_changes


def _how(one: child.Child, status: int) -> str:
    if one.failure is not None:
        return f"cannot be run: {one.failure[1]}"
    code = os.waitstatus_to_exitcode(status)
    return f"was ended by signal {-code}" if code < 0 else f"exited with status {code}"


def _kill(pid: int, number: int) -> bool:
    """Signals a child that has not been reaped, so that the PID cannot be another process's.

    :returns: whether the signal is permitted."""
    try:
        os.kill(pid, number)
    except PermissionError:
        return False  # the app's AppArmor profile forbids it; after the stop timeout its cgroup is killed
    return True
