"""What a pod knows once an app was removed from it."""

from __future__ import annotations

from kurma_core.appc.pod import PodManifest
from kurma_core.models import IsolatorPlan
from kurma_core.pods.document import PodDocument
from kurma_core.pods.newapp import without
from kurma_core.value import replace


def test_a_later_app_of_that_name_inherits_nothing() -> None:
    """Not what the pod's caller asked for: standard input, a terminal, variables."""
    document = PodDocument(
        uuid="u",
        name="n",
        created_at="t",
        manifest=PodManifest(apps=()),
        mounts={"a": ()},
        plans={"a": IsolatorPlan()},
        pod_plan=IsolatorPlan(),
        isolators=(),
        notes=(),
        stager="s",
        renderer="r",
        attachments=(),
        host_network=False,
        hostname="here",
        interactive="a",
        terminal="a",
        environment={"a": (("K", "V"),)},
    )
    left, gone = without(document, "a")
    assert gone == ()
    assert left == replace(document, mounts={}, plans={}, interactive=None, terminal=None, environment={})
    other, _ = without(document, "b")
    assert other == document
