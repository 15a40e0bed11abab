"""What a pod's isolators say of its traffic, applied to its network (X3).

The network is the pod's, whatever app a limit came from: the lowest of all holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kurma_core.models.isolator import IsolatorPlan, TrafficLimit
    from kurma_core.pods.document import PodDocument


def limits_of(document: PodDocument) -> tuple[TrafficLimit, ...]:
    """Of the pod and of each of its apps."""
    plans = (document.pod_plan, *document.plans.values())
    return tuple(limit for plan in plans for limit in plan.traffic)


def lasting(pod: IsolatorPlan, apps: Mapping[str, IsolatorPlan]) -> tuple[TrafficLimit, ...]:
    """Those that hold as long as the pod runs, and which a network may be given to hold it to: the pod's own, and
    those of an only app. Of several apps, each takes its limits with it.
    """
    plans = (pod, *(apps.values() if len(apps) == 1 else ()))
    return tuple(limit for plan in plans for limit in plan.traffic)


def hold(document: PodDocument, note: Callable[[str], None]) -> None:
    """Holds the pod's network, which is there, to its limits and no others. Where a network holds the pod itself
    (CNI's ``bandwidth``), only what is stricter is left to do.

    :raises NetworkError: the kernel refuses.
    """
    if document.network_namespace is None:
        return
    from kurma_core.networking.traffic import RATES, limit_traffic

    limits = limits_of(document)
    own = {}
    for one in document.attachments:
        given = one.capabilities.get("bandwidth")
        if given:
            held = {direction: given.get(rate) for direction, rate in RATES.items()}
            own[one.interface] = [
                limit for limit in limits if not (rate := held[limit.direction]) or limit.rate * 8 < rate
            ]
    for name in limit_traffic(document.network_namespace, limits, own):
        note(f"pod {document.name} has no interface {name}, whose traffic was to be limited")
