"""When a pod is started again by its policy."""

from __future__ import annotations

import time
from typing import Any

import pytest

from kurma_core.appc.image import ImageManifest, NameValue
from kurma_core.appc.pod import PodManifest
from kurma_core.errors import ImageNotFoundError, UsageError
from kurma_core.models.pod import PodRestart
from kurma_core.pods.record.document import RESTART_POLICY
from kurma_core.pods.record.state import PodState, RestartRecord, mark
from kurma_core.pods.run import pod_restarts
from kurma_core.value import replace
from tests.pods.documents import pod_document

IMAGE = "sha512-" + "a" * 128


def manifest(policy: str | None = None, *, app: str | None = None, apps: str | None = None) -> PodManifest:
    """:param app: what the app says; ``apps``: what the pod says of its apps."""
    said = [(RESTART_POLICY, policy), ("kurma.io/restart", apps)]
    value: dict[str, Any] = {
        "acKind": "PodManifest",
        "acVersion": "0.8.11",
        "apps": [{"name": "a", "image": {"id": IMAGE}}],
        "annotations": [{"name": name, "value": text} for name, text in said if text is not None],
    }
    if app is not None:
        value["apps"][0]["annotations"] = [{"name": "kurma.io/restart", "value": app}]
    return PodManifest.parse(value)


def image(policy: str | None = None) -> ImageManifest:
    annotations = () if policy is None else (NameValue("kurma.io/restart", policy),)
    return ImageManifest(name="example.com/a", annotations=annotations)


def wanted(manifest: PodManifest, *, of_image: str | None = None, ephemeral: bool = False, **state: Any) -> bool:
    document = pod_document(manifest=manifest, ephemeral=ephemeral)
    return pod_restarts.wanted(
        document, PodState(**{"state": "stopped", "exit_code": 0, **state}), lambda _: image(of_image)
    )


@pytest.mark.parametrize(
    ("policy", "by_itself", "failed", "errored"),
    [
        (None, False, False, False),
        ("never", False, False, False),
        ("on-failure", False, True, True),
        ("always", True, True, True),
    ],
)
def test_policies(policy: str | None, by_itself: bool, failed: bool, errored: bool) -> None:
    pod = manifest(policy, app="always")
    assert wanted(pod) == by_itself
    assert wanted(pod, exit_code=3) == failed
    assert wanted(pod, state="errored") == errored
    for cause in (pod_restarts.REBOOTED, pod_restarts.SHUT_DOWN):
        assert wanted(pod, state="errored", cause=cause) == (policy != "never"), "its app implies it"
    assert not wanted(pod, exit_code=3, cause=pod_restarts.STOPPED)
    assert not wanted(pod, exit_code=3, ephemeral=True)
    for state in ("preparing", "prepared", "starting", "running", "stopping"):
        assert not wanted(pod, state=state, exit_code=3)


@pytest.mark.parametrize(
    ("app", "apps", "of_image", "then"),
    [
        (None, None, None, False),
        ("on-failure", None, None, True),
        (None, "always", None, True),
        (None, None, "always", True),
        ("never", "always", "always", False),
        (None, "never", "always", False),
    ],
)
def test_apps_imply_it_for_a_reboot(app: str | None, apps: str | None, of_image: str | None, then: bool) -> None:
    pod = manifest(app=app, apps=apps)
    assert wanted(pod, of_image=of_image, state="errored", cause=pod_restarts.REBOOTED) == then
    assert not wanted(pod, of_image=of_image, state="errored")


def test_an_image_that_is_lost_implies_nothing() -> None:
    def lost(image_id: str) -> ImageManifest:
        raise ImageNotFoundError(f"no image {image_id}")

    state = PodState("errored", cause=pod_restarts.REBOOTED)
    assert not pod_restarts.wanted(pod_document(manifest=manifest()), state, lost)


