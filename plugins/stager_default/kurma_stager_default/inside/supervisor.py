"""The life of a pod: all apps started, watched, started again, stopped; a loop that sleeps while nothing happens.

Per app: pre-start handler → main → post-stop handler (H4), again if its restart policy says so (H5). The pod ends
with its last app, or its first where its lifecycle is ``any``.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import gc
import os
import time

from kurma_core.linux import memory
from kurma_stager_default.inside import child, podgroups, smalljson, statusfile
from kurma_stager_default.inside.apprun import ENDED, WAITING, AppRun, Instance
from kurma_stager_default.inside.control import Control, Conversation
from kurma_stager_default.inside.loop import Loop
from kurma_stager_default.inside.manifest import Pod

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from kurma_stager_default.inside.attaching import Attaching

# Of what processes left behind still write, no more is waited for than this.
_LAST_WORDS = 1 << 20
# Seconds that readers of logs have at the pod's end.
_LAST_READ = 1.0
# Seconds until status.json is tried again that could not be written.
_STATUS_PAUSE = 5.0
# Seconds that what got SIGKILL may take to end, until it is given up: it hangs in the kernel.
_DYING = 1.5
# Seconds between two looks for what dies.
_LOOK_AGAIN = 0.01
# Seconds for which a kill for want of memory counts for the end of the main process: after that it was another's.
_OOM_COUNTS = 5.0


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
        self.groups = groups
        self.notes = notes
        self.runs = [AppRun(app, groups.make_app(app.name, app.plan)) for app in pod.apps]
        self.stopping = False
        #: why the pod cannot go on
        self.broken: str | None = None
        #: what of it does not end, though it was killed
        self.hangs: str | None = None
        self._running = running
        self._init = init
        self._requests = requests
        self._stdin = stdin
        self._attached: Attaching | None = None
        self.changed = True

        self.loop = Loop()
        self.control = Control(self.loop)
        self.control.verbs["status"] = self._tell_status
        self.control.verbs["follow"] = self._take_reader
        self._readers: list[Conversation] = []
        for verb in ("add", "start", "stop", "rm"):
            self.control.verbs[verb] = self._change
        #: why status.json is not up to date
        self.unsaved: str | None = None
        self.control.verbs["attach"] = lambda asked, request: self._attaching().attach(asked, request, self.runs)

    def run(self) -> int:
        """Until the pod has ended. :returns: the stager's exit status: 0 unless the pod could not go on."""
        self.loop.watch(_catch_signals(), self._on_signals)
        self.loop.watch(self._requests, self._on_request)
        for run in self.runs:
            self.watch_memory(run)
            self.begin(run)
        gc.freeze()
        while True:
            self._announce()
            if self._over():
                self._see_readers_off()
                return self._code()
            self.loop.turn()
            self._reap()

    def _code(self) -> int:
        """How the apps ended stands in status.json. Where that cannot be, our own exit status tells."""
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

    def _attaching(self) -> Attaching:
        """Not there in a pod whose apps want no input, until somebody attaches."""
        if self._attached is None:
            from kurma_stager_default.inside.attaching import Attaching

            self._attached = Attaching(self.loop, self._stdin, self._read)
        return self._attached

    def _change(self, asked: Conversation, request: dict[str, Any]) -> None:
        _changing().do(self, asked, request)

    def _too_long(self, run: AppRun) -> None:
        """A handler's time is over."""
        if run.child is not None:
            self.note(f"app {run.app.name}: its {run.phase} handler took too long and was killed")
            self._end_now(run)

    def _stop_is_over(self) -> None:
        for run in self.runs:
            self.insist(run)

    def _end_now(self, run: AppRun) -> None:
        """All processes of the app get SIGKILL; what does not die of that is not waited for."""
        podgroups.end_all(run.tree)
        self.loop.at(run, time.monotonic() + _DYING, lambda: self._gives_up(run))

    def _gives_up(self, run: AppRun) -> None:
        """The app's process hangs in the kernel. The pod has failed, and what can end of it does."""
        one, run.child = run.child, None
        if one is None:
            return
        self.hangs = f"app {run.app.name}: its process {one.pid} hangs in the kernel, and does not die"
        run.record(128 + _signal.SIGKILL, "killed", f"process {one.pid} hangs in the kernel, and does not die")
        if one.report >= 0:
            self.loop.unwatch(one.report)
            one.close()
        self._close(run)
        self._ended(run)

    def watch_memory(self, run: AppRun) -> None:
        """Whether the kernel ends processes of it for want of memory, and when (H5)."""
        fd, events = podgroups.watch_oom(run.tree)
        run.memory = fd

        def look(fd: int, _events: int) -> None:
            podgroups.saw_oom(fd)
            # Now, the main process may be the one, and about to end.
            self.loop.at(("oom", fd), time.monotonic() + _OOM_COUNTS, run.survived_oom)

        if fd >= 0:
            self.loop.watch(fd, look, events)

    def forget(self, run: AppRun) -> None:
        """The app has gone; nothing of it ran any more."""
        self.runs.remove(run)
        if self._attached is not None:
            self._attached.forget(run)
        if run.memory >= 0:
            self.loop.unwatch(run.memory)
            self.loop.cancel(("oom", run.memory))
            os.close(run.memory)

    def _over(self) -> bool:
        if self.broken is not None:
            for run in self.runs:
                podgroups.end_all(run.tree)
            return True
        if self._attached is not None and self._attached.lingering():
            return False

        return all(run.over for run in self.runs) and (self.stopping or not self.pod.keep)

    def _announce(self) -> None:
        """Status first, then the word that the pod runs."""
        started = all(
            run.over or (run.phase in (child.MAIN, child.POST_STOP, WAITING) and not self._starting(run))
            for run in self.runs
        )
        self.tell()
        if started and self._running >= 0 and self.broken is None:
            os.close(self._running)
            self._running = -1
            memory.unmap(memory.programs())  # the start took many times what is used from here on

    @staticmethod
    def _starting(run: AppRun) -> bool:
        """Not yet executed; or it could not be, and has not been waited for."""
        one = run.child
        return (
            run.phase == child.MAIN
            and one is not None
            and (one.report >= 0 or one.failure is not None or not one.executing)
        )

    def _apps(self) -> dict[str, dict[str, Any]]:
        return {run.app.name: run.to_json() for run in self.runs}

    def _tell_status(self, asked: Conversation, _: dict[str, Any]) -> None:
        """As it is now, whatever the disk says. In a file beside the answer, for it may be long."""
        file = os.memfd_create("status", os.MFD_CLOEXEC)
        try:
            os.write(file, smalljson.encode({"apps": self._apps()}).encode())
            asked.answer({}, [file])
        finally:
            os.close(file)
        asked.end()

    def _take_reader(self, asked: Conversation, _: dict[str, Any]) -> None:
        """A call-in that follows a log: it says so for as long as it does."""
        self._readers.append(asked)
        asked.on_end = lambda: self._readers.remove(asked)

    def _see_readers_off(self) -> None:
        """Who follows a log reads it to its end before the pod is taken down, and call-ins with it; bounded."""
        if self._readers and self.broken is None:
            over: list[bool] = []
            self.loop.at("readers", time.monotonic() + _LAST_READ, lambda: over.append(True))
            while self._readers and not over:
                self.loop.turn()
                self._reap()

    def _read(self, instance: Instance, fd: int) -> None:
        instance.drain(fd, 1)  # one read, then the others' turn
        if instance.log.changed:
            instance.log.changed = False
            self.changed = True

    def tell(self) -> None:
        """What has changed is in the status file before anybody is told of it."""
        if self.changed:
            self.changed = False
            self._write_status()

    def _write_status(self) -> None:
        value = {"version": statusfile.VERSION, "apps": self._apps(), "notes": self.notes}
        try:
            statusfile.write(value)
            self.unsaved = None
        except OSError as error:
            # It ends no pod: it is tried again after a while, and at the next change.
            self.unsaved = f"{statusfile.PATH} cannot be written: {error.strerror}"
            self.loop.at("status", time.monotonic() + _STATUS_PAUSE, self._write_status)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
            self.changed = True

    # --- children ----------------------------------------------------------------------------------------------

    def begin(self, run: AppRun) -> None:
        """A new execution of the app, on a clean root."""
        instance = run.new_instance(self.pod, -1)
        for fd in instance.streams:
            self.loop.watch(fd, lambda fd, _: self._read(instance, fd))
        handlers = run.app.pre_start is not None or run.app.post_stop is not None
        self._spawn(run, child.ROOT if handlers else child.MAIN, run.app.exec)

    def _spawn(self, run: AppRun, kind: str, argv: list[str]) -> None:
        instance = run.instance
        assert instance is not None
        run.phase = kind
        self.loop.cancel(run)
        if kind in (child.PRE_START, child.POST_STOP):
            self._bound_handler(run)
        attaching = None
        if kind == child.MAIN and (run.app.terminal is not None or run.app.stdin or run.app.stdin_open):
            attaching = self._attaching()
        try:
            if attaching is not None:
                attaching.prepare(run)
            run.child = child.spawn(self.pod, run.app, kind, argv, instance.files, run.tree)
        except OSError as error:
            one = child.Child(-1, -1, kind)
            one.failure = child.SETUP_FAILED, f"no process can be made for it: {error.strerror}"
            self._on_exit(run, one, child.SETUP_FAILED << 8)
            return
        if attaching is not None:
            attaching.started(run)
        self.loop.watch(run.child.report, lambda _fd, _events: self._on_report(run))
        self.changed = True

    def _bound_handler(self, run: AppRun) -> None:
        """From now on, the handler that runs has its time (H4); while the pod stops, no more than an app has."""
        bound = self.pod.handler_timeout
        if self._ends(run):
            bound = min(bound, self.pod.stop_timeout)
        self.loop.at(run, time.monotonic() + bound, lambda: self._too_long(run))

    def _on_report(self, run: AppRun) -> None:
        one = run.child
        if one is None or one.report < 0:
            return
        ended = one.read_report()
        for text in one.notes:
            self.note(text)
        one.notes.clear()
        if one.kind == child.ROOT and one.ready and run.instance is not None and run.instance.files.namespace < 0:
            try:
                path = f"/proc/{one.pid}/ns/mnt"
                run.instance.files.namespace = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                pass  # somebody was faster and killed it: that is seen when it is waited for
            _kill(one.pid, _signal.SIGKILL)
        if ended:
            self.loop.unwatch(one.report)
            one.close()
            if one.kind == child.MAIN and one.executing and one.failure is None:
                run.started()
                self.changed = True
                if run.waiting:
                    _changing().started(self, run)

    def _ends(self, run: AppRun) -> bool:
        """It is to end, with its pod or by itself."""
        return self.stopping or run.quitting

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
        self.loop.cancel(run)
        self.changed = True
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
                self.note(f"app {run.app.name}: its post-stop handler {_how(one, status)}")
            self._finish(run)

    def _not_started(self, run: AppRun, one: child.Child, status: int, what: str) -> None:
        """The app's main process never ran."""
        if self._ends(run) and one.failure is None:
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

    def _end_leftovers(self, run: AppRun, then: Callable[[], None], until: float | None = None) -> None:
        """What a process of the app has left running in its cgroup ends with it; ``then`` goes on once it has."""
        some = podgroups.end_all(run.tree)
        self._drain(run)
        now = time.monotonic()
        until = now + _DYING if until is None else until
        if some and now < until:
            self.loop.at(run, now + _LOOK_AGAIN, lambda: self._end_leftovers(run, then, until))
            return
        if some:
            self.hangs = f"app {run.app.name}: a process that it has left hangs in the kernel, and does not die"
            self.note(self.hangs)
        then()

    def _drain(self, run: AppRun) -> None:
        if run.instance is not None:
            for fd in run.instance.streams:
                run.instance.drain(fd, _LAST_WORDS)

    def _finish(self, run: AppRun) -> None:
        """An execution is over, once nothing runs of it."""
        self._end_leftovers(run, lambda: self._finished(run))

    def _finished(self, run: AppRun) -> None:
        self._close(run)
        pause = None if self._ends(run) else run.next_pause()
        if pause is not None:
            run.phase = WAITING
            self.loop.at(run, time.monotonic() + pause, lambda: self._again(run))
            if run.waiting:
                _changing().ended(self, run)
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
            self.loop.unwatch(fd)
        instance.close()
        self.changed = True

    def _ended(self, run: AppRun) -> None:
        """The app will not be started again."""
        run.phase = ENDED
        if run.waiting:
            _changing().ended(self, run)
        if self.pod.lifecycle == "any" and not self.stopping:
            self.stop()

    def stop(self) -> None:
        """Ask every app to end; those that have not by the deadline are killed (G7)."""
        if self.stopping:
            return
        self.stopping = True
        self.changed = True
        self.loop.at("stop", time.monotonic() + self.pod.stop_timeout, self._stop_is_over)
        for run in self.runs:
            self.ask_to_end(run)

    def ask_to_end(self, run: AppRun) -> None:
        """By its stop signal; before it runs, at once."""
        if run.phase == WAITING:
            self.loop.cancel(run)
            self.changed = True
            self._ended(run)
        elif run.phase == child.MAIN and run.child is not None:
            _kill(run.child.pid, run.app.stop_signal)
        elif run.phase in (child.ROOT, child.PRE_START) and run.child is not None:
            _kill(run.child.pid, _signal.SIGKILL)
        elif run.phase == child.POST_STOP and run.child is not None:
            self._bound_handler(run)

    def insist(self, run: AppRun) -> None:
        """Its time to end is over."""
        if run.phase == child.MAIN and run.child is not None:
            self._end_now(run)

    def _again(self, run: AppRun) -> None:
        run.restarts += 1
        self.begin(run)


def _changing() -> ModuleType:
    """Few pods change."""
    from kurma_stager_default.inside import changing

    return changing


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
