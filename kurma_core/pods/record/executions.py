"""Keeps earlier executions of a pod's apps: how each ended (exit code, reason), and its log.

A pod that is started again begins with an empty ``pod/``. The logs of earlier runs are moved to ``earlier/RUN/``,
and their results into ``state.json`` (``earlier``: by app, oldest first), for the last few runs.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING, Any

from kurma_core.errors import AppNotFoundError, KurmaError
from kurma_core.linux.beneath import remove_tree
from kurma_core.models.pod import AppEnd, AppExecution, AppStatus
from kurma_core.value import fields, replace

if TYPE_CHECKING:
    from kurma_core.pods.record.pod_store import PodDirectory
    from kurma_core.pods.record.state import PodState

Json = Any
#: Runs of a pod whose logs are kept besides the last one's.
KEPT_RUNS = 10


def keep(directory: PodDirectory) -> None:
    """Saves the logs and results of the last run; called by the owner before it starts the pod again.

    Repeatable: if the process dies in between, the next call completes it.
    """
    state = directory.read_state()
    run = state.run
    earlier = {name: list(found) for name, found in state.earlier.items()}
    for name, status in recorded_apps(state).items():
        numbered = number(state, status)
        found = [*numbered.earlier, *([_as_execution(numbered)] if _executed(numbered) else [])]
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
    from kurma_core.staging.stager_status import parse_apps

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


def forget(directory: PodDirectory, app: str) -> None:
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


def _opened(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def number(state: PodState, status: AppStatus) -> AppStatus:
    """The status with its executions counted from 1 over all runs of the pod, including those of earlier runs.

    :param status: as the stager reports it, with executions counted from 0 in this run.
    """
    before = state.earlier.get(status.name, ())
    base = before[-1].instance if before else 0
    run = state.run
    of_run = [replace(one, instance=base + one.instance + 1, run=run) for one in status.earlier]
    own = len(of_run) if status.instance is None else status.instance
    return replace(
        status,
        instance=None if status.instance is None and status.state == "created" else base + own + 1,
        run=run,
        earlier=(*before, *of_run),
    )


def find(pod: str, status: AppStatus, instance: int) -> AppExecution:
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


def log_directory(status: AppStatus, one: AppExecution) -> str:
    """The directory of its log, below the pod's directory."""
    return "pod/logs" if one.run == status.run else f"earlier/{one.run}"
