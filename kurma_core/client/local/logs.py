"""Reads logs of pods in this process: from their files, or by the ``logs`` call-in of a stager that keeps none."""

from __future__ import annotations

import os

from kurma_core.errors import AppNotFoundError, KurmaError, PodNotFoundError, StagerError, UsageError
from kurma_core.value import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kurma_core.hookspecs.stager import RunningStagerHooks, StagerHooks
    from kurma_core.models.pod import PodRecord
    from kurma_core.models.streams import LogText
    from kurma_core.pods.log_places import OutsideLog
    from kurma_core.pods.manager import PodManager

_CHUNK = 1 << 16


@frozen
class LogOptions:
    """The part of a pod's output that is read.

    :param follow: also read output that is written later.
    :param tail: only the last so many lines of all apps together, before new output is followed.
    :param since: nanoseconds since the epoch.
    :param stream: ``stdout`` or ``stderr``.
    """

    follow: bool = False
    tail: int | None = None
    since: int | None = None
    stream: str | None = None


class PodLogs:
    """Reads the output of pods.

    :param note: reports one line to the user.
    """

    def __init__(self, pods: PodManager, note: Callable[[str], None]) -> None:
        self._pods = pods
        self._note = note

    def read(
        self,
        pod: str,
        app: str | None,
        instance: int | None,
        options: LogOptions,
        idle: Callable[[], None] = lambda: None,
    ) -> Iterator[LogText]:
        """The output of the apps.

        :param app: only of that app.
        :param instance: only that execution of the app; -1: the one before the last.
        :param idle: called before each wait.
        :raises KurmaError: raised at once: there is no such pod, app or execution.
        """
        record = self._pods.finder.pod(pod)
        if instance is None:
            apps, directory = self.files(record, app), None
        else:
            apps, directory = self._file_of_execution(record, app, instance)
        return self._read(record, app, apps, directory, options, idle)

    def of_failed_start(self, pod: str) -> Iterator[LogText]:
        """The output of a pod that has failed to start, such as that of pre-start handlers."""
        from kurma_core.pods.inside.logs import LogReader

        try:
            record = self._pods.finder.pod(pod)
            path = self._pods.services.store.directory(record.uuid).path
            with LogReader(path, self.files(record)) as reader:
                if reader.kept:  # otherwise it is the stager's own output, which the error contains
                    yield from reader.rest()
        except KurmaError:
            return  # the pod was removed, or its logs cannot be read

    @staticmethod
    def files(record: PodRecord, app: str | None = None) -> list[tuple[str, str | OutsideLog]]:
        """The present log of each app that has one. :raises AppNotFoundError: the pod has no such app."""
        from kurma_core.pods.log_places import outside_logs

        if app is not None:
            from kurma_core.pods.record.pod_record import the_app

            the_app(record, app)
        outside = outside_logs(record.manifest)
        found: list[tuple[str, str | OutsideLog]] = []
        for each in record.apps:
            log = outside.get(each.name, each.log or f"{each.name}.log")
            if app in (None, each.name) and log is not None:
                found.append((each.name, log))
        return found

    @staticmethod
    def _file_of_execution(
        record: PodRecord, app: str | None, instance: int
    ) -> tuple[list[tuple[str, str | OutsideLog]], str]:
        """The log of one execution of an app, and the directory that it is in."""
        from kurma_core.pods.log_places import outside_logs
        from kurma_core.pods.record.pod_record import execution_logs, find_execution, the_app

        status = the_app(record, app)
        if status.name in outside_logs(record.manifest):
            raise UsageError(
                f"app {status.name} of pod {record.name} has one log for all its executions, or none",
                hint="leave the execution out",
            )
        found = find_execution(record.name, status, instance)
        return [(status.name, found.log or f"{status.name}.log")], execution_logs(status, found)

    def _read(
        self,
        record: PodRecord,
        app: str | None,
        apps: list[tuple[str, str | OutsideLog]],
        directory: str | None,
        options: LogOptions,
        idle: Callable[[], None],
    ) -> Iterator[LogText]:
        """:param directory: of the requested execution; None: of all executions."""
        from kurma_core.formats import cri_log
        from kurma_core.models.streams import LogText
        from kurma_core.pods.inside.logs import LogReader
        from kurma_core.pods.run import recovery
        from kurma_core.staging.callin import has_call_in

        wanted = cri_log.Filter(options.since, options.stream)

        def then(found: Iterator[LogText]) -> Iterator[LogText]:
            return filter(wanted, found)

        def first(found: Iterator[LogText]) -> Iterator[LogText]:
            return cri_log.tail(then(found), options.tail, LogText)

        pod = self._pods.services.store.directory(record.uuid)
        ongoing = directory in (None, "pod/logs")
        stager = recovery.find_stager(self._pods.services, pod) if ongoing else None
        try:
            with LogReader(pod.path, apps, directory, newcomers=app is None) as reader:
                from_stager = directory is None and not reader.kept and record.state != "starting"
                if from_stager and stager is not None and has_call_in(stager, "logs"):
                    yield from self._from_stager(record, app, stager, options, idle)
                elif stager is None or not options.follow:
                    yield from first(reader.rest())
                else:
                    yield from reader.follow(stager.fileno(), first, then, idle)
            if directory is None:
                self._tell_lost(record.uuid, app)
        finally:
            if stager is not None:
                stager.close()

    def _tell_lost(self, uuid: str, app: str | None) -> None:
        """Warns of output that was lost while a disk was full."""
        try:
            apps = self._pods.finder.pod(uuid).apps
        except PodNotFoundError:
            return  # an ephemeral pod that was followed to its end
        for each in apps:
            if each.lost and app in (None, each.name):
                self._note(each.lost)

    def _from_stager(
        self,
        record: PodRecord,
        app: str | None,
        stager: RunningStagerHooks,
        options: LogOptions,
        idle: Callable[[], None],
    ) -> Iterator[LogText]:
        """Logs of a pod whose stager writes no log files: the output of its ``logs`` call-in, app by app."""
        names = [name for name, _ in self.files(record, app)]
        if options.follow and len(names) > 1:
            raise AppNotFoundError(
                f"the stager of pod {record.name} can show the log of one app only",
                hint="name one of " + ", ".join(names),
            )
        directory = self._pods.services.store.directory(record.uuid)
        driver, path = self._pods.finder.driver(directory), directory.path
        for name in names:
            words = _arguments(
                name, follow=options.follow, tail=options.tail, since=options.since, stream=options.stream
            )
            yield from _called_logs(driver, path, stager, words, idle)


