"""The life of a pod: all apps started, watched, started again, stopped; a loop that sleeps while nothing happens.

Per app: pre-start handler → main → post-stop handler (H4), again if its restart policy says so (H5). The pod ends
with its last app, or its first where its lifecycle is ``any``.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import gc
import os
import select
import time

from kurma_core.linux.files import replace_file
from kurma_stager_default.inside import child, podgroups, smalljson, statusfile
from kurma_stager_default.inside.apprun import ENDED, WAITING, AppRun
from kurma_stager_default.inside.manifest import Pod

# Of what processes left behind still write, no more is waited for than this.
_LAST_WORDS = 1 << 20


class Supervisor:
    """:param running: the descriptor whose closing says that the pod runs.
    :param init: PID of the pod's PID 1; ``requests`` becomes readable when it is asked to end.
    :param stdin: for the app that wants it; -1: none.
    """

    def __init__(
        self,
        pod: Pod,
        groups: podgroups.PodGroups,
        running: int,
        init: int,
        requests: int,
        stdin: int,
        notes: list[str],
    ) -> None:
        self.pod = pod
        self.notes = notes
        self.runs = [AppRun(app, groups.make_app(app.name, app.plan)) for app in pod.apps]
        self.stopping = False
        #: why the pod cannot go on
        self.broken: str | None = None
        self._running = running
        self._init = init
        self._requests = requests
        self._stdin = stdin
        self._stop_deadline: float | None = None
        self._changed = True
        self._poll = select.poll()
        self._streams: dict[int, AppRun] = {}
        self._reports: dict[int, AppRun] = {}

    def run(self) -> int:
        """Until the pod has ended. :returns: the stager's exit status: 0 unless the pod could not go on."""
        wake = _catch_signals()
        self._poll.register(wake, select.POLLIN)
        self._poll.register(self._requests, select.POLLIN)
        for run in self.runs:
            self._begin(run)
        gc.freeze()
        while True:
            self._announce()
            if self._over():
                return 1 if self.broken else 0
            self._turn(wake)

    # --- the loop ----------------------------------------------------------------------------------------------

    def _turn(self, wake: int) -> None:
        for fd, _ in self._poll.poll(self._sleep()):
            if fd == wake:
                if any(number != _signal.SIGCHLD for number in os.read(wake, 4096)):
                    self.stop()
            elif fd == self._requests:
                os.read(fd, 4096)
                self.stop()
            elif fd in self._reports:
                self._on_report(self._reports[fd])
            elif fd in self._streams:
                instance = self._streams[fd].instance
                if instance is not None:
                    instance.drain(fd, 1)  # one read, then the others' turn
        self._reap()
        self._on_time()

    def _sleep(self) -> float | None:
        """Milliseconds until the next deadline; None: until something happens."""
        times = [run.deadline for run in self.runs if run.deadline is not None]
        if self._stop_deadline is not None:
            times.append(self._stop_deadline)
        return max(0.0, (min(times) - time.monotonic()) * 1000 + 1) if times else None

    def _on_time(self) -> None:
        now = time.monotonic()
        for run in self.runs:
            if run.deadline is not None and run.deadline <= now:
                run.deadline = None
                if run.phase == WAITING:
                    self._begin(run)
                elif run.child is not None:
                    self._note(f"app {run.app.name}: its {run.phase} handler took too long and was killed")
                    _kill(run.child.pid, _signal.SIGKILL)
        if self._stop_deadline is not None and self._stop_deadline <= now:
            self._stop_deadline = None
            for run in self.runs:
                if run.phase == child.MAIN:
                    podgroups.end_all(run.tree)

    def _over(self) -> bool:
        if self.broken is not None:
            for run in self.runs:
                podgroups.end_all(run.tree)
            return True
        return all(run.phase == ENDED for run in self.runs) and (bool(self.runs) or self.stopping)

    def _announce(self) -> None:
        """Status first, then the word that the pod runs."""
        started = all(
            run.phase in (child.MAIN, child.POST_STOP, WAITING, ENDED) and not self._starting(run)
            for run in self.runs
        )
        if self._changed:
            self._changed = False
            self._write_status()
        if started and self._running >= 0 and self.broken is None:
            os.close(self._running)
            self._running = -1

    @staticmethod
    def _starting(run: AppRun) -> bool:
        """Not yet executed; or it could not be, and has not been waited for."""
        one = run.child
        return (
            run.phase == child.MAIN
            and one is not None
            and (one.report >= 0 or one.failure is not None or not one.executing)
        )

    def _write_status(self) -> None:
        value = {
            "version": statusfile.VERSION,
            "apps": {run.app.name: run.to_json() for run in self.runs},
            "notes": self.notes,
        }
        try:
            replace_file(statusfile.PATH, smalljson.encode(value).encode() + b"\n", 0o644)
        except OSError as error:
            # A full disk ends no pod; the next change is written again.
            os.write(2, f"kurma stager: {statusfile.PATH} cannot be written: {error.strerror}\n".encode())

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
            self._changed = True

    # --- children ----------------------------------------------------------------------------------------------

    def _begin(self, run: AppRun) -> None:
        """A new execution of the app, on a clean root."""
        instance = run.new_instance(self.pod, self._stdin if run.app.stdin else -1)
        for fd in instance.streams:
            self._streams[fd] = run
            self._poll.register(fd, select.POLLIN)
        handlers = run.app.pre_start is not None or run.app.post_stop is not None
        self._spawn(run, child.ROOT if handlers else child.MAIN, run.app.exec)

    def _spawn(self, run: AppRun, kind: str, argv: list[str]) -> None:
        instance = run.instance
        assert instance is not None
        run.phase = kind
        run.deadline = None
        if kind in (child.PRE_START, child.POST_STOP):
            bound = (
                min(self.pod.handler_timeout, self.pod.stop_timeout) if self.stopping else self.pod.handler_timeout
            )
            run.deadline = time.monotonic() + bound
        run.child = child.spawn(self.pod, run.app, kind, argv, instance.files, run.tree)
        if kind == child.MAIN and run.app.stdin and self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = instance.files.stdin = -1
        self._reports[run.child.report] = run
        self._poll.register(run.child.report, select.POLLIN)
        self._changed = True

    def _on_report(self, run: AppRun) -> None:
        one = run.child
        if one is None or one.report < 0:
            return
        ended = one.read_report()
        for text in one.notes:
            self._note(text)
        one.notes.clear()
        if one.kind == child.ROOT and one.ready and run.instance is not None and run.instance.files.namespace < 0:
            path = f"/proc/{one.pid}/ns/mnt"
            run.instance.files.namespace = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            _kill(one.pid, _signal.SIGKILL)
        if ended:
            self._poll.unregister(one.report)
            del self._reports[one.report]
            one.close()
            if one.kind == child.MAIN and one.executing and one.failure is None:
                run.started()
                self._changed = True

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._init:
                self.broken = "the pod's PID 1 has ended"
                continue
            for run in self.runs:
                if run.child is not None and run.child.pid == pid:
                    self._on_exit(run, run.child, status)

    def _on_exit(self, run: AppRun, one: child.Child, status: int) -> None:
        while one.report >= 0:
            # What it said before it ended; the pipe is at its end, since nobody else holds it.
            self._on_report(run)
        run.child = None
        run.deadline = None
        self._changed = True
        instance = run.instance
        assert instance is not None
        if one.kind == child.ROOT:
            if instance.files.namespace < 0 or self.stopping:
                self._not_started(run, one, status, "its root")
            elif run.app.pre_start is not None:
                self._spawn(run, child.PRE_START, run.app.pre_start)
            else:
                self._spawn(run, child.MAIN, run.app.exec)
        elif one.kind == child.PRE_START:
            if status != 0 or self.stopping:
                self._not_started(run, one, status, "its pre-start handler")
            else:
                self._spawn(run, child.MAIN, run.app.exec)
        elif one.kind == child.MAIN:
            if one.failure is not None or not one.executing:
                self._not_started(run, one, status, "its start")
                return
            run.started()
            run.record_status(status)
            self._end_leftovers(run)
            if run.app.post_stop is not None:
                self._spawn(run, child.POST_STOP, run.app.post_stop)
            else:
                self._finish(run)
        else:
            if status != 0:
                self._note(f"app {run.app.name}: its post-stop handler {_how(one, status)}")
            self._finish(run)

    def _not_started(self, run: AppRun, one: child.Child, status: int, what: str) -> None:
        """The app's main process never ran."""
        if self.stopping and one.failure is None:
            run.record(128 + _signal.SIGKILL, "killed", "stopped before it had started")
        else:
            code, text = child.SETUP_FAILED, f"{what} {_how(one, status)}"
            if one.failure is not None and one.kind != child.PRE_START:
                code, text = one.failure
            run.record(code, "start-failed", text)
            # A program that is not there is the app's own failure (126, 127); anything else, the pod's.
            if code == child.SETUP_FAILED and self._running >= 0:
                self.broken = f"app {run.app.name}: {text}"
        self._finish(run)

    def _end_leftovers(self, run: AppRun) -> None:
        """What the main process has left running in the app's cgroup ends with it."""
        podgroups.end_all(run.tree)
        self._drain(run)

    def _drain(self, run: AppRun) -> None:
        if run.instance is not None:
            for fd in run.instance.streams:
                run.instance.drain(fd, _LAST_WORDS)

    def _finish(self, run: AppRun) -> None:
        """An execution is over."""
        self._drain(run)
        instance = run.instance
        assert instance is not None
        for fd in list(instance.streams):
            self._poll.unregister(fd)
            del self._streams[fd]
        instance.close()
        self._changed = True
        pause = None if self.stopping else run.next_pause()
        if pause is not None:
            run.phase = WAITING
            run.deadline = time.monotonic() + pause
            gc.collect()
            return
        run.phase = ENDED
        if self.pod.lifecycle == "any" and not self.stopping:
            self.stop()

    def stop(self) -> None:
        """Ask every app to end; those that have not by the deadline are killed (G7)."""
        if self.stopping:
            return
        self.stopping = True
        self._changed = True
        self._stop_deadline = time.monotonic() + self.pod.stop_timeout
        for run in self.runs:
            if run.phase == WAITING:
                run.phase = ENDED
                run.deadline = None
            elif run.phase == child.MAIN and run.child is not None:
                _kill(run.child.pid, run.app.stop_signal)
            elif run.phase in (child.ROOT, child.PRE_START) and run.child is not None:
                _kill(run.child.pid, _signal.SIGKILL)


def _how(one: child.Child, status: int) -> str:
    if one.failure is not None:
        return f"cannot be run: {one.failure[1]}"
    code = os.waitstatus_to_exitcode(status)
    return f"was ended by signal {-code}" if code < 0 else f"exited with status {code}"


def _kill(pid: int, number: int) -> None:
    """To a child that has not been waited for, so the PID is its own."""
    os.kill(pid, number)


def _catch_signals() -> int:
    """A descriptor that becomes readable, one byte per signal, with their numbers."""
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    for number in (_signal.SIGCHLD, _signal.SIGTERM, _signal.SIGINT):
        _signal.signal(number, _nothing)
    _signal.signal(_signal.SIGHUP, _signal.SIG_IGN)
    _signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    return read


def _nothing(_number: int, _frame: object) -> None:
    """Python calls it after it has written to the wake-up descriptor, which is all that is wanted."""
