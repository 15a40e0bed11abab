"""Decides whether and when kurmad restarts a pod that has ended: the policy, and the pause before.

Apps that end while their pod lives are the stager's (``kurma.io/restart``); this is of pods as a whole.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from kurma_core.errors import KurmaError, UsageError
from kurma_core.formats.timestamps import timestamp
from kurma_core.models.pod import ENDED_STATES, PodRestart
from kurma_core.pods.record.state import RestartRecord, between, mark, seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from kurma_core.appc.image import ImageManifest
    from kurma_core.appc.pod import PodManifest
    from kurma_core.pods.record.document import PodDocument
    from kurma_core.pods.record.state import PodState

Json = Any
#: Annotation of the pod.
POLICY = "kurma.io/pod/restart"
POLICIES = ("never", "on-failure", "always")
_OF_APPS = "kurma.io/restart"
#: Why a pod is over, where it did not end by itself: ``cause`` in its state.
STOPPED, SHUT_DOWN, REBOOTED = "stop", "shutdown", "reboot"
#: Seconds: the first pause, the longest, and for how long a pod must have run for the first one again.
FIRST, LONGEST, LONG_RUN = 1.0, 300.0, 10.0


def check(manifest: PodManifest, *, ephemeral: bool) -> None:
    """:raises UsageError: its annotation says nothing that is known; or it is removed once it has ended."""
    policy = manifest.annotation(POLICY)
    if policy is not None and policy not in POLICIES:
        raise UsageError(f"the pod's annotation {POLICY} is {policy!r}", hint=f"it is {', '.join(POLICIES)}")
    if ephemeral and policy not in (None, "never"):
        raise UsageError(f"a pod that is removed once it has ended cannot be restarted: its policy is {policy}")


def policy_of(document: PodDocument) -> str:
    return document.manifest.annotation(POLICY) or "never"


def wanted(document: PodDocument, state: PodState, image: Callable[[str], ImageManifest]) -> bool:
    """Whether that pod, as it is, is to be started again.

    :param image: the manifest of an image of that ID.
    """
    if state.state not in ENDED_STATES or document.ephemeral or state.cause == STOPPED:
        return False
    policy = policy_of(document)
    if state.cause in (SHUT_DOWN, REBOOTED):
        return policy != "never" or _implied(document, image)
    failed = state.state == "errored" or bool(state.exit_code)
    return policy == "always" or (policy == "on-failure" and failed)


def _implied(document: PodDocument, image: Callable[[str], ImageManifest]) -> bool:
    """An app that is to be started again whenever it ends is to be there after a reboot, too; unless the pod says
    otherwise."""
    if document.manifest.annotation(POLICY) is not None:
        return False
    for app in document.manifest.apps:
        word = app.annotation(_OF_APPS) or document.manifest.annotation(_OF_APPS)
        if word is None:
            try:
                word = image(str(app.image.id)).annotation(_OF_APPS)
            except KurmaError:
                continue  # the store has lost it, and the pod could not be started
        if word in ("always", "on-failure"):
            return True
    return False


def pause(state: PodState, *, failed: bool) -> tuple[float, int]:
    """Seconds until the next attempt, and how many there have been in a row then.

    :param failed: an attempt to start it has failed: that it ran for long before counts no more.
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
    """How often it was started again since somebody has started it."""
    return _record(state).count


def next_of(state: PodState) -> float | None:
    """When it will be, in seconds since the epoch; None: that is not decided."""
    text = _record(state).next
    try:
        return None if text is None else seconds(text)
    except ValueError:
        return None


def left(state: PodState, at: float) -> float:
    """Seconds until the attempt that is planned, whatever was done to the clock meanwhile.

    :param at: seconds since the epoch, as :func:`next_of` has it.
    """
    passed = between(mark(), _record(state).due)
    return max(0.0, min(at - time.time(), LONGEST) if passed is None else passed)


def planned(state: PodState, delay: float, tries: int) -> RestartRecord:
    """What is to be recorded of the next attempt. :param delay: seconds until then."""
    at = timestamp(time.time() + delay)
    return RestartRecord(count_of(state), tries, at, mark(delay))


def begun(state: PodState, *, again: bool) -> RestartRecord | None:
    """What is to be recorded of a pod that is started now. :param again: by its policy, not by somebody."""
    if not again:
        return None
    return RestartRecord(count_of(state) + 1, _record(state).tries)


def told(document: PodDocument, state: PodState) -> PodRestart:
    """As ``kurma show`` prints it."""
    over = state.state in ENDED_STATES and state.cause != STOPPED
    return PodRestart(policy_of(document), count_of(state), _record(state).next if over else None)


def _record(state: PodState) -> RestartRecord:
    return state.restart or RestartRecord()
