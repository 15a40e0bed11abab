"""The stage1's supervisor of a pod: the default stager's supervisor, which reports to stage0 by files.

It runs in stage1's own root and the host's PID namespace, and holds the lock on the pod's directory.
"""

from __future__ import annotations

import gc
import os
import select
import sys
import time

from kurma_core.linux import process
from kurma_stager_default.inside import main as stager
from kurma_stager_default.inside import manifest, user_namespace
from kurma_stager_default.inside.app import privileges
from kurma_stager_default.inside.errors import complain
from kurma_stager_default.inside.pod import supervisor
from kurma_stager_default.inside.pod.app_lifecycle import Lifecycle
from kurma_stager_default.inside.streams.app_log import STDERR
from kurma_stager_default.stage1.output import Output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kurma_stager_default.inside.pod.app_run import AppRun, Instance

_LOCK = 3
_FAILED = 125
_STATUS = "/rkt/status"
#: Seconds to wait for the reader of the apps' output when the pod stops.
_PATIENCE = 2.0
#: Seconds between two checks of a terminal's mode.
_TURN = 0.01


class _Lifecycle(Lifecycle):
    """Reads output from apps only as fast as stage1's own output is read."""

    __slots__ = ()

    def _read(self, instance: Instance, fd: int) -> None:
        super()._read(instance, fd)
        output = self._supervisor.output(instance.streams.get(fd))  # type: ignore[attr-defined]
        if output.full and fd in instance.streams:
            self._loop.unwatch(fd)
            output.waiting.append(lambda: self._read_on(instance, fd))

    def _read_on(self, instance: Instance, fd: int) -> None:
        if fd in instance.streams:
            self._loop.watch(fd, lambda fd, _: self._read(instance, fd))


class Stage1Supervisor(supervisor.Supervisor):
    """A supervisor that reports to stage0. :attr:`first` is the pod's PID 1, :attr:`typist` the process that
    copies the caller's input to the app's terminal, if it has one."""

    LIFECYCLE = _Lifecycle
    first = 0
    debug = False
    typist: Typist | None = None
    #: an app that fails ends the pod
    failure_ends = True
    #: the exit code of the app that has ended it; 0: none has
    failed = 0

    def run(self) -> int:
        self._outputs = (Output(self.loop, 1), Output(self.loop, 2))
        self._told: set[str] = set()
        for output in self._outputs:
            output.held = self.typist is not None
        self.pod.shown = lambda stream, data: self.output(stream).put(data)
        code = super().run()
        self._write_out()
        if self.typist is not None:
            self.typist.end()
        return code

    def output(self, stream: bytes | None) -> Output:
        return self._outputs[stream == STDERR]

    def _announce(self) -> None:
        before = self._running
        super()._announce()
        if before >= 0 and self._running < 0:
            _say_ready()
            _write("ppid", str(self._init), _LOCK)
            _write("pid", str(self.first), _LOCK)
            if self.debug:
                for note in self.notes:
                    complain(f"stage1: {note}")
            if self.typist is not None:
                self.typist.begin(self)

    def app_ended(self) -> None:
        code = first_code([run for run in self.runs if run.over])
        if code and self.failure_ends and not self.stopping:
            self.failed = code
            self.stop()
        super().app_ended()

    def release_output(self) -> None:
        """Writes the held output: the caller's terminal is raw now, and shows it unchanged."""
        for output in self._outputs:
            output.release()

    def _write_status(self) -> None:
        super()._write_status()
        for run in self.runs:
            code = None if run.instance is None else run.instance.code
            if run.over and code is not None and run.app.name not in self._told:
                self._tell_why(run)
                try:
                    _write(f"{_STATUS}/{run.app.name}", str(code))
                except OSError as error:
                    self.note(f"{_STATUS}/{run.app.name}: {error.strerror}")  # a full disk ends no pod
                else:
                    self._told.add(run.app.name)

    def _tell_why(self, run: AppRun) -> None:
        """Prints the reason of an app's failure, which an exit code does not show. A reason that ends the pod is
        printed at the pod's end instead."""
        instance = run.instance
        if instance is not None and instance.message is not None and self.broken is None:
            line = f"stage1: app {run.app.name}: {instance.message}{self._newline}"
            self.output(STDERR).put(line.encode(errors="replace"))

    @property
    def _newline(self) -> str:
        """The end of a line: on a raw terminal, a line feed does not return the cursor."""
        return "\n" if self.typist is None else "\r\n"

    def _write_out(self) -> None:
        """Writes the rest of the output. A stopping pod waits for its reader for a limited time only."""
        until = time.monotonic() + _PATIENCE
        self.release_output()
        while not all(output.empty for output in self._outputs):
            if self.stopping and time.monotonic() > until:
                return
            if self.stopping:
                self.loop.at("output", until, lambda: None)
            self.loop.turn()


