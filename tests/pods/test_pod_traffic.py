"""A pod's traffic limits go to the isolator plugin that applies them (X3)."""

from __future__ import annotations

from typing import Any

import pytest

from kurma_core.errors import NetworkError
from kurma_core.hookspecs.isolator import IsolatorHooks
from kurma_core.models.isolator import IsolatorPlan, TrafficLimit
from kurma_core.models.network import Attachment, NetworkRequest
from kurma_core.pods.run.pod_limits import hold_traffic
from kurma_core.value import replace
from tests.pods.documents import pod_document

HELD = (TrafficLimit("in", 3000, "eth0"),)
ETH = Attachment("net", "cni", "eth0", {}, NetworkRequest("net"), limits=HELD)
OWN, APPS = TrafficLimit("in", 1000), TrafficLimit("out", 9, "eth9")
DOCUMENT = pod_document(
    attachments=(ETH,), pod_plan=IsolatorPlan(traffic=(OWN,)), plans={"a": IsolatorPlan(traffic=(APPS,))}
)
FREE = replace(DOCUMENT, pod_plan=IsolatorPlan(), plans={})


class Limiter(IsolatorHooks):
    """An isolator plugin that does."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def limit_traffic(self, namespace: str, limits: Any, held: Any) -> tuple[str, ...]:
        self.calls.append((namespace, limits, held))
        return tuple(limit.interface for limit in limits if limit.interface == "eth9")


def held(document: Any, *drivers: Any) -> list[str]:
    notes: list[str] = []
    hold_traffic(document, drivers, notes.append)
    return notes


def test_the_first_that_can_gets_all_limits() -> None:
    """Those of strangers' isolators, too; and it is told what a network applies itself."""
    first, second = Limiter(), Limiter()
    notes = held(DOCUMENT, first, second)
    assert first.calls == [(DOCUMENT.network_namespace, (OWN, APPS), {"eth0": HELD})]
    assert second.calls == []
    assert notes == [f"pod {DOCUMENT.name} has no interface eth9, whose traffic cannot be limited"]


def test_the_last_limit_is_removed() -> None:
    limiter = Limiter()
    assert held(FREE, limiter) == []
    assert limiter.calls == [(DOCUMENT.network_namespace, (), {"eth0": HELD})]


def test_a_limit_that_no_plugin_applies() -> None:
    with pytest.raises(NetworkError, match=r"^cannot limit the traffic of pod .*: no enabled isolator plugin"):
        held(DOCUMENT)
    assert held(FREE) == []


def test_a_pod_without_a_network_of_its_own() -> None:
    assert held(replace(DOCUMENT, host_network=True)) == []
