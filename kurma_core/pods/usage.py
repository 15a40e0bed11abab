"""What pods use, as their cgroups say: both versions of cgroups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kurma_core.linux.cgroup_layout import Layout
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.value import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable

Json = Any
#: A limit from which on v1 means that there is none.
_ENDLESS = 1 << 60


@frozen
class Usage:
    """None: the host's cgroups do not say.

    :param memory: bytes. :param memory_limit: bytes; None: none was set.
    :param cpu: seconds of processors, since it was started.
    :param pids: processes and threads.
    """

    uuid: str
    name: str
    memory: int | None
    memory_limit: int | None
    cpu: float | None
    pids: int | None

    def to_json(self) -> dict[str, Json]:
        return {
            "uuid": self.uuid,
            "name": self.name,
            "memory": self.memory,
            "memoryLimit": self.memory_limit,
            "cpu": self.cpu,
            "pids": self.pids,
        }

    @classmethod
    def from_json(cls, value: dict[str, Json]) -> Usage:
        return cls(
            value["uuid"], value["name"], value["memory"], value["memoryLimit"], value["cpu"], value["pids"]
        )


def usage(pods: Iterable[tuple[str, str]]) -> list[Usage]:
    """Of those of the pods that have a cgroup: the others do not run.

    :param pods: UUID and name of each.
    """
    layout = Layout.detect()
    versions = layout.versions()
    found = []
    for uuid, name in pods:
        tree = CgroupTree(f"kurma/{uuid}", layout)
        if tree.exists():
            found.append(_usage(uuid, name, tree, versions))
    return found


def _usage(uuid: str, name: str, tree: CgroupTree, versions: dict[str, int]) -> Usage:
    old = versions.get("memory") == 1
    limit = _number(tree, "memory", "memory.limit_in_bytes" if old else "memory.max")
    return Usage(
        uuid,
        name,
        _number(tree, "memory", "memory.usage_in_bytes" if old else "memory.current"),
        limit if limit is not None and limit < _ENDLESS else None,
        _cpu(tree, versions),
        _number(tree, "pids", "pids.current"),
    )


def _cpu(tree: CgroupTree, versions: dict[str, int]) -> float | None:
    if versions.get("cpuacct") == 1:
        nanoseconds = _number(tree, "cpuacct", "cpuacct.usage")
        return None if nanoseconds is None else nanoseconds / 1e9
    try:
        lines = tree.read("cgroup", "cpu.stat").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1e6 for line in lines if line.startswith("usage_usec ")), None)


def _number(tree: CgroupTree, controller: str, file: str) -> int | None:
    try:
        text = tree.read(controller, file)
    except OSError:
        return None  # the host has no such controller, or the pod has just ended
    return int(text) if text.isdigit() else None


__all__ = ["Usage", "usage"]
