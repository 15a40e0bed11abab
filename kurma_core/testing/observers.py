"""The contract suite for plugins of :class:`kurma_core.hookspecs.observer.ObserverHooks`, to be subclassed::

class TestMyObserver(ObserverContract):
    @pytest.fixture
    def observer(self, tmp_path):
        return load_driver(my_module, tmp_path)
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest

from kurma_core.hookspecs.observer import ObserverHooks
from kurma_core.models.pod import PodEvent

#: The kinds of events.
KINDS = ("prepared", "starting", "running", "stopping", "stopped", "errored", "removed")
POD = "146d7cef-fbf6-41da-a2f8-eba218597f9c"


def event(kind: str = "running", **detail: Any) -> PodEvent:
    """An event of a pod named ``test``."""
    return PodEvent(kind=kind, pod=POD, name="test", at="2024-02-29T12:00:00Z", detail=detail)


class ObserverContract:
    """Subclasses define the fixture ``observer``: the driver, from :func:`kurma_core.testing.load_driver`."""

    #: Most seconds for an event: a command waits one second for all that are left at its end.
    patience = 0.5

    @pytest.fixture
    def observer(self) -> ObserverHooks:
        raise NotImplementedError("give a fixture observer")

    # -- the contract --

    @pytest.mark.parametrize("kind", KINDS)
    def test_it_takes_every_kind(self, observer: ObserverHooks, kind: str) -> None:
        observer.pod_event(event(kind))

    def test_it_takes_kinds_and_details_of_later_versions(self, observer: ObserverHooks) -> None:
        observer.pod_event(event("some-later-kind", exitCode=1, nested={"a": [None, "\u2028", 10**20]}))

    def test_it_returns_quickly(self, observer: ObserverHooks) -> None:
        observer.pod_event(event())  # the first call may import modules
        start = time.monotonic()
        observer.pod_event(event())
        assert time.monotonic() - start < self.patience

    def test_it_keeps_nothing_open(self, observer: ObserverHooks) -> None:
        """A daemon calls it for thousands of pods."""
        observer.pod_event(event())
        before = (len(os.listdir("/proc/self/fd")), threading.active_count())
        for _ in range(20):
            observer.pod_event(event())
        assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before
