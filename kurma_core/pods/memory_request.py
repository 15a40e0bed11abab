"""The memory that a pod was promised, kept for it (X3; App Container Executor, resource/memory)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.errors import HostError

if TYPE_CHECKING:
    from kurma_core.models.isolator import IsolatorPlan
    from kurma_core.pods.document import PodDocument

_FILE = "memory.low"


def requested(document: PodDocument) -> int:
    """Bytes: the pod's own request, else what its apps request together; 0 on cgroup v1, which has soft limits."""
    of_pod = _of(document.pod_plan)
    return of_pod if of_pod is not None else sum(_of(plan) or 0 for plan in document.plans.values())


def keep(document: PodDocument) -> None:
    """Once the pod's cgroup is there; and again when it has gone, or its apps have changed.

    :raises HostError: the kernel refuses.
    """
    from kurma_core.linux import memory_low
    from kurma_core.linux.cgroups import CgroupTree

    try:
        memory_low.keep(CgroupTree(document.cgroup), requested(document))
    except OSError as error:
        raise HostError(
            f"pod {document.uuid}: cannot keep the memory that it requests: {error.filename}: {error.strerror}",
            errno=error.errno,
            path=error.filename,
            pod=document.uuid,
        ) from error


def _of(plan: IsolatorPlan) -> int | None:
    for setting in plan.cgroup:
        if setting.controller == "memory" and setting.file == _FILE:
            return int(setting.value)
    return None
