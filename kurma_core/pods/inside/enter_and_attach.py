"""Runs commands inside apps (``kurma enter``) and attaches to their streams (``kurma attach``), by call-ins of the
stager: a call-in runs until its own end, or the pod's."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kurma_core.errors import CommandTimeoutError, HostError, KurmaError, PodEndedError, PodStateError, StagerError
from kurma_core.linux import process
from kurma_core.linux.programs import is_killed
from kurma_core.models.streams import Stdio
from kurma_core.pods.prepare.app_settings import has_terminal
from kurma_core.pods.record.pod_record import the_app
from kurma_core.pods.run import recovery
from kurma_core.staging.relay import CallerRelay
from kurma_core.value import frozen

if TYPE_CHECKING:
    from kurma_core.hookspecs.stager import CallInHooks, RunningStagerHooks
    from kurma_core.models.pod import PodRecord
    from kurma_core.models.streams import Stdio
    from kurma_core.pods.run.owner import OwnedPod
    from kurma_core.pods.services import Services


@frozen
class Limit:
    """The limit of a contained command, which is killed with all that it has started.

    :param seconds: None: only when the caller goes away.
    """

    seconds: float | None

    def wait(self, call_in: CallInHooks) -> int:
        """Waits for the command's end. :returns: its exit code. :raises CommandTimeoutError: the time is over."""
        code = call_in.wait_contained(self.seconds)
        if code is None:
            raise CommandTimeoutError(
                f"the command did not end within {self.seconds:g} s, and was killed with all that it had started"
            )
        return code


_KILLED = 137
# Seconds to wait for the end of a stager that was killed together with the call-in.
_TOGETHER = 0.3


def check_runs(record: PodRecord, what: str) -> None:
    """:raises PodStateError: the pod does not run."""
    if record.state != "running":
        raise PodStateError(f"cannot {what} pod {record.name}: it is {record.state}", pod=record.uuid)


def call(
    services: Services,
    record: PodRecord,
    verb: str,
    arguments: tuple[str, ...],
    stdio: Stdio,
    document: bytes | None = None,
    *,
    what: str,
    terminal: bool,
    reads_input: bool = True,
    limit: Limit | None = None,
) -> int:
    """Runs a call-in of the stager. :returns: its exit code.

    :param limit: of a command that is contained.
    :param terminal: the call-in serves a terminal in the pod.
    :param reads_input: it reads standard input.
    :param what: the action, for messages: ``enter``, ``attach to``.
    :raises PodStateError: the pod does not run.
    :raises PodEndedError: the pod ended meanwhile: the call-in and its command were killed, or could not start.
    """
    directory = services.store.directory(record.uuid)
    check_runs(record, what)
    stager = recovery.find_stager(services, directory)
    if stager is None:
        raise _ended(record)
    try:
        driver = services.stagers.of_pod(directory.read_document())

        def run(given: Stdio) -> int:
            try:
                if limit is not None:
                    command = driver.run_contained(directory.path, stager, arguments[0], given, document or b"")
                    return limit.wait(command)
                return driver.call(directory.path, stager, verb, arguments, given, document)
            except (HostError, StagerError):
                if not _ends(stager):
                    raise
                raise _ended(record) from None

        if stdio.relayed:
            code = run(stdio)
        else:
            with CallerRelay(stdio, wants_terminal=terminal, reads_input=reads_input) as relay:
                code = run(relay.stdio)
        # A call-in that was killed prints nothing; its exit code alone could also be that of a killed command.
        if code == _KILLED and _ends(stager):
            raise _ended(record)
        return code
    finally:
        stager.close()


def _ends(stager: RunningStagerHooks) -> bool:
    """Whether the pod ends, or has ended. On a busy machine, a killed stager may take long to end."""
    return process.wait_pidfd(stager.fileno(), _TOGETHER) or is_killed(stager.pid)


def _ended(record: PodRecord) -> PodEndedError:
    return PodEndedError(f"pod {record.name} has ended", pod=record.uuid)


def enter(
    services: Services,
    record: PodRecord,
    app: str | None,
    document: Mapping[str, Any],
    stdio: Stdio,
    limit: Limit | None = None,
) -> int:
    """Runs a command in an app. :returns: its exit code.

    :param document: the JSON of the ``run`` call-in; the app's own user, group, environment and working directory
        are used if it has none.
    :param limit: kills the command, with all that it has started, at the end of a time, or when this thread's
        operation is cancelled.
    :raises CommandTimeoutError: it ran longer than its limit.
    :raises StagerError: the pod's stager cannot kill all that a command has started.
    :raises PodStateError: the pod does not run.
    :raises PodEndedError: it has ended, and the command was killed.
    :raises AppNotFoundError: no such app, or several and none named.
    """
    app = the_app(record, app).name
    check_runs(record, "enter")
    whole = {**_account(services, record, app, document.get("user")), **document}
    if limit is not None:
        check_contains(services, record)
        whole["contained"] = True
    text = json.dumps(whole).encode()
    terminal = bool(document.get("tty"))
    return call(services, record, "run", (app,), stdio, text, what="enter", terminal=terminal, limit=limit)


