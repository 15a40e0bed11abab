"""The supervisor of a pod: starts the apps, writes the pod's status, reaps children, ends the pod. It sleeps in an
event loop.

The pod ends with its last app, or with its first if its lifecycle is ``any``. The lifecycle of each app is in
:mod:`~kurma_stager_default.inside.pod.app_lifecycle`.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import gc
import os
import time

from kurma_core.formats import small_json
from kurma_stager_default.inside import event_loop
from kurma_stager_default.inside.app import child, proc_sys_dev
from kurma_stager_default.inside.manifest import POD_PID, Pod
from kurma_stager_default.inside.pod import pod_cgroups, status_file
from kurma_stager_default.inside.pod.app_lifecycle import Lifecycle
from kurma_stager_default.inside.pod.app_run import WAITING, AppRun
from kurma_stager_default.inside.pod.control_socket import Control, Conversation
from kurma_stager_default.inside.pod.memory_trimming import Rest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kurma_stager_default.inside.pod.prestarted_root import RootMaker

_HEARD = (_signal.SIGCHLD, _signal.SIGTERM, _signal.SIGINT)
# Seconds until the next attempt after status.json could not be written.
_STATUS_PAUSE = 5.0


class Supervisor:
    """Supervises the pod's apps.

    :param control: the control socket, without conversations yet.
    :param running: the descriptor that is closed when the pod runs.
    :param init: PID of the pod's PID 1, or of its parent, if that is our child; ``requests`` becomes readable when
        PID 1 gets a signal to end.
    :param stdin: the standard input for the app that wants it; -1: none.
    """

    LIFECYCLE = Lifecycle

    def __init__(
        self,
        pod: Pod,
        groups: pod_cgroups.PodGroups,
        control: Control,
        running: int,
        init: int,
        requests: int,
        stdin: int,
        notes: list[str],
    ) -> None:
        self.pod = pod
        self.groups = groups
        self.notes = notes
        self.runs = [AppRun(app, groups.make_app(app.name, app.plan)) for app in pod.apps]
        self.stopping = False
        #: why the pod cannot go on
        self.broken: str | None = None
        #: the process that does not end after SIGKILL, as an error message
        self.hangs: str | None = None
        self._running = running
        #: the stager's own copy of the prestarted mounts has to be unmounted
        self._drops = False
        self._init = init
        self._requests = requests
        self.changed = True
        #: ``/proc``, ``/sys`` and ``/dev`` were mounted before, and no app has them yet
        self.ahead = False
        #: makes the root of the first app; None: the app's own process makes it
        self.maker: RootMaker | None = None
        #: why status.json is not up to date
        self.unsaved: str | None = None
        self.loop = control.loop
        self.life = self.LIFECYCLE(self, pod, stdin)
        self._readers: list[Conversation] = []
        self._rest = Rest(self.loop)
        #: by PID, what is called with the wait status of a child that does work for the supervisor
        self.helpers: dict[int, Callable[[int], None]] = {}
        self.control = control
        self.control.on_end = self.worked
        self.control.verbs["status"] = self._tell_status
        self.control.verbs["follow"] = self._take_reader
        self.control.verbs["attach"] = self.life.attach
        self.control.verbs["run"] = self._run
        for verb in ("add", "start", "stop", "rm", "reopen-log", "update"):
            self.control.verbs[verb] = self._change

    def run(self) -> int:
        """Runs the pod until its end. :returns: the stager's exit status: 0 unless the pod has failed."""
        _signal.signal(_signal.SIGHUP, _signal.SIG_IGN)
        self.loop.watch(event_loop.catch_signals(_HEARD), self._on_signals)
        self.loop.watch(self._requests, self._on_request)
        for run in self.runs:
            # Make the sockets of all apps before the first app runs, so that an app that connects to another is
            # not refused.
            self.life.equip(run)
        runs = self.runs
        if any(run.app.pid != POD_PID for run in runs):
            from kurma_stager_default.inside.app import pid_namespace

            runs = pid_namespace.ordered(runs)
        for run in runs:
            self.life.watch_memory(run)
            self.life.begin(run)
        gc.freeze()
        while True:
            self._announce()
            if self._over():
                self._see_readers_off()
                return self._code()
            if self._rest.due():
                self._rest.take()
            self.loop.turn()
            self._reap()
            if self._running < 0:
                self._rest.worked()

    def made_ahead(self) -> None:
        """Notes that ``/proc``, ``/sys`` and ``/dev`` were mounted before (:func:`proc_sys_dev.make_ahead`)."""
        self.ahead = self._drops = True

    def take_ahead(self, run: AppRun) -> bool:
        """Whether that execution gets the prestarted mounts: the first one without special rights or devices
        does."""
        plan = run.app.plan
        if (
            not self.ahead
            or plan.privileged
            or plan.devices
            or plan.own_paths
            or self.pod.plan.namespaces
            or run.app.pid != POD_PID
            or run.readiness is not None
        ):
            return False
        self.ahead = False
        return True

    def take_maker(self, run: AppRun, directory: str) -> RootMaker | None:
        """The root maker for that execution; None: its own process makes the root."""
        maker = self.maker
        if maker is None or run is not self.runs[0]:
            return None
        self.maker = None
        from kurma_stager_default.inside.pod import prestarted_root

        if directory != prestarted_root.directory_of(run.app):
            maker.drop()
            return None
        return maker

    def _code(self) -> int:
        """The exit status. The apps' results are in status.json; if that cannot be written, this is an app's."""
        if self.broken is not None or self.hangs is not None:
            return 1
        if self.unsaved is None:
            return 0
        codes = [run.instance.code for run in self.runs if run.instance is not None and run.instance.code]
        return codes[0] if codes else 0

    # --- the loop ----------------------------------------------------------------------------------------------

    def _on_signals(self, wake: int, _events: int) -> None:
        if any(number != _signal.SIGCHLD for number in os.read(wake, 4096)):
            self.stop()

    def _on_request(self, fd: int, _events: int) -> None:
        os.read(fd, 4096)
        self.stop()

    def _change(self, asked: Conversation, request: dict[str, Any]) -> None:
        """Handles requests to change the pod. The module is loaded at the first request, since few pods change."""
        from kurma_stager_default.inside.pod import app_changes

        app_changes.do(self, asked, request)

    def _run(self, asked: Conversation, request: dict[str, Any]) -> None:
        """Handles requests to run a command. The module is loaded at the first request."""
        from kurma_stager_default.inside.pod import forked_work

        forked_work.run(self, asked, request)

    def _stop_is_over(self) -> None:
        for run in self.runs:
            self.life.insist(run)

    def forget(self, run: AppRun) -> None:
        """Drops the state of an app that was removed from the pod. The app does not run."""
        self.runs.remove(run)
        self.life.forget(run)

    def _over(self) -> bool:
        if self.broken is not None:
            for run in self.runs:
                pod_cgroups.end_all(run.tree)
            for run in self.runs:
                self.life.cut_off(run)
            self.tell()
            return True
        if self.life.lingering():
            return False
        return all(run.over for run in self.runs) and (self.stopping or not self.pod.keep)

    def _announce(self) -> None:
        """Writes the status first, and then closes the descriptor that says that the pod runs."""
        started = all(
            run.over
            or (
                run.phase in (child.MAIN, child.POST_STOP, WAITING)
                and not (self.life.starting(run) or run.unready)
            )
            for run in self.runs
        )
        self.tell()
        if started and self._running >= 0 and self.broken is None:
            os.close(self._running)
            self._running = -1
            if self._drops:
                self._drops = self.ahead = False
                proc_sys_dev.drop_ahead()
            self._rest.begin()

    def _apps(self) -> dict[str, dict[str, Any]]:
        return {run.app.name: run.to_json() for run in self.runs}

    def _tell_status(self, asked: Conversation, _: dict[str, Any]) -> None:
        """Answers with the current status, even if the disk's is out of date. It is sent as the descriptor of a
        file, since it may be long."""
        file = os.memfd_create("status", os.MFD_CLOEXEC)
        try:
            os.write(file, small_json.encode_valid({"apps": self._apps()}).encode())
            asked.answer({}, [file])
        finally:
            os.close(file)
        asked.end()

    def _take_reader(self, asked: Conversation, _: dict[str, Any]) -> None:
        """Registers a call-in that follows a log, until it ends the conversation."""
        self._readers.append(asked)

        def leave() -> None:
            if asked in self._readers:
                self._readers.remove(asked)

        asked.on_end = leave

    def _see_readers_off(self) -> None:
        """Waits for the call-ins that follow a log to read it to its end, within bounds: the pod's end kills
        them."""
        if self._readers and self.broken is None:
            from kurma_stager_default.inside.pod.last_readers import Farewell

            Farewell(self.loop, self._readers)
            while self._readers:
                self.loop.turn()
                self._reap()

    def tell(self) -> None:
        """Writes the status file if the status has changed. Call it before reporting a change."""
        if self.changed:
            self.changed = False
            self._write_status()

    def _write_status(self) -> None:
        value = {"version": status_file.VERSION, "apps": self._apps(), "notes": self.notes}
        try:
            status_file.write(value)
            self.unsaved = None
        except OSError as error:
            # It does not end the pod: write again after a pause, and at the next change.
            self.unsaved = f"{status_file.PATH} cannot be written: {error.strerror}"
            self.loop.at("status", time.monotonic() + _STATUS_PAUSE, self._write_status)

    def worked(self) -> None:
        """Schedules a trim of memory after work that took much of it."""
        if self._running < 0:
            self._rest.worked(much=True)

    def look_again(self) -> None:
        """Marks the status as changed."""
        self.changed = True

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
            self.changed = True

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            done = self.helpers.pop(pid, None)
            if done is not None:
                done(status)
                continue
            if pid == self._init:
                self.broken = "the pod's PID 1 has ended"
                continue
            for run in self.runs:
                if run.child is not None and run.child.pid == pid:
                    self.life.on_exit(run, run.child, status)

    def stop(self) -> None:
        """Stops all apps; those that have not ended by the deadline are killed."""
        if self.stopping:
            return
        self.stopping = True
        self.changed = True
        self.loop.at("stop", time.monotonic() + self.pod.stop_timeout, self._stop_is_over)
        for run in self.runs:
            self.life.ask_to_end(run)

    # --- effects of an app's failure or end on the pod ---------------------------------------------------------

    def could_not_start(self, reason: str) -> None:
        """Handles a failed set-up of an app: while the pod starts, it ends the pod; later only that app."""
        if self._running >= 0:
            self.broken = reason

    def app_ended(self) -> None:
        """Handles the end of an app that is not restarted."""
        if self.pod.lifecycle == "any" and not self.stopping:
            self.stop()
