"""Builds the record of a pod (state, exit code, apps) from its files and its stager; decides how its end is
recorded; keeps earlier executions of its apps.

A pod that is started again begins with an empty ``pod/``. The logs of earlier runs are moved to ``earlier/RUN/``,
and the results of their apps (exit code, reason) into ``state.json`` (``earlier``: by app, oldest first), for the
last few runs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kurma_core.errors import AppNotFoundError, HostError, KurmaError, PodDamagedError, PodNotFoundError
from kurma_core.linux.beneath import remove_tree
from kurma_core.models.pod import ENDED_STATES, AppEnd, AppExecution, AppStatus, PodRecord
from kurma_core.pods.record import health
from kurma_core.pods.record.document import PodDocument
from kurma_core.pods.record.state import STARTED_STATES, PodEnd, numbered
from kurma_core.pods.run import pod_metadata, pod_restarts
from kurma_core.staging.stager_status import exit_code, parse_apps, read_status_file
from kurma_core.value import fields, replace

if TYPE_CHECKING:
    from kurma_core.hookspecs.stager import RunningStagerHooks, StagerHooks
    from kurma_core.pods.record.pod_directory import PodDirectory
    from kurma_core.pods.record.state import PodState
    from kurma_core.pods.services import Events


def pod_record(directory: PodDirectory) -> PodRecord:
    """The record of a pod, by the files on disk alone."""
    return record_of(directory, *directory.read_records())


def record_of(
    directory: PodDirectory,
    document: PodDocument,
    state: PodState,
    stager: StagerHooks | None = None,
    running: RunningStagerHooks | None = None,
) -> PodRecord:
    """The record of a pod whose records the caller has read.

    :param stager: is asked for the status of the apps; None: only the files on disk are read.
    """
    apps = health.with_health(directory, document, app_statuses(directory, document, state, stager, running))
    live = state.live
    return PodRecord(
        uuid=document.uuid,
        name=document.name,
        state=state.state,
        reason=state.reason,
        exit_code=state.exit_code,
        created_at=document.created_at,
        started_at=state.started_at,
        finished_at=state.finished_at,
        foreground=document.foreground,
        owner=state.owner if live and directory.owned() else None,
        stager=document.stager,
        stager_pid=state.stager.get("pid") if live and state.stager else None,
        stager_version=state.stager_version if live else None,
        renderer=document.renderer,
        network_namespace=document.network_namespace if live else None,
        userns=document.ids,
        cgroup=document.cgroup,
        apps=apps,
        images=document.images,
        image_names=document.image_names,
        labels=document.manifest.user_labels,
        attachments=state.attachments or document.attachments,
        isolators=document.isolators,
        notes=(*document.notes, *stager_notes(directory, state), *(pod_metadata.notes_of(state) if live else ())),
        manifest=document.manifest.to_json(),
        hostname=document.hostname,
        dns=document.dns,
        dns_exact=document.dns_exact,
        hosts=document.hosts,
        metadata=pod_metadata.address_of(directory, state) if live else None,
        restart=pod_restarts.told(document, state),
        manager=document.manager,
        display_name=document.display_name,
        health=health.worst(apps) if state.state == "running" else None,
    )


def app_statuses(
    directory: PodDirectory,
    document: PodDocument,
    state: PodState,
    stager: StagerHooks | None,
    running: RunningStagerHooks | None,
) -> tuple[AppStatus, ...]:
    """The status of each app of the manifest, in its order; an app of which nothing is known has only its name."""
    made = {name: document.added_at.get(name, document.created_at) for name in document.app_names}
    if state.state in ("preparing", "prepared"):
        return tuple(AppStatus(name, created_at=at) for name, at in made.items())
    told: Mapping[str, AppStatus] = {}
    try:
        if state.apps is not None:
            told = recorded_apps(state)
        elif stager is not None:
            # No call-in while the stager still sets the pod up: on cgroup v1, a cgroup that has children, such as
            # a call-in's, rejects some settings.
            told = stager.status(directory.path, None if state.state == "starting" else running)
        else:
            told = (read_status_file(directory.path) or ({}, ()))[0]
    except KurmaError:
        # A stager whose answer cannot be parsed, or that ends meanwhile, must not hide the pod from listings.
        told = {}
    statuses = [
        replace(numbered(state, told.get(name, AppStatus(name))), created_at=at) for name, at in made.items()
    ]
    if state.state in ENDED_STATES:
        # For a pod that did not come up, the stager's last status is all that is known.
        how = "killed" if state.state == "errored" else None
        statuses = [_dated(_over(status, how), state) for status in statuses]
    return tuple(statuses)


def stager_notes(directory: PodDirectory, state: PodState) -> tuple[str, ...]:
    """The stager's notes on how it runs the pod: of a running pod the present ones, else those on record."""
    if state.state not in ("running", "stopping"):
        return state.notes
    try:
        return (read_status_file(directory.path) or ({}, ()))[1]
    except KurmaError:
        return ()  # cannot be parsed; ignored, as for the apps


