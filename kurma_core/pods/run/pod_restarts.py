"""Decides whether and when kurmad restarts a pod that has ended: the policy, and the pause before.

The stager restarts single apps in a running pod (``kurma.io/restart``); this module is about whole pods.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kurma_core.errors import KurmaError, UsageError
from kurma_core.formats.timestamps import timestamp
from kurma_core.models.pod import ENDED_STATES, PodRestart
from kurma_core.pods.record.document import RESTART_POLICY
from kurma_core.pods.record.state import RestartRecord, between, mark, seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from kurma_core.appc.image import ImageManifest
    from kurma_core.appc.pod import PodManifest
    from kurma_core.pods.record.document import PodDocument
    from kurma_core.pods.record.state import PodState

POLICIES = ("never", "on-failure", "always")
_OF_APPS = "kurma.io/restart"
#: Causes of a pod's end other than its own: ``cause`` in its state.
STOPPED, SHUT_DOWN, REBOOTED = "stop", "shutdown", "reboot"
#: An app was unhealthy, and its health check asks to restart the pod.
UNWELL = "unhealthy"
#: Seconds: the first pause, the longest pause, and the run time after which the first pause applies again.
FIRST, LONGEST, LONG_RUN = 1.0, 300.0, 10.0


def check(manifest: PodManifest, *, ephemeral: bool) -> None:
    """:raises UsageError: the annotation is not a known policy; or it asks to restart a pod that is removed once
    it has ended."""
    policy = manifest.annotation(RESTART_POLICY)
    if policy is not None and policy not in POLICIES:
        raise UsageError(
            f"the pod's annotation {RESTART_POLICY} is {policy!r}", hint=f"it is {', '.join(POLICIES)}"
        )
    if ephemeral and policy not in (None, "never"):
        raise UsageError(f"cannot combine --rm with the restart policy {policy}")


def wanted(document: PodDocument, state: PodState, image: Callable[[str], ImageManifest]) -> bool:
    """Whether an ended pod must be started again, by its state and its policy.

    :param image: gives the manifest of the image with that ID.
    """
    if state.state not in ENDED_STATES or document.ephemeral or state.cause == STOPPED:
        return False
    if state.cause == UNWELL:
        return True
    policy = document.restart_policy
    if state.cause in (SHUT_DOWN, REBOOTED):
        return policy != "never" or _implied(document, image)
    failed = state.state == "errored" or bool(state.exit_code)
    return policy == "always" or (policy == "on-failure" and failed)


def _implied(document: PodDocument, image: Callable[[str], ImageManifest]) -> bool:
    """Whether the pod has an app that is restarted whenever it ends: such a pod is started again after a reboot,
    too, unless the pod's own annotation says otherwise."""
    if document.manifest.annotation(RESTART_POLICY) is not None:
        return False
    for app in document.manifest.apps:
        word = app.annotation(_OF_APPS) or document.manifest.annotation(_OF_APPS)
        if word is None:
            try:
                word = image(str(app.image.id)).annotation(_OF_APPS)
            except KurmaError:
                continue  # the store has lost the image, so the pod could not be started
        if word in ("always", "on-failure"):
            return True
    return False


def pause(state: PodState, *, failed: bool) -> tuple[float, int]:
    """Seconds until the next attempt, and the number of attempts in a row including it.

    :param failed: the last attempt to start it failed, so that an earlier long run does not count.
    """
    tries = _record(state).tries
    if not failed and _ran(state) >= LONG_RUN:
        tries = 0
    return min(LONGEST, FIRST * 2 ** min(tries, 20)), tries + 1


def _ran(state: PodState) -> float:
    passed = between(state.begun, state.over)
    if passed is not None:
        return passed
    try:
        return max(0.0, seconds(state.finished_at or "") - seconds(state.started_at or ""))
    except ValueError:
        return 0.0


def count_of(state: PodState) -> int:
    """Restarts since a user started the pod."""
    return _record(state).count


def next_of(state: PodState) -> float | None:
    """The time of the next restart, in seconds since the epoch; None: none is planned."""
    text = _record(state).next
    try:
        return None if text is None else seconds(text)
    except ValueError:
        return None


def left(state: PodState, at: float) -> float:
    """Seconds until the planned restart; a change of the system clock does not matter.

    :param at: seconds since the epoch, as from :func:`next_of`.
    """
    passed = between(mark(), _record(state).due)
    return max(0.0, min(at - time.time(), LONGEST) if passed is None else passed)


def planned(state: PodState, delay: float, tries: int) -> RestartRecord:
    """The record of a planned restart. :param delay: seconds until then."""
    at = timestamp(time.time() + delay)
    return RestartRecord(count_of(state), tries, at, mark(delay))


def begun(state: PodState, *, again: bool) -> RestartRecord | None:
    """The restart record of a pod that is started now; None: its counts begin anew.

    :param again: its policy starts it, not a user.
    """
    if not again:
        return None
    return RestartRecord(count_of(state) + 1, _record(state).tries)


def told(document: PodDocument, state: PodState) -> PodRestart:
    """The restart policy and counts, as ``kurma show`` prints them."""
    over = state.state in ENDED_STATES and state.cause != STOPPED
    return PodRestart(document.restart_policy, count_of(state), _record(state).next if over else None)


def _record(state: PodState) -> RestartRecord:
    return state.restart or RestartRecord()
