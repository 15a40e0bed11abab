"""Runs the health check of an app once, and records the result."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING

from kurma_core.errors import Cancelled, HostError, KurmaError, PodEndedError, PodStateError, UsageError
from kurma_core.formats.timestamps import timestamp
from kurma_core.models.health import LONGEST_OUTPUT, STARTING, AppHealth, HealthResult
from kurma_core.models.pod import ENDED_STATES
from kurma_core.models.streams import Stdio
from kurma_core.pods.inside.enter_and_attach import Limit, check_contains, enter
from kurma_core.pods.record import health
from kurma_core.pods.record.pod_record import app_statuses, the_app
from kurma_core.pods.record.state import age
from kurma_core.pods.run.recovery import find_stager
from kurma_core.value import frozen

if TYPE_CHECKING:
    from kurma_core.models.health import HealthCheck
    from kurma_core.models.pod import AppStatus, PodRecord
    from kurma_core.pods.finder import PodFinder
    from kurma_core.pods.record.document import PodDocument
    from kurma_core.pods.record.pod_directory import PodDirectory
    from kurma_core.pods.services import Services

_PIECE = 1 << 16
_HINT = "give --health-cmd, --health-http or --health-tcp when the pod is made, or healthCheck in the pod file"
#: Seconds until a pod that has no stager is looked at again.
_LOOK_AGAIN = 0.2


@frozen
class Checked:
    """A check that was run.

    :param app: the app's name.
    :param health: with its result; None: the app has ended meanwhile, so that the result does not count.
    :param pause: seconds until the next check is due.
    """

    app: str
    check: HealthCheck
    result: HealthResult
    health: AppHealth | None
    pause: float


def run_check(finder: PodFinder, directory: PodDirectory, app: str | None) -> Checked:
    """Runs the health check of an app, and records its result.

    :param app: None: the pod's only app that has a health check.
    :raises UsageError: it has no health check.
    :raises AppNotFoundError: no such app, or several and none named.
    :raises StagerError: the pod's stager cannot end a command with all that it has started, or a request cannot be
        sent from the pod's network.
    :raises PodStateError: the pod or the app does not run. :raises PodEndedError: it has ended meanwhile.
    :raises Cancelled: the operation of this thread was cancelled; the check is ended.
    """
    record = finder.read(directory)
    document = directory.read_document()
    checks = document.health_checks
    if app is None and len(checks) == 1:
        (app,) = checks
    status = the_app(record, app)
    check = checks.get(status.name)
    if check is None:
        raise UsageError(
            f"app {status.name} of pod {record.name} has no health check",
            hint=_HINT,
        )
    if record.state != "running" or status.state != "running":
        state = record.state if record.state != "running" else status.state
        what = f"pod {record.name}" if record.state != "running" else f"app {status.name} of pod {record.name}"
        raise PodStateError(f"cannot check the health of {what}: it is {state}", pod=record.uuid)
    if check.command is not None:
        check_contains(finder.services, record)
    starting = in_start_period(status, check)
    result = _result(finder.services, record, status.name, check)
    found = _record(finder, directory, status, check, result, starting)
    return Checked(status.name, check, result, found, _pause(status, check, found or AppHealth()))


def first_pause(directory: PodDirectory, status: AppStatus, check: HealthCheck) -> float:
    """Seconds until an app is checked by a process that has not checked it before.

    :param status: of its present execution, which another process may have checked.
    """
    known = health.read(directory).get(status.name)
    if known is None or known.instance != status.instance or not known.health.results:
        pause, passed = _pause(status, check, AppHealth()), age(status.started_at)
    else:
        pause, passed = _pause(status, check, known.health), age(known.health.results[-1].finished_at)
    # A clock that was set back must not delay it.
    return max(0.0, min(pause, pause - passed))


def _pause(status: AppStatus, check: HealthCheck, found: AppHealth) -> float:
    starting = found.status == STARTING and in_start_period(status, check)
    return (check.start_interval if starting else check.interval) or 0.0


def wait_for(finder: PodFinder, reference: str, word: str) -> PodRecord:
    """Waits until a pod has that health.

    :raises UsageError: no app of it has a health check.
    :raises PodStateError: it ends before. :raises PodNotFoundError: it was removed.
    :raises Cancelled: the operation of this thread was cancelled.
    """
    from kurma_core.cancellation import CancellationFd, wait_readable
    from kurma_core.linux.inotify import SharedWatch

    directory = finder.find(reference)
    watch = SharedWatch(directory.path)
    try:
        with CancellationFd() as cancelled:
            while True:
                record = finder.read(directory)
                if record.health == word:
                    return record
                if not directory.read_document().health_checks:
                    raise UsageError(f"no app of pod {record.name} has a health check", hint=_HINT)
                if record.state in (*ENDED_STATES, "prepared"):
                    raise PodStateError(
                        f"pod {record.name} is {record.state}, and cannot become {word}", pod=record.uuid
                    )
                stager = find_stager(finder.services, directory)
                try:
                    wait_readable(_LOOK_AGAIN if stager is None else None, watch, stager, cancelled)
                finally:
                    if stager is not None:
                        stager.close()
                watch.drain()
                finder.recover(directory)
    finally:
        watch.close()


def in_start_period(status: AppStatus, check: HealthCheck) -> bool:
    """Whether failures do not count yet. A clock that is set back ends the period."""
    return 0 <= age(status.started_at) < (check.start_period or 0)


def _result(services: Services, record: PodRecord, app: str, check: HealthCheck) -> HealthResult:
    begun, code, problem = timestamp(), None, ""
    if check.command is None:
        from kurma_core.pods.inside.network_checks import check_app  # few checks need it

        passed, text = check_app(services, record, check)
        code = 0 if passed else 1
        return HealthResult(
            started_at=begun, finished_at=timestamp(), exit_code=code, output=text[:LONGEST_OUTPUT]
        )
    with _Output() as output:
        null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        try:
            stdio = Stdio(null, output.end, output.end, relayed=True)
            code = enter(services, record, app, {"exec": list(check.command or ())}, stdio, Limit(check.timeout))
        except (Cancelled, PodStateError, PodEndedError):
            raise
        except KurmaError as error:  # it was not in time, or cannot be executed
            problem = error.message
        finally:
            os.close(null)
        text = output.text()
    if problem:
        text = f"{problem}\n{text}"[:LONGEST_OUTPUT]
    return HealthResult(started_at=begun, finished_at=timestamp(), exit_code=code, output=text)


def _record(
    finder: PodFinder,
    directory: PodDirectory,
    status: AppStatus,
    check: HealthCheck,
    result: HealthResult,
    starting: bool,
) -> AppHealth | None:
    """Adds the result to the record, and tells of a change of the app's health.

    :param status: as it was before the check.
    """
    app = status.name
    try:
        with directory.op_lock():
            document = directory.read_document()
            if not _same(directory, document, status):
                return None
            known = health.read(directory)
            before = known.get(app)
            old = AppHealth() if before is None or before.instance != status.instance else before.health
            new = old.after(result, check, starting=starting)
            if new.status != old.status:
                # Told before it is recorded: if this process dies in between, the next check tells it again.
                detail = {"instance": status.instance, "failingStreak": new.failing_streak}
                finder.events.tell_app(new.status, document, app, detail)
            kept = {name: one for name, one in known.items() if name in document.app_names}
            health.write(directory, {**kept, app: health.HealthRecord(status.instance or 1, new)})
            return new
    except OSError as error:
        raise HostError(
            f"cannot record the health of app {app}: {os.strerror(error.errno or 0)}",
            errno=error.errno,
            path=directory.file(health.FILE),
        ) from None


def _same(directory: PodDirectory, document: PodDocument, status: AppStatus) -> bool:
    """Whether the execution of the app that was checked still runs."""
    state = directory.read_state()
    if state.state != "running":
        return False
    now = {one.name: one for one in app_statuses(directory, document, state, None, None)}.get(status.name)
    if now is None or now.instance is None:
        return True  # without a status file, only the stager knows
    # An app that was removed and added again counts its executions anew.
    checked = now.instance == status.instance and now.started_at == status.started_at
    return checked and now.state == "running"


class _Output:
    """A pipe for the output of a check, and the thread that reads it: the beginning is kept."""

    def __init__(self) -> None:
        self._read, self.end = os.pipe2(os.O_CLOEXEC)
        try:
            self._over, self._stop = os.pipe2(os.O_CLOEXEC)
        except OSError:
            os.close(self._read)
            os.close(self.end)
            raise
        self._kept = bytearray()
        self._thread = threading.Thread(target=self._run, name="health-output", daemon=True)

    def __enter__(self) -> _Output:
        try:
            self._thread.start()
        except RuntimeError:
            self._close()
            raise HostError("cannot check the health of an app: no thread can be started") from None
        return self

    def text(self) -> str:
        """The first bytes of the output until now: a process that the check has left behind may hold the pipe."""
        self._finish()
        return self._kept[:LONGEST_OUTPUT].decode(errors="replace")

    def __exit__(self, *_: object) -> None:
        self._finish()
        self._close()

    def _finish(self) -> None:
        if self._stop >= 0:
            os.close(self._stop)
            self._stop = -1
            self._thread.join()

    def _close(self) -> None:
        for fd in (self._read, self.end, self._over, self._stop):
            if fd >= 0:
                os.close(fd)

    def _run(self) -> None:
        import select

        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        poll.register(self._over, select.POLLHUP)
        os.set_blocking(self._read, False)
        while True:
            ready = [fd for fd, _ in poll.poll()]
            if self._read in ready:
                with contextlib.suppress(BlockingIOError):
                    data = os.read(self._read, _PIECE)
                    self._kept += data[: max(0, LONGEST_OUTPUT - len(self._kept))]
                    continue
            if self._over in ready:
                return
