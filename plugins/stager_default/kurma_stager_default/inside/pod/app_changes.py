"""Adds, starts, stops and removes apps of a running pod.

The call-ins ``app-add``, ``app-start`` and the like send requests on the control socket. A request
is answered when the app runs or has ended; no function here blocks. Imported at the first request.
"""

from __future__ import annotations

import os
import time

from kurma_core.formats import small_json
from kurma_core.linux import process
from kurma_core.linux.files import replace_file
from kurma_stager_default.inside import manifest
from kurma_stager_default.inside.app import privileges
from kurma_stager_default.inside.errors import SetupError
from kurma_stager_default.inside.pod import device_cgroup
from kurma_stager_default.inside.pod.app_run import ADDED, ENDED, AppRun
from kurma_stager_default.inside.pod.control_socket import DOCUMENT, Refusal
from kurma_stager_default.inside.streams.app_log import AppLog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kurma_stager_default.inside.pod.control_socket import Conversation
    from kurma_stager_default.inside.pod.supervisor import Supervisor

_MANIFEST = "/manifest"
_UNKNOWN = 2
#: Seconds that a new log file waits for the ends of lines.
_OPEN_LINES = 0.3


def _run_of(supervisor: Supervisor, name: str) -> AppRun:
    for run in supervisor.runs:
        if run.app.name == name:
            return run
    raise Refusal(f"the pod has no app {name}", _UNKNOWN)


