"""A pod's document for tests that care about some of it."""

from __future__ import annotations

from typing import Any

from kurma_core.appc.pod import PodManifest
from kurma_core.models.isolator import IsolatorPlan
from kurma_core.pods.record.document import PodDocument


def pod_document(**said: Any) -> PodDocument:
    """Of a pod without apps and networks, but for what is ``said``."""
    plain: dict[str, Any] = {
        "uuid": "u",
        "name": "n",
        "created_at": "t",
        "manifest": PodManifest(apps=()),
        "mounts": {},
        "plans": {},
        "pod_plan": IsolatorPlan(),
        "isolators": (),
        "notes": (),
        "stager": "s",
        "renderer": "r",
        "attachments": (),
        "host_network": False,
        "hostname": "here",
    }
    names = [app.name for app in said.get("manifest", plain["manifest"]).apps]
    plain["mounts"], plain["plans"] = dict.fromkeys(names, ()), dict.fromkeys(names, IsolatorPlan())
    return PodDocument(**(plain | said))