def test_pauses_grow_to_a_limit_and_begin_anew_after_a_long_run() -> None:
    state = PodState(
        "stopped", started_at="2026-01-01T00:00:00.000000Z", finished_at="2026-01-01T00:00:02.000000Z"
    )
    found = []
    for _ in range(11):
        delay, tries = pod_restarts.pause(state, failed=False)
        found.append(delay)
        state = replace(state, restart=pod_restarts.planned(state, delay, tries))
        assert pod_restarts.next_of(state) == pytest.approx(time.time() + delay, abs=5)
        state = replace(state, restart=pod_restarts.begun(state, again=True))
        assert pod_restarts.next_of(state) is None
    assert found == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert pod_restarts.count_of(state) == 11
    state = replace(state, finished_at="2026-01-01T00:00:10.000000Z")
    assert pod_restarts.pause(state, failed=False) == (1, 1)
    assert pod_restarts.pause(state, failed=True) == (300, 12), "what failed was a start"
    assert pod_restarts.begun(state, again=False) is None


def test_a_clock_that_is_set_changes_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither how long a pod ran, nor when its next start is due."""
    now, hours = time.time(), 5 * 3600
    state = PodState(
        "stopped",
        started_at="2026-01-01T00:00:00.000000Z",
        finished_at="2026-01-01T05:00:02.000000Z",
        begun=mark(-2),
        over=mark(),
        restart=RestartRecord(tries=4),
    )
    assert pod_restarts.pause(state, failed=False) == (16, 5), "it ran for 2 s, whatever the clock says"
    state = replace(state, finished_at="2025-12-31T20:00:00.000000Z", begun=mark(-20))
    assert pod_restarts.pause(state, failed=False) == (1, 1), "it ran for 20 s"
    state = replace(state, restart=pod_restarts.planned(state, 16, 5))
    at = pod_restarts.next_of(state)
    assert at is not None
    for jump in (-hours, 0, hours):
        monkeypatch.setattr(time, "time", lambda jump=jump: now + jump)
        assert pod_restarts.left(state, at) == pytest.approx(16, abs=5)
    # Of another start of the host, the clock is all there is; it keeps nothing waiting for long.
    planned = pod_restarts.planned(state, 16, 5)
    assert planned.due is not None
    state = replace(state, restart=replace(planned, due=replace(planned.due, boot="another")))
    monkeypatch.setattr(time, "time", lambda: now)
    assert pod_restarts.left(state, at) == pytest.approx(16, abs=5)
    monkeypatch.setattr(time, "time", lambda: now - hours)
    assert pod_restarts.left(state, at) == pod_restarts.LONGEST
    monkeypatch.setattr(time, "time", lambda: now + hours)
    assert pod_restarts.left(state, at) == 0
    assert pod_restarts.left(PodState("stopped", restart=RestartRecord()), now + hours + 2) == pytest.approx(
        2, abs=1
    )


def test_what_is_told() -> None:
    document = pod_document(manifest=manifest("always"))
    state = PodState("stopped", restart=RestartRecord(2, 3, "soon"))
    assert pod_restarts.told(document, state) == PodRestart("always", 2, "soon")
    assert pod_restarts.told(document, replace(state, cause=pod_restarts.STOPPED)).next is None
    assert pod_restarts.told(document, replace(state, state="running")).next is None
    assert pod_restarts.told(pod_document(), PodState("prepared")) == PodRestart("never", 0, None)


def test_nonsense_in_the_record_is_none() -> None:
    state = PodState("stopped", restart=RestartRecord(next="y"), started_at="5")
    assert (pod_restarts.count_of(state), pod_restarts.next_of(state)) == (0, None)
    assert pod_restarts.pause(state, failed=False) == (1, 1)
    assert pod_restarts.count_of(PodState("stopped")) == 0


def test_what_cannot_be_meant() -> None:
    with pytest.raises(UsageError, match="is 'sometimes'") as caught:
        pod_restarts.check(manifest("sometimes"), ephemeral=False)
    assert caught.value.hint == "it is never, on-failure, always"
    with pytest.raises(UsageError, match="cannot combine --rm with the restart policy"):
        pod_restarts.check(manifest("always"), ephemeral=True)
    pod_restarts.check(manifest("never"), ephemeral=True)
    pod_restarts.check(manifest("on-failure"), ephemeral=False)
