"""Resources of containers: the isolator ``kurma.io/linux-resources`` of their apps holds them, and an update
changes it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from kurma_core.linux.cgroups import Layout
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
#: The controllers of cgroups that fields need. Kubelet sends a limit of 0 for each size of huge pages.
_CONTROLLERS = {
    "cpu": ("cpu_period", "cpu_quota", "cpu_shares"),
    "memory": ("memory_limit_in_bytes", "memory_swap_limit_in_bytes"),
    "cpuset": ("cpuset_cpus", "cpuset_mems"),
}

_LIMITS = ("cpu_quota", *_CONTROLLERS["memory"], *_CONTROLLERS["cpuset"])
#: Files of cgroup v2 with the values that kubelet sets for all containers.
_USUAL = {("memory.oom.group", "1"), ("memory.swap.max", "0")}


def check(resources: cri.LinuxContainerResources, *, foreign: bool) -> None:
    """:raises RpcError: the host, or the stager, cannot apply a field."""
    if foreign:
        check_foreign(resources)
    else:
        check_host(resources, Layout.of_host().versions())


def check_host(resources: cri.LinuxContainerResources, controllers: Collection[str]) -> None:
    """:param controllers: the host's controllers of cgroups.
    :raises RpcError: it has none for a field, which would then have no effect.
    """
    wanted = [
        (name, controller)
        for controller, names in _CONTROLLERS.items()
        for name in names
        if getattr(resources, name)
    ]
    if any(one.limit for one in resources.hugepage_limits):
        wanted.append(("hugepage_limits", "hugetlb"))
    wanted += [(f"unified: {file}", file.partition(".")[0]) for file in resources.unified]
    for name, controller in wanted:
        if controller not in controllers:
            raise invalid(f"resources.{name}: this host has no cgroup controller {controller}")


def check_foreign(resources: cri.LinuxContainerResources) -> None:
    """Checks resources for a stager that applies none. Kubelet gives every container a share of CPU time, an OOM
    score and no swap: they have no effect there.

    :raises RpcError: a limit is set.
    """
    for name in _LIMITS:
        if getattr(resources, name):
            raise invalid(f"resources.{name}: the stager of this runtime handler applies no limits")
    for file, text in resources.unified.items():
        if (file, text) not in _USUAL:
            raise invalid(f"resources.unified: {file}: the stager of this runtime handler applies no limits")
    if any(one.limit for one in resources.hugepage_limits):
        raise invalid("resources.hugepage_limits: the stager of this runtime handler applies no limits")


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


def isolators(resources: cri.LinuxContainerResources, *, foreign: bool = False) -> list[tuple[str, Json]]:
    """The isolators of a new container.

    :param foreign: the stager applies none.
    :raises RpcError: the host, or the stager, cannot apply a field.
    """
    check(resources, foreign=foreign)
    if foreign:
        return []
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