def _add(supervisor: Supervisor, conversation: Conversation, request: dict[str, Any]) -> None:
    """Adds an app without starting it. The request carries a descriptor of a file with its part of the
    manifest."""
    name: str = request["app"]
    if supervisor.stopping:
        raise Refusal("the pod is being stopped")
    if any(run.app.name == name for run in supervisor.runs):
        raise Refusal(f"the pod has an app {name} already")
    text = _document(conversation, name)
    tree = supervisor.groups.app(name)
    try:
        app = manifest.parse(text, f"app {name}").app(name)
        if app is None:
            raise Refusal(f"the document says nothing of app {name}", _UNKNOWN)
        groups = supervisor.groups
        others = [(run.tree, run.app.plan) for run in supervisor.runs]
        groups.wall = device_cgroup.widen(groups.layout, groups.wall, app.plan, others)
        groups.make_app(name, app.plan)
        _write(_merged(_read(), small_json.decode(text.decode()), name))
    except (manifest.ManifestError, SetupError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        tree.remove()
        raise Refusal(f"its part of the manifest is wrong: {error}" if _wrong(error) else str(error)) from None
    note = privileges.power_note(app, supervisor.pod.ids)
    if note is not None:
        supervisor.note(note)
    if app.pid != manifest.POD_PID:
        _note_pid(supervisor, app)
    run = AppRun(app, tree, ADDED)
    supervisor.life.watch_memory(run)
    supervisor.runs.append(run)
    _renew_notes(supervisor)
    _answer(supervisor, conversation)


def _note_pid(supervisor: Supervisor, app: manifest.App) -> None:
    from kurma_stager_default.inside.app import pid_namespace

    if app.pid == manifest.HOST_PID:
        process.set_child_subreaper()  # for its orphans, which do not get to the pod's PID 1
    note = pid_namespace.note(app)
    if note is not None:
        supervisor.note(note)


def _renew_notes(supervisor: Supervisor) -> None:
    """Updates the notes on the barriers between apps, which depend on all apps of the pod."""
    now = list(privileges.wall_notes([run.app for run in supervisor.runs]))
    if supervisor.groups.wall is None:
        now.append(device_cgroup.OPEN)
    for number, note in enumerate(supervisor.notes):
        for new in now:
            if note.partition(":")[0] == new.partition(":")[0]:
                supervisor.notes[number] = new


def _wrong(error: Exception) -> bool:
    return isinstance(error, ValueError | TypeError | KeyError | AttributeError)


def _start(supervisor: Supervisor, conversation: Conversation, request: dict[str, Any]) -> None:
    """Starts an app on a new root. The request is answered when the app runs."""
    run = _run_of(supervisor, request["app"])
    if supervisor.stopping:
        raise Refusal("the pod is being stopped")
    if not run.over:
        raise Refusal(f"app {run.app.name} runs")
    run.settle()
    run.waiting.append((True, conversation))
    try:
        supervisor.life.begin(run)
    except OSError:
        run.waiting.pop()
        raise
    except SetupError as error:
        run.waiting.pop()
        raise Refusal(str(error)) from None


def _stop(supervisor: Supervisor, conversation: Conversation, request: dict[str, Any]) -> None:
    """Stops an app, and kills it after the timeout, or after that of an earlier request if this is sooner. The
    request is answered when all its processes have ended."""
    run = _run_of(supervisor, request["app"])
    if run.over:
        _answer(supervisor, conversation)
        return
    seconds = request.get("timeout")
    run.quitting = True
    run.waiting.append((False, conversation))
    supervisor.life.ask_to_end(run)
    if run.phase == ENDED:
        return
    patience = supervisor.pod.stop_timeout if seconds is None else seconds
    supervisor.loop.sooner((run, "stop"), time.monotonic() + patience, lambda: supervisor.life.insist(run))


def _document(conversation: Conversation, name: str) -> bytes:
    text = os.pread(conversation.fds[0], DOCUMENT + 1, 0) if conversation.fds else b""
    if len(text) > DOCUMENT:
        raise Refusal(f"app {name}: its part of the manifest has more than {DOCUMENT} bytes")
    return text


def _update(supervisor: Supervisor, conversation: Conversation, request: dict[str, Any]) -> None:
    """Changes the cgroup's settings and the OOM score of an app, which may run. The request carries a descriptor
    of a file with its new plan."""
    from kurma_stager_default.inside.pod import cgroup_update

    run = _run_of(supervisor, request["app"])
    name, old = run.app.name, run.app.plan
    value = small_json.decode(_document(conversation, name).decode())["plan"]
    try:
        new = manifest.Plan(value)
        cgroup_update.change(run.tree, old, new)
        try:
            whole = _read()
            _extras(whole).setdefault(name, {})["plan"] = value
            _write(whole)
        except OSError:
            cgroup_update.change(run.tree, new, old)
            raise
    except (manifest.ManifestError, SetupError) as error:
        raise Refusal(str(error)) from None
    old.cgroup, old.oom_score_adj = new.cgroup, new.oom_score_adj
    _answer(supervisor, conversation)


def _reopen_log(supervisor: Supervisor, conversation: Conversation, request: dict[str, Any]) -> None:
    """Goes on with a new log file, after another program has renamed the present one. The request is answered when
    the new file is there: once the lines that have begun have ended, or a moment later."""
    from kurma_stager_default.inside.streams.outside_log import OutsideLog

    run = _run_of(supervisor, request["app"])
    if run.over or run.instance is None or run.instance.finished is not None:
        raise Refusal(f"app {run.app.name} does not run")
    if run.instance.plain_log:
        raise Refusal("the pod has no log directory: the stager turns its logs over itself")
    log = run.instance.log
    if not isinstance(log, OutsideLog):  # the app has no log
        _answer(supervisor, conversation)
        return

    def done(why: str) -> None:
        if why:
            conversation.refuse(why)
        else:
            _answer(supervisor, conversation)

    if not log.ask(done):
        supervisor.loop.sooner((log, "ask"), time.monotonic() + _OPEN_LINES, log.turn_over)


def _remove(supervisor: Supervisor, conversation: Conversation, request: dict[str, Any]) -> None:
    """Removes an app from the pod's state and manifest, and then its files and its cgroup, which a child does. Of
    an unknown app, it removes what is left of the files. The request is answered when all of that is done."""
    from kurma_stager_default.inside.pod import forked_work

    name: str = request["app"]
    if "/" in name or name.startswith("."):
        raise Refusal(f"{name!r} is not the name of an app", _UNKNOWN)
    for run in supervisor.runs:
        if run.app.name == name:
            _forget(supervisor, run)
            break

    def done(failure: str) -> None:
        if failure:
            conversation.refuse(failure)
        else:
            _answer(supervisor, conversation)

    forked_work.remove_files(supervisor, name, done)


def _forget(supervisor: Supervisor, run: AppRun) -> None:
    """Removes an app from the pod's state and manifest. :raises Refusal: it runs."""
    if not run.over:
        raise Refusal(f"app {run.app.name} runs: stop it first")
    try:
        _write(_without(_read(), run.app.name))
    except OSError as error:
        raise Refusal(f"{_MANIFEST} cannot be written: {error.strerror}") from None
    supervisor.forget(run)
    if run.instance is not None and not isinstance(run.instance.log, AppLog):
        run.instance.log.leave()
    own = f"app {run.app.name}: "
    supervisor.notes[:] = [note for note in supervisor.notes if not note.startswith(own)]
    _renew_notes(supervisor)
    supervisor.changed = True


def _answer(supervisor: Supervisor, conversation: Conversation) -> None:
    supervisor.changed = True
    supervisor.tell()
    conversation.answer({})
    conversation.end()


def started(supervisor: Supervisor, run: AppRun) -> None:
    """Answers the requests that wait for the app's start."""
    told = [conversation for start, conversation in run.waiting if start]
    run.waiting = [(start, conversation) for start, conversation in run.waiting if not start]
    for conversation in told:
        _answer(supervisor, conversation)


def ended(supervisor: Supervisor, run: AppRun) -> None:
    """Answers all waiting requests when an execution has ended; refuses those that wait for its start."""
    waiting, run.waiting = run.waiting, []
    supervisor.loop.cancel((run, "stop"))
    instance = run.instance
    for start, conversation in waiting:
        if start:
            why = "it was stopped" if instance is None or instance.message is None else instance.message
            supervisor.tell()
            conversation.refuse(f"app {run.app.name} could not be started: {why}")
        else:
            _answer(supervisor, conversation)


# --- the manifest, kept up to date so that call-ins find every app ----------------------------------------------


def _read() -> dict[str, Any]:
    with open(_MANIFEST, "rb", 0) as file:
        value: dict[str, Any] = small_json.decode(file.read().decode())
    return value


def _write(value: dict[str, Any]) -> None:
    replace_file(_MANIFEST, small_json.encode_valid(value).encode(), 0o600)


def _merged(whole: dict[str, Any], part: dict[str, Any], name: str) -> dict[str, Any]:
    """Adds the app of ``part``, its images and its volumes to ``whole``."""
    for key in ("apps", "volumes"):
        new = part["pod"].get(key) or []
        names = [one["name"] for one in new]
        kept = [one for one in whole["pod"].get(key) or [] if one["name"] not in names]
        whole["pod"][key] = kept + new
    whole["images"].update(part["images"])
    whole["appImageOrder"].update(part["appImageOrder"])
    extra = (part.get("stagerConfig") or {}).get(manifest.RESERVED, {}).get("apps", {}).get(name)
    if extra is not None:
        _extras(whole)[name] = extra
    return whole


def _without(whole: dict[str, Any], name: str) -> dict[str, Any]:
    """Removes that app, and the images that no other app uses, from ``whole``."""
    apps = [app for app in whole["pod"].get("apps") or [] if app["name"] != name]
    whole["pod"]["apps"] = apps
    whole["appImageOrder"].pop(name, None)
    _extras(whole).pop(name, None)
    used = {layer for layers in whole["appImageOrder"].values() for layer in layers}
    used.update([app["image"].get("id") for app in apps])
    whole["images"] = {key: image for key, image in whole["images"].items() if key in used}
    return whole


def _extras(whole: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = whole.setdefault("stagerConfig", {}).setdefault(manifest.RESERVED, {})
    apps: dict[str, Any] = found.setdefault("apps", {})
    return apps


_VERBS: dict[str, Callable[[Supervisor, Conversation, dict[str, Any]], None]]
_VERBS = {
    "add": _add,
    "start": _start,
    "stop": _stop,
    "rm": _remove,
    "reopen-log": _reopen_log,
    "update": _update,
}


def do(supervisor: Supervisor, conversation: Conversation, request: dict[str, Any]) -> None:
    """Handles a request. :raises Refusal: the request cannot be fulfilled, or not now."""
    _VERBS[request["do"]](supervisor, conversation, request)
