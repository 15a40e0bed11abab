"""Standard input, output and error of a running app: the stager's ``attach`` call-in (G9, H8)."""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

from kurma_core.errors import KurmaError
from kurma_core.models.streams import Stdio
from kurma_core.pods.apps import the_app
from kurma_core.pods.document import read_document
from kurma_core.pods.inside import call
from kurma_core.pods.terminals import has_terminal

if TYPE_CHECKING:
    from kurma_core.hookspecs.stager import CallInProcess
    from kurma_core.models.pod import PodRecord
    from kurma_core.pods.owned import OwnedPod
    from kurma_core.pods.services import Services

# Seconds in which a call-in is taken to have set the terminal up.
_PATIENCE = 5.0


def attach(
    services: Services, record: PodRecord, app: str | None, stdio: Stdio, stdin: bool, detach_keys: str | None
) -> int:
    """The app's exit code if it ends meanwhile, 0 if the person left by the detach keys.

    :raises PodStateError: the pod does not run.
    :raises PodEndedError: it has ended, and nobody could tell how the app did.
    :raises AppNotFoundError: no such app, or several and none named.
    """
    app = the_app(record, app).name
    terminal = attaches_terminal(services, record, app)
    # Only what is asked for: a stager that knows no more than the specification takes the app's name alone.
    options: tuple[str, ...] = () if stdin else ("--no-stdin",)
    if detach_keys is not None:
        options += ("--detach-keys", detach_keys)
    words = (app, *options)
    return call(services, record, "attach", words, stdio, what="attach to", terminal=terminal, reads_input=stdin)


def attaches_terminal(services: Services, record: PodRecord, app: str | None) -> bool:
    """Whether who attaches to that app types at a terminal of it.

    :raises AppNotFoundError: no such app, or several and none named.
    """
    app = the_app(record, app).name
    document = read_document(services.store.directory(record.uuid))
    found = document.manifest.app(app)
    return found is not None and has_terminal(document, found)


def type_into(services: Services, pod: OwnedPod, app: str, stdio: Stdio) -> CallInProcess | None:
    """Has what is typed here go to the app's terminal, while the caller shows its log; None: the stager cannot.

    :param stdio: relayed.
    """
    driver = services.stagers.of_pod(pod.stager_name)
    begin = getattr(driver, "begin", None)
    if begin is None:
        return None
    null = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
    ready, told = os.pipe2(os.O_CLOEXEC)
    try:
        # There is no leaving here: this command is the pod's own.
        arguments = (app, "--no-output", "--detach-keys", "")
        # What it has to say (the app may have ended just now) is said by others.
        input_only = Stdio(stdio.stdin, told, null, terminal=stdio.terminal, signals=stdio.signals, relayed=True)
        started: CallInProcess = begin(pod.directory, pod.stager, "attach", arguments, input_only)
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