def check_contains(services: Services, record: PodRecord) -> None:
    """:raises StagerError: the pod's stager cannot kill all that a command has started."""
    from kurma_core.hookspecs import implements
    from kurma_core.hookspecs.stager import StagerHooks

    directory = services.store.directory(record.uuid)
    driver = services.stagers.of_pod(directory.read_document())
    if not (
        implements(driver, StagerHooks.begin)
        and implements(driver, StagerHooks.app_verbs)
        and "run-contained" in driver.app_verbs(directory.path)
    ):
        raise StagerError(
            f"cannot limit the time of a command in pod {record.name}: its stager {record.stager} cannot kill all "
            "that a command has started",
            hint="leave the time limit out, or run the pod with another stager",
        )


def _account(services: Services, record: PodRecord, app: str, user: str | None) -> dict[str, Any]:
    """The user and group, which the specification requires: the app's own with its supplementary groups, or, for
    another user, that user's groups from the app's image."""
    if user is not None:
        group, further = services.images.groups_of(record.images[app], user)
        return {"group": group, "supplementaryGIDs": list(further)}
    manifest = services.store.directory(record.uuid).read_document().manifest.app(app)
    own = manifest.app
    if own is None:
        own = services.images.manifest(record.images[app]).app
    if own is None:
        return {}
    account: dict[str, Any] = {"user": own.user, "group": own.group}
    if own.supplementary_gids:
        account["supplementaryGIDs"] = list(own.supplementary_gids)
    return account


# Seconds to wait until the call-in has set the terminal up.
_PATIENCE = 5.0


def attach(
    services: Services, record: PodRecord, app: str | None, stdio: Stdio, stdin: bool, detach_keys: str | None
) -> int:
    """Attaches to an app's streams. :returns: the app's exit code if it ends meanwhile; 0 after the detach keys.

    :raises PodStateError: the pod does not run.
    :raises PodEndedError: it has ended, and the app's exit code is unknown.
    :raises AppNotFoundError: no such app, or several and none named.
    """
    app = the_app(record, app).name
    terminal = attaches_terminal(services, record, app)
    # Options only if needed: a stager that implements the bare specification takes the app's name alone.
    options: tuple[str, ...] = () if stdin else ("--no-stdin",)
    if detach_keys is not None:
        options += ("--detach-keys", detach_keys)
    words = (app, *options)
    return call(services, record, "attach", words, stdio, what="attach to", terminal=terminal, reads_input=stdin)


def attaches_terminal(services: Services, record: PodRecord, app: str | None) -> bool:
    """Whether attaching to that app connects the caller to a terminal of the app.

    :raises AppNotFoundError: no such app, or several and none named.
    """
    app = the_app(record, app).name
    document = services.store.directory(record.uuid).read_document()
    found = document.manifest.app(app)
    return found is not None and has_terminal(document, found)


def type_into(services: Services, pod: OwnedPod, app: str, stdio: Stdio) -> CallInHooks | None:
    """Sends input to the app's terminal while the caller shows the app's log; None: the stager does not support
    it.

    :param stdio: relayed.
    """
    driver = services.stagers.of_pod(pod.document)
    from kurma_core.hookspecs import implements
    from kurma_core.hookspecs.stager import StagerHooks

    if not implements(driver, StagerHooks.begin):
        return None
    null = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
    ready, told = os.pipe2(os.O_CLOEXEC)
    try:
        # No detach keys: this command runs the pod in the foreground.
        arguments = (app, "--no-output", "--detach-keys", "")
        # Its messages are dropped: if the app has just ended, say, the pod's owner reports that.
        input_only = Stdio(stdio.stdin, told, null, terminal=stdio.terminal, signals=stdio.signals, relayed=True)
        started = driver.begin(pod.directory, pod.stager, "attach", arguments, input_only, None)
        os.close(told)
        told = -1
        poll = select.poll()
        poll.register(ready, select.POLLIN)
        poll.register(pod, select.POLLIN)
        poll.poll(_PATIENCE * 1000)
    except KurmaError:
        return None
    finally:
        for fd in (null, ready, told):
            if fd >= 0:
                os.close(fd)
    return started
