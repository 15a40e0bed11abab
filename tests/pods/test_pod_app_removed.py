"""What a pod knows once an app was removed from it."""

from __future__ import annotations

from kurma_core.models.isolator import IsolatorPlan
from kurma_core.pods.change.new_app import without
from kurma_core.value import replace
from tests.pods.documents import pod_document


def test_a_later_app_of_that_name_inherits_nothing() -> None:
    """Not what the pod's caller asked for: standard input, a terminal, variables."""
    pod = pod_document(
        mounts={"a": ()},
        plans={"a": IsolatorPlan()},
        interactive="a",
        terminal="a",
        environment={"a": (("K", "V"),)},
    )
    left, gone = without(pod, "a")
    assert gone == ()
    assert left == replace(pod, mounts={}, plans={}, interactive=None, terminal=None, environment={})
    other, _ = without(pod, "b")
    assert other == pod