def conclusion(
    directory: PodDirectory, document: PodDocument, stager: StagerHooks | None, status: int | None, output: str
) -> PodEnd:
    """Decides what to record of a pod whose stager has ended: state, reason, exit code, notes, apps.

    :param status: the stager's exit status; None: unknown.
    :param output: the last lines of its output.
    """
    notes: tuple[str, ...] = ()
    apps: Mapping[str, AppStatus] = {}
    problem: str | None = None
    found = None
    try:
        found = read_status_file(directory.path)
        if found is not None:
            apps, notes = found
        elif stager is not None:
            apps = stager.status(directory.path, None)
    except KurmaError as error:
        problem = error.message
    code = exit_code(apps, document.app_names)
    speaks = stager is not None and stager.features().ends_with_exit_code
    # Apps that were ever started. It may be none, in a pod that was stopped before.
    begun = [apps[name] for name in document.app_names if name in apps and apps[name].state != "created"]
    all_ended = all(app.exited for app in begun)
    if not begun:
        all_ended = found is not None and _stopped(directory)
    if status is None and not all_ended and forced(directory):
        status = 128 + signal.SIGKILL
    # Only status.json covers the pod's whole life: in a call-in's answer, which may be out of date, a running app
    # proves nothing.
    alive = [app.name for app in begun if not app.exited] if found is not None else []
    if status == 0 and (problem or alive):
        state = "errored"
        reason = problem or f"the stager is wrong: it ended, and its status.json says that app {alive[0]} runs"
    elif status == 0 or (all_ended and (speaks or status is None)) or (speaks and status and _stopped(directory)):
        state, reason = "stopped", None
    elif status is None:
        state, reason = "errored", "the stager ended with an unknown status"
    else:
        state, reason = "errored", f"the stager ended with status {status}" + (f": {output}" if output else "")
    if speaks and status is not None:
        code = status
        if len(begun) == 1 and begun[0].exited and begun[0].exit_code is None:
            apps = {**apps, begun[0].name: replace(begun[0], exit_code=code)}
    if state == "errored" and not code:
        code = status or 125
    # Nothing tells how an app ended that ran when the host lost its power.
    how = None if state != "errored" else "unknown" if status is None else "killed"
    return PodEnd(
        state,
        reason or problem,
        code,
        notes,
        # A copy, so that the apps' ends stay known when the stager's files are removed.
        {name: _over(apps[name], how).to_json() for name in document.app_names if name in apps},
    )


def _over(app: AppStatus, how: str | None) -> AppStatus:
    """The last status of an app in a pod whose stager has ended: the app cannot run any more.

    :param how: how an app ended whose end the stager has not reported.
    """
    if app.exited or app.state == "created":
        return replace(app, pid=None)
    if app.restarting:
        return replace(app, pid=None, exited=True, restarting=False)
    return replace(app, pid=None, exited=True, reason=how)


def _dated(app: AppStatus, state: PodState) -> AppStatus:
    """Gives an app whose end the stager has not reported the time at which its pod's end was recorded."""
    missing = app.started_at is not None and app.finished_at is None
    return replace(app, finished_at=state.finished_at) if missing else app


def _stopped(directory: PodDirectory) -> bool:
    """Whether a stop was requested: the cause is recorded before the stager is asked."""
    try:
        state = directory.read_state()
    except KurmaError:
        return False
    return bool(state.state == "stopping" or state.cause)


def by_force(directory: PodDirectory) -> None:
    """Records that the stager is about to be killed, before it is: the process that kills it may die before it can
    record the end."""
    # A full disk or a removed record must not keep the pod running.
    with contextlib.suppress(HostError, PodNotFoundError, PodDamagedError):
        directory.change_state(only_in=STARTED_STATES, forced=True)


def request_stop(
    directory: PodDirectory,
    document: PodDocument,
    driver: StagerHooks,
    stager: RunningStagerHooks,
    events: Events,
    *,
    force: bool,
) -> None:
    """Asks the stager to end the pod, and records the pod as stopping. Does not wait.

    :param force: kill it.
    """
    if force:
        by_force(directory)
    driver.stop(directory.path, stager, force=force)
    # A full disk or a removed record must not keep the pod running; its owner may have recorded its end already.
    with contextlib.suppress(HostError, PodNotFoundError, PodDamagedError):
        if directory.move_to("stopping", only_in=("starting", "running")):
            events.tell("stopping", document)


def forced(directory: PodDirectory) -> bool:
    """Whether :func:`by_force` was recorded."""
    try:
        return bool(directory.read_state().forced)
    except KurmaError:
        return False


def the_app(record: PodRecord, app: str | None) -> AppStatus:
    """The pod's app of that name; None: its only app.

    :raises AppNotFoundError: there is none, or there are several.
    """
    names = ", ".join(each.name for each in record.apps)
    for each in record.apps:
        if app == each.name or (app is None and len(record.apps) == 1):
            return each
    if app is not None:
        raise AppNotFoundError(f"pod {record.name} has no app {app}", hint=f"its apps: {names or 'none'}")
    if not record.apps:
        raise AppNotFoundError(f"pod {record.name} has no apps", hint=f"kurma app add {record.name} IMAGE")
    raise AppNotFoundError(f"pod {record.name} has several apps", hint=f"name one of {names}")