def first_code(runs: list[AppRun]) -> int:
    """The first of these apps' exit codes that is not 0; else 0."""
    codes = [run.instance.code for run in runs if run.instance is not None and run.instance.code]
    return codes[0] if codes else 0


class Typist:
    """The process that copies the caller's input to the app's terminal: the call-in ``attach`` without output,
    which the supervisor shows. It is forked before the pod's namespaces are made, so that no app sees it.
    """

    def __init__(self, app: str) -> None:
        go, self._go = os.pipe2(os.O_CLOEXEC)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                process.set_pdeathsig(15)
                os.close(self._go)
                os.close(_LOCK)
                if os.read(go, 1):
                    program = "/opt/stager/attach"
                    os.execve(program, [program, app, "--no-output", "--detach-keys", ""], {})  # noqa: S606
            finally:
                os._exit(_FAILED)
        os.close(go)
        self._pidfd = process.pidfd_open(self.pid)
        self._terminal = os.dup(0)  # the supervisor replaces its standard input later
        self._until = 0.0

    def begin(self, serving: Stage1Supervisor) -> None:
        """Starts the copying when the app's terminal exists. The end of the caller's terminal ends the pod."""
        os.write(self._go, b"g")
        serving.loop.watch(self._pidfd, lambda fd, _: self._left(serving, fd), select.POLLIN)
        self._until = time.monotonic() + _PATIENCE
        self._look(serving)

    def _look(self, serving: Stage1Supervisor) -> None:
        """Holds the output until the caller's terminal is raw: until then it would change line ends."""
        import termios

        now = time.monotonic()
        if termios.tcgetattr(self._terminal)[1] & termios.OPOST and now < self._until:
            serving.loop.at(self, now + _TURN, lambda: self._look(serving))
        else:
            serving.release_output()

    def _left(self, serving: Stage1Supervisor, fd: int) -> None:
        serving.loop.unwatch(fd)
        serving.release_output()
        serving.stop()

    def end(self) -> None:
        """Ends the process, which restores the caller's terminal."""
        os.close(self._go)
        try:
            process.pidfd_send_signal(self._pidfd, 15)
        except ProcessLookupError:
            return
        process.wait_pidfd(self._pidfd, _PATIENCE)


def _say_ready() -> None:
    """Makes the link that ``rkt status --wait-ready`` waits for."""
    try:  # noqa: SIM105 - contextlib costs every pod's start
        os.symlink("ready", "/rkt/supervisor-status")
    except FileExistsError:
        pass  # left by an earlier run


def _write(path: str, text: str, directory: int | None = None) -> None:
    """Writes a file by renaming, so that readers never see a part of it. :param directory: the file's
    directory."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(f"{path}.new", flags, 0o644, dir_fd=directory)
    try:
        os.write(fd, f"{text}\n".encode())
    finally:
        os.close(fd)
    os.rename(f"{path}.new", path, src_dir_fd=directory, dst_dir_fd=directory)


def main() -> int:
    gc.disable()
    try:
        process.close_others({0, 1, 2, _LOCK})
        os.set_inheritable(_LOCK, False)
        privileges.step_back()
        pod = manifest.load()
        typist = next((Typist(app.name) for app in pod.apps if app.terminal is not None), None)
        house = stager.House(user_namespace.find(), held=True)
        running = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

        def supervise(*given: Any) -> Stage1Supervisor:
            made = Stage1Supervisor(*given)
            made.first, made.typist = house.first, typist
            made.debug, made.failure_ends = "--debug" in sys.argv[1:], "--all" not in sys.argv[1:]
            return made

        code, serving = stager.serve(pod, house, None, supervise, running)
        said = stager.last_word(serving)
        if said is not None:
            complain(f"stage1: {said}")
        assert isinstance(serving, Stage1Supervisor)
        return _FAILED if code else serving.failed or first_code(serving.runs)
    except Exception as error:  # noqa: BLE001 - the user sees the last line as the reason
        complain(f"stage1: {stager.reason_of(error)}")
        return _FAILED
