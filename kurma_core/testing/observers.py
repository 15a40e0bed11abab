"""The contract suite for observers (``kurma_pod_event``), to be subclassed::

class TestMyObserver(ObserverContract):
    @pytest.fixture
    def observer(self, tmp_path):
        return load_driver(my_module, tmp_path)
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from kurma_core.models.pod import PodEvent

#: The kinds of events.
KINDS = ("prepared", "starting", "running", "stopping", "stopped", "errored", "removed")
POD = "146d7cef-fbf6-41da-a2f8-eba218597f9c"


def event(kind: str = "running", **detail: Any) -> PodEvent:
    """An event of a pod named ``test``."""
    return PodEvent(kind=kind, pod=POD, name="test", at="2024-02-29T12:00:00Z", detail=detail)


class ObserverContract:
    """Subclasses define the fixture ``observer``: the hook, from :func:`kurma_core.testing.load_driver`."""

    #: Most seconds that it may take, since the pod waits for it.
    patience = 0.5

    @pytest.fixture
    def observer(self) -> Callable[..., Any]:
        raise NotImplementedError("give a fixture observer")

    # -- the contract --

    @pytest.mark.parametrize("kind", KINDS)
    def test_it_takes_every_kind(self, observer: Callable[..., Any], kind: str) -> None:
        observer(event=event(kind))

    def test_it_takes_kinds_and_details_of_later_versions(self, observer: Callable[..., Any]) -> None:
        observer(event=event("some-later-kind", exitCode=1, nested={"a": [None, "\u2028", 10**20]}))

    def test_it_answers_nothing(self, observer: Callable[..., Any]) -> None:
        assert observer(event=event()) == [], "pluggy keeps what is not None: return None"

    def test_it_returns_quickly(self, observer: Callable[..., Any]) -> None:
        observer(event=event())  # the first call may import modules
        start = time.monotonic()
        observer(event=event())
        assert time.monotonic() - start < self.patience

    def test_it_keeps_nothing_open(self, observer: Callable[..., Any]) -> None:
        """A daemon calls it for thousands of pods."""
        observer(event=event())
        before = (len(os.listdir("/proc/self/fd")), threading.active_count())
        for _ in range(20):
            observer(event=event())
        assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before
