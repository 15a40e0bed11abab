"""Runs a command in a pod's app and attaches to its streams, by stage1's ``enter`` and ``attach`` entrypoints."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kurma_core.errors import StagerError
from kurma_core.json_text import loads
from kurma_stager_rkt import entrypoints, pod_files
from kurma_stager_rkt.pod_processes import pod_pid
from kurma_stager_rkt.records import app_statuses

if TYPE_CHECKING:
    from kurma_core.models.streams import Stdio
    from kurma_stager_rkt.records import Note

_NO_STDIN = "--no-stdin"
#: Options that an ``enter`` entrypoint lacks, and what the user can do instead.
_UNTOLD = {
    "user": ("--user", "it runs as the app's own user"),
    "group": ("--group", "it runs in the app's own group"),
    "environment": ("--env", "let the command set it: -- env NAME=VALUE COMMAND"),
    "workingDirectory": ("--workdir", "let the command change to it: -- sh -c 'cd PATH; exec COMMAND'"),
}
#: The exit code of an entrypoint that was killed because it did not end after its caller.
_KILLED = 137


def enter(
    start: entrypoints.Start, note: Note, place: str, app: str, document: Mapping[str, Any], stdio: Stdio
) -> int:
    """Runs a command as the app. :returns: its exit code.

    :param document: the command, in the format of a stager's ``run`` call-in.
    :raises StagerError: the command has options that the interface cannot pass, or cannot be run.
    """
    pid = pod_pid(place)
    if pid is None:
        raise StagerError("the pod has no process that could be entered")
    words = (f"--pid={pid}", f"--appname={app}", "--", *_command(document, place, app))
    with contextlib.ExitStack() as stack:
        cgroup = note.cgroup
        if stdio.terminal:
            # Processes that the command leaves at its terminal end with it.
            cgroup = f"{note.cgroup}/entered/{os.urandom(8).hex()}"
            stack.callback(stack.enter_context(entrypoints.home(cgroup)).kill)
        started = entrypoints.begin(
            start, note, place, "enter", words, fds={}, cgroup=cgroup, with_caller=True, stdio=stdio
        )
        code = entrypoints.finish(started, signals=stdio.signals)
    return _KILLED if code is None else code


def _command(document: Mapping[str, Any], place: str, app: str) -> tuple[str, ...]:
    """The command for the ``enter`` entrypoint, which runs it as the app is run.

    :raises StagerError: more than that is asked for.
    """
    found = _app(place, app)["app"]
    # A user brings groups, so that another user is refused with its own message.
    for key, (option, instead) in _UNTOLD.items():
        if document.get(key) and document[key] != found.get(key):
            raise StagerError(
                f"cannot enter app {app} with {option}: a stage1 enters an app as the app itself",
                hint=f"leave it out: {instead}" if key in ("user", "group") else instead,
            )
    return tuple(document.get("exec") or ("/bin/sh",))


def attach(
    start: entrypoints.Start, note: Note, place: str, app: str, options: tuple[str, ...], stdio: Stdio
) -> int:
    """Attaches to an app's streams, by stage1. :returns: the app's exit code, if it has ended meanwhile; else the
    entrypoint's.

    :param options: of :func:`kurma_core.pods.inside.enter_and_attach.attach`.
    :raises StagerError: the interface cannot pass an option, or the app cannot be attached to.
    """
    unknown = [option for option in options if option != _NO_STDIN]
    if unknown:
        raise StagerError(
            f"a stage1 attaches by keys of its own: it cannot be told of {unknown[0]}", hint="leave it out"
        )
    modes = pod_files.modes_of(_app(place, app))
    if pod_files.INTERACTIVE in modes.values():
        raise StagerError(
            f"app {app} reads the input of the command that runs its pod: no other command can attach to it",
            hint="run the pod in the background, by -d",
        )
    words = attach_arguments(app, modes, debug=note.debug, stdin=_NO_STDIN not in options)
    cgroup = f"{note.cgroup}/attached/{os.urandom(8).hex()}"
    with entrypoints.home(cgroup) as group:
        started = entrypoints.cross(
            start, note, place, "attach", words, fds={}, cgroup=cgroup, with_caller=True, stdio=stdio
        )
        code = entrypoints.finish(started, signals=stdio.signals)
        group.kill()  # processes that it has started end with its caller
    code = _KILLED if code is None else code
    status = app_statuses(place, alive=True, mutable=note.mutable).get(app)
    return status.exit_code if code == 0 and status is not None and status.exit_code is not None else code


def attach_arguments(app: str, modes: Mapping[str, str], *, debug: bool, stdin: bool) -> tuple[str, ...]:
    """The arguments of the ``attach`` entrypoint, for all streams, or for all but standard input.

    :param modes: the modes of the app's streams, from its annotations.
    """
    named = (f"--app={app}", *(["--debug"] if debug else []))
    if stdin:
        return ("--action=auto-attach", *named)
    terminal = pod_files.TTY in modes.values()
    wanted = {
        "tty-in": False,
        "tty-out": terminal,
        "stdin": False,
        "stdout": not terminal,
        "stderr": not terminal,
    }
    return ("--action=custom-attach", *named, *(f"--{key}={str(on).lower()}" for key, on in wanted.items()))


def _app(place: str, app: str) -> Mapping[str, Any]:
    """The app's entry of the pod's manifest."""
    with open(f"{place}/pod", "rb") as stream:
        return next(each for each in loads(stream.read(), own=True)["apps"] if each["name"] == app)
