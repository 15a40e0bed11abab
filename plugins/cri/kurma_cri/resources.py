"""Resources of containers: the isolator ``kurma.io/linux-resources`` of their apps holds them, and an update
changes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.rpc import invalid

if TYPE_CHECKING:
    from kurma_cri.records import Container

Json = Any
RESOURCES = "kurma.io/linux-resources"
#: Kubelet limits the processes of a whole pod by its cgroup.
NO_PIDS_LIMIT = ("kurma.io/pids-limit", {"limit": "unlimited"})
_KEYS = {
    "cpu_period": "cpuPeriod",
    "cpu_quota": "cpuQuota",
    "cpu_shares": "cpuShares",
    "memory_limit_in_bytes": "memoryLimit",
    "memory_swap_limit_in_bytes": "memorySwapLimit",
    "oom_score_adj": "oomScoreAdj",
    "cpuset_cpus": "cpusetCpus",
    "cpuset_mems": "cpusetMems",
}


def to_isolator(resources: cri.LinuxContainerResources) -> dict[str, Json]:
    """The value of the isolator. Fields that are 0 or empty say nothing."""
    found: dict[str, Json] = {}
    for name, key in _KEYS.items():
        value = getattr(resources, name)
        if value:
            found[key] = value
    if resources.hugepage_limits:
        found["hugepageLimits"] = [
            {"pageSize": one.page_size, "limit": one.limit} for one in resources.hugepage_limits
        ]
    if resources.unified:
        found["unified"] = dict(resources.unified)
    return found


def isolators(resources: cri.LinuxContainerResources) -> list[tuple[str, Json]]:
    """The isolators of a new container.

    :raises RpcError: a number is out of the kernel's range.
    """
    for name in ("cpu_period", "cpu_shares"):
        if getattr(resources, name) < 0:
            raise invalid(f"{name}: {getattr(resources, name)} is less than 0")
    value = to_isolator(resources)
    return [NO_PIDS_LIMIT, *([(RESOURCES, value)] if value else [])]


def resources_of(container: Container) -> cri.LinuxContainerResources:
    """The present resources of a container, after all updates."""
    value = _value(container)
    found = cri.LinuxContainerResources(**{name: value[key] for name, key in _KEYS.items() if key in value})
    for one in value.get("hugepageLimits", ()):
        found.hugepage_limits.add(page_size=one["pageSize"], limit=one["limit"])
    found.unified.update(value.get("unified", {}))
    return found


def _value(container: Container) -> Mapping[str, Json]:
    for app in container.sandbox.pod.manifest.get("apps", ()):
        if app["name"] == container.id:
            for one in (app.get("app") or {}).get("isolators", ()):
                if one["name"] == RESOURCES:
                    return dict(one["value"])
    return {}
