"""What a pod's isolators say of its traffic, applied to its network (X3).

The network is the pod's, whatever app a limit came from: the lowest of all holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from kurma_core.models import TrafficLimit
    from kurma_core.pods.document import PodDocument


def limits_of(document: PodDocument) -> tuple[TrafficLimit, ...]:
    """Of the pod and of each of its apps."""
    plans = (document.pod_plan, *document.plans.values())
    return tuple(limit for plan in plans for limit in plan.traffic)


def hold(document: PodDocument, note: Callable[[str], None]) -> None:
    """Holds the pod's network, which is there, to its limits and no others.

    :raises NetworkError: the kernel refuses.
    """
    if document.network_namespace is None:
        return
    from kurma_core.networking.traffic import limit_traffic

    for name in limit_traffic(document.network_namespace, limits_of(document)):
        note(f"pod {document.name} has no interface {name}, whose traffic was to be limited")
