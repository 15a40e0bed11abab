"""The isolator os/linux/namespaces {net}: reported as it is, and never a way to the host's network (E8)."""

from __future__ import annotations

import pytest

from kurma_core.appc.image import Isolator
from kurma_core.errors import IsolatorError
from kurma_core.isolation import compile_isolators, host_facts
from kurma_core.models import IsolatorPlan
from kurma_core.pods.network_namespace import NetworkNamespace

NAME = "os/linux/namespaces"


def compiled(value: object, *, host_network: bool):
    isolation = compile_isolators(
        (), {"a": (Isolator(NAME, value),)}, (NetworkNamespace(host_network),), host_facts({})
    )
    assert isolation.apps["a"] == IsolatorPlan()
    (report,) = isolation.reports
    return report.outcome, report.note


@pytest.mark.parametrize(
    ("value", "host_network", "outcome", "note"),
    [
        ({"net": "private"}, False, "enforced", ""),
        ({"net": "private"}, True, "ignored", "was given the host's network"),
        ({"net": "host"}, True, "enforced", ""),
        ({"net": "host"}, False, "ignored", "not for an image to ask for"),
        ({"net": "private", "pid": "host"}, False, "ignored", "looks after pid"),
    ],
)
def test_network_namespace_is_reported_as_it_is(value, host_network, outcome, note):
    found = compiled(value, host_network=host_network)
    assert found[0] == outcome
    assert note in found[1]


@pytest.mark.parametrize("value", [None, "host", {"net": "none"}, {"net": True}])
def test_network_namespace_refuses_what_it_does_not_know(value):
    with pytest.raises(IsolatorError, match="expected an object"):
        compiled(value, host_network=True)