#: Runs of a pod whose logs are kept besides the last one's.
KEPT_RUNS = 10


def keep_executions(directory: PodDirectory) -> None:
    """Saves the logs and results of the last run; called by the owner before it starts the pod again.

    Repeatable: if the process dies in between, the next call completes it.
    """
    state = directory.read_state()
    run = state.run
    earlier = {name: list(found) for name, found in state.earlier.items()}
    for name, status in recorded_apps(state).items():
        one = numbered(state, status)
        found = [*one.earlier, *([_as_execution(one)] if _executed(one) else [])]
        earlier[name] = [*(one for one in earlier.get(name, []) if one.run < run), *_of_run(found, run)]
    _put_aside(directory, run)
    oldest = run - KEPT_RUNS + 1
    kept = {name: [one for one in found if one.run >= oldest] for name, found in earlier.items()}
    directory.change_state(
        run=run + 1,
        apps=None,
        earlier={name: tuple(found) for name, found in kept.items() if found},
    )
    _drop_runs(directory, oldest)


def recorded_apps(state: PodState) -> dict[str, AppStatus]:
    """The apps of the last run, from the pod's record; empty if that cannot be read."""
    try:
        return parse_apps(state.apps or {}, "its record")
    except KurmaError:
        return {}


def _of_run(found: list[AppExecution], run: int) -> list[AppExecution]:
    return [one for one in found if one.run == run]


def _executed(status: AppStatus) -> bool:
    return status.started_at is not None or status.finished_at is not None


def _as_execution(status: AppStatus) -> AppExecution:
    end = {each.name: getattr(status, each.name) for each in fields(AppEnd)}
    return AppExecution(status.instance or 1, status.run, **end)


def _put_aside(directory: PodDirectory, run: int) -> None:
    """Moves the logs of the run to ``earlier/``. If the stager made something else than a directory there, it is
    left, and removed with ``pod/``."""
    logs = directory.file("pod/logs")
    try:
        if not stat.S_ISDIR(os.lstat(logs).st_mode):
            return
        os.makedirs(directory.file("earlier"), mode=0o700, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.rename(logs, directory.file(f"earlier/{run}"))
    except (FileNotFoundError, NotADirectoryError):
        return


def _drop_runs(directory: PodDirectory, oldest: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        fd = _opened(directory.file("earlier"))
        try:
            for name in os.listdir(fd):
                if not name.isdecimal() or int(name) < oldest:
                    remove_tree(fd, name)
        finally:
            os.close(fd)


def forget_executions(directory: PodDirectory, app: str) -> None:
    """Removes the executions and logs of an app that is removed from the pod. Repeatable."""
    state = directory.read_state()
    for one in state.earlier.get(app, ()):
        with contextlib.suppress(OSError):
            fd = _opened(directory.file(f"earlier/{one.run}"))
            try:
                for name in os.listdir(fd):
                    if one.log is not None and (name == one.log or name.startswith(f"{one.log}.")):
                        os.unlink(name, dir_fd=fd)
            finally:
                os.close(fd)
    if app in state.earlier:
        directory.change_state(earlier={name: found for name, found in state.earlier.items() if name != app})


def forget_last_run(directory: PodDirectory, app: str) -> None:
    """Removes the logs of an app from a pod that has ended. Repeatable."""
    status = recorded_apps(directory.read_state()).get(app)
    logs = [] if status is None else [one.log for one in (*status.earlier, status) if one.log is not None]
    with contextlib.suppress(OSError):
        fd = _opened(directory.file("pod/logs"))
        try:
            for name in os.listdir(fd):
                if name in logs or name.startswith(tuple(f"{log}." for log in logs)):
                    os.unlink(name, dir_fd=fd)
        finally:
            os.close(fd)


def _opened(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def find_execution(pod: str, status: AppStatus, instance: int) -> AppExecution:
    """An execution of the app, by its number.

    :param pod: its name.
    :param instance: -1: the one before the last.
    :raises AppNotFoundError: nothing is kept of it.
    """
    if instance == -1 and status.earlier:
        return status.earlier[-1]
    known = [*status.earlier, *([_as_execution(status)] if status.instance is not None else [])]
    for one in known:
        if one.instance == instance:
            return one
    what = "any earlier execution" if instance == -1 else f"execution {instance}"
    kept = ", ".join(str(one.instance) for one in known)
    raise AppNotFoundError(
        f"nothing is kept of {what} of app {status.name} of pod {pod}",
        hint=f"kept: {kept}" if kept else "it was never executed",
    )


def execution_logs(status: AppStatus, one: AppExecution) -> str:
    """The directory of its log, below the pod's directory."""
    return "pod/logs" if one.run == status.run else f"earlier/{one.run}"