def _arguments(
    app: str,
    *,
    follow: bool = False,
    tail: int | None = None,
    since: int | None = None,
    stream: str | None = None,
) -> tuple[str, ...]:
    """Arguments of the call-in. :param since: nanoseconds since the epoch."""
    from kurma_core.formats.timestamps import stamp

    words = [app]
    if follow:
        words.append("--follow")
    if tail is not None:
        words += ["--tail", str(tail)]
    if since is not None:
        words += ["--since", stamp(max(0, since)).decode()]
    if stream is not None:
        words += ["--stream", stream]
    return tuple(words)


def _called_logs(
    driver: StagerHooks,
    directory: str,
    stager: RunningStagerHooks,
    words: tuple[str, ...],
    idle: Callable[[], None],
) -> Iterator[LogText]:
    """The output of the call-in as it is printed: without times, and all as standard output.

    :param words: see :func:`_arguments`.
    :param idle: called before each wait.
    :raises StagerError: the call-in fails, or the stager has none.
    """
    from kurma_core.models.streams import LogText

    call = _Call(driver, directory, stager, words)
    try:
        while data := call.read(idle):
            whole, newline, rest = data.rpartition(b"\n")
            if newline:
                yield LogText(words[0], "", "stdout", False, whole)
            if rest:
                yield LogText(words[0], "", "stdout", True, rest)
        call.check()
    finally:
        call.close()


class _Call:
    """Runs the call-in and waits for its end in a thread: it may print for as long as the pod runs."""

    def __init__(
        self, driver: StagerHooks, directory: str, stager: RunningStagerHooks, words: tuple[str, ...]
    ) -> None:
        import threading

        self._said = os.memfd_create("errors", os.MFD_CLOEXEC)
        self._null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self.output, self._out = os.pipe2(os.O_CLOEXEC)
        self._ended, self._end = os.pipe2(os.O_CLOEXEC)
        self._code = 0
        self._error: KurmaError | None = None
        self._thread = threading.Thread(target=self._run, args=(driver, directory, stager, words), daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            for fd in (self._said, self._null, self.output, self._out, self._ended, self._end):
                os.close(fd)
            raise

    def _run(
        self, driver: StagerHooks, directory: str, stager: RunningStagerHooks, words: tuple[str, ...]
    ) -> None:
        from kurma_core.models.streams import Stdio

        try:
            stdio = Stdio(self._null, self._out, self._said, relayed=True)
            self._code = driver.call(directory, stager, "logs", words, stdio, None)
        except KurmaError as error:
            self._error = error
        finally:
            os.close(self._out)
            os.close(self._end)

    def read(self, idle: Callable[[], None]) -> bytes:
        """A piece of its output; empty once the call-in itself has ended, since programs that it started may keep
        the pipe open."""
        import select

        from kurma_core.cancellation import CancellationFd

        poll = select.poll()
        poll.register(self.output, select.POLLIN)
        poll.register(self._ended, select.POLLHUP)
        with CancellationFd() as cancelled:
            poll.register(cancelled, select.POLLIN)
            idle()
            ready = [fd for fd, _ in poll.poll()]
        return os.read(self.output, _CHUNK) if self.output in ready else b""

    def check(self) -> None:
        """Called after the end of its output. :raises StagerError: it failed."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        if self._code:
            said = os.pread(self._said, 4096, 0).decode(errors="replace").strip().splitlines()
            why = f": {said[-1]}" if said else ""
            raise StagerError(f"the stager's call-in 'logs' ended with status {self._code}{why}")

    def close(self) -> None:
        # A call-in that still prints gets EPIPE; one that waits ends when this process does.
        os.close(self.output)
        os.close(self._ended)
        if not self._thread.is_alive():
            os.close(self._null)
            os.close(self._said)
