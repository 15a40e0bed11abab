"""The contract suite for plugins of :class:`kurma_core.hookspecs.observer.ObserverHooks`, to be subclassed::

@pytest.mark.kurma_driver(my_module)
class TestMyObserver(ObserverContract):
    pass
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from kurma_core.hookspecs.observer import ObserverHooks
from kurma_core.models.pod import AppEvent, PodEvent
from kurma_testing.contract import HOSTILE, DriverContract, nothing_left_open

#: The kinds of events.
KINDS = ("prepared", "starting", "running", "stopping", "stopped", "errored", "removed")
#: The kinds of events of apps.
APP_KINDS = ("created", "started", "stopped", "removed")
POD = "146d7cef-fbf6-41da-a2f8-eba218597f9c"


def event(kind: str = "running", **detail: Any) -> PodEvent:
    """An event of a pod named ``test``."""
    return PodEvent(kind=kind, pod=POD, name="test", at="2024-02-29T12:00:00Z", detail=detail)


def app_event(kind: str = "started", app: str = "main", **detail: Any) -> AppEvent:
    """An event of an app of the pod ``test``."""
    return AppEvent(kind=kind, app=app, pod=POD, name="test", at="2024-02-29T12:00:00Z", detail=detail)


class ObserverContract(DriverContract):
    """Subclasses have the mark ``kurma_driver``."""

    #: Most seconds for an event: a command waits one second for all that are left at its end.
    patience = 0.5

    # -- the contract --

    @pytest.mark.parametrize("kind", KINDS)
    def test_it_takes_every_kind(self, driver: ObserverHooks, kind: str) -> None:
        driver.pod_event(event(kind))

    @pytest.mark.parametrize("kind", APP_KINDS)
    def test_it_takes_every_kind_of_an_app(self, driver: ObserverHooks, kind: str) -> None:
        driver.app_event(app_event(kind, instance=1, exitCode=0, reason="exited"))

    def test_it_takes_kinds_and_details_of_later_versions(self, driver: ObserverHooks) -> None:
        driver.pod_event(event("some-later-kind", exitCode=1, nested={"a": [None, "\u2028", 10**20]}))

    def test_hostile_text_is_text(self, driver: ObserverHooks) -> None:
        """Names, reasons and details come from images and apps."""
        for text in HOSTILE:
            driver.pod_event(event(text, reason=text, exitCode=1, **{"key " + text[:20]: [text]}))

    def test_it_returns_quickly(self, driver: ObserverHooks) -> None:
        driver.pod_event(event())  # the first call may import modules
        start = time.monotonic()
        driver.pod_event(event())
        assert time.monotonic() - start < self.patience

    def test_it_keeps_nothing_open(self, driver: ObserverHooks) -> None:
        """A daemon calls it for thousands of pods."""
        driver.pod_event(event())
        with nothing_left_open():
            for _ in range(20):
                driver.pod_event(event())
