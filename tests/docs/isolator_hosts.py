"""Machines on which the values of ``docs/isolators.md`` are compiled: made up, the same wherever the test runs.

Who adds an isolator that reads the machine adds to :func:`stock` what a common machine has, and to :data:`HOSTS` a
machine that differs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kurma_core.hookspecs import IsolatorHost
from kurma_core.value import replace

_V1 = dict.fromkeys(("cpu", "cpuacct", "cpuset", "memory", "blkio", "pids", "devices", "freezer"), 1)
_V2 = dict.fromkeys(("cpu", "cpuset", "memory", "io", "pids"), 2)
_EVERY_CAPABILITY = "000001ffffffffff"
_ALL_BUT_SYS_RESOURCE = "000001fffeffffff"


def stock(root: Path) -> str:
    """The files of a common machine, below ``root``."""
    write(root, "proc/self/status", f"Name:\tkurma\nCapEff:\t{_EVERY_CAPABILITY}\n")
    write(root, "proc/self/oom_score_adj", "0\n")
    return str(root)


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def cgroup_v1(root: Path) -> IsolatorHost:
    return IsolatorHost(_V1, 4, root=stock(root))


def cgroup_v2(root: Path) -> IsolatorHost:
    return IsolatorHost(_V2, 4, root=stock(root))


def no_cgroups(root: Path) -> IsolatorHost:
    return IsolatorHost({}, 4, root=stock(root))


def host_network(root: Path) -> IsolatorHost:
    return replace(cgroup_v1(root), host_network=True)


def user_namespace(root: Path) -> IsolatorHost:
    return replace(cgroup_v1(root), userns=True)


def no_sys_resource(root: Path) -> IsolatorHost:
    host = cgroup_v1(root)
    write(root, "proc/self/status", f"Name:\tkurma\nCapEff:\t{_ALL_BUT_SYS_RESOURCE}\n")
    return host


#: By their names in the page. The first two are the columns of its first table.
HOSTS: dict[str, Any] = {
    "cgroup v1": cgroup_v1,
    "cgroup v2": cgroup_v2,
    "no cgroups": no_cgroups,
    "the host's network": host_network,
    "a user namespace": user_namespace,
    "Kurma without CAP_SYS_RESOURCE": no_sys_resource,
}
