"""Machines on which the values of ``isolators.md`` are compiled: made up, the same wherever the test runs.

Who adds an isolator that reads the machine adds to :func:`stock` what a common machine has, and to :data:`HOSTS` a
machine that differs.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from kurma_core.hookspecs.isolator import IsolatorHost
from kurma_core.models.isolator import RLIMITS
from kurma_core.value import replace

_V1 = dict.fromkeys(("cpu", "cpuacct", "cpuset", "memory", "blkio", "pids", "devices", "freezer"), 1)
_V2 = dict.fromkeys(("cpu", "cpuset", "memory", "io", "pids"), 2)
#: Of a pod whose isolators have shared the host's PID namespace.
_SHARED = frozenset({"pid", "user"})
_EVERY_CAPABILITY = "000001ffffffffff"
#: All unlimited, but for open files and locked memory.
_LIMITS = "Limit                     Soft Limit           Hard Limit           Units     \n" + "".join(
    f"{f'Max {name}':25} {hard:<20} {hard:<20} \n"
    for name in RLIMITS
    for hard in [{"nofile": 20000, "memlock": 8388608}.get(name, "unlimited")]
)
_PROFILES = "my-profile (enforce)\nmy-draft (complain)\nopen (unconfined)\n"
_ALL_BUT_SYS_RESOURCE = "000001fffeffffff"


def stock(root: Path) -> str:
    """The files of a common machine, below ``root``."""
    write(root, "proc/self/status", f"Name:\tkurma\nCapPrm:\t{_EVERY_CAPABILITY}\n")
    write(root, "proc/self/oom_score_adj", "0\n")
    write(root, "proc/self/limits", _LIMITS)
    write(root, "proc/sys/fs/nr_open", "1048576\n")
    write(root, "proc/self/mountinfo", "1 0 8:0 / / rw - ext4 /dev/sda rw\n2 1 0:22 / /proc rw - proc proc rw\n")
    write(root, "proc/cmdline", "quiet\n")
    write(root, "proc/swaps", "")
    write(root, "sys/fs/cgroup/memory/memory.memsw.limit_in_bytes", "")
    for place in ("sys/block/sda", "sys/class/block/sda", "sys/dev/block/8:0"):
        write(root, f"{place}/dev", "8:0\n")
        write(root, f"{place}/size", "1000\n")
        write(root, f"{place}/queue/rotational", "1\n")
    write(root, "proc/sys/kernel/cap_last_cap", "40\n")
    # No kernel has both of these; the values want a machine that takes them.
    write(root, "sys/module/apparmor/parameters/enabled", "Y\n")
    write(root, "sys/kernel/security/apparmor/profiles", _PROFILES)
    write(root, "sys/fs/selinux/enforce", "1")
    # Not everybody may make a device; this one is everywhere.
    (root / "dev").mkdir(exist_ok=True)
    (root / "dev/urandom").unlink(missing_ok=True)
    (root / "dev/urandom").symlink_to("/dev/urandom")
    return str(root)


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def cgroup_v1(root: Path) -> IsolatorHost:
    return IsolatorHost(_V1, 4, root=stock(root), shared=_SHARED, pods="/var/lib/kurma/pods")


def cgroup_v2(root: Path) -> IsolatorHost:
    return IsolatorHost(_V2, 4, root=stock(root), shared=_SHARED, pods="/var/lib/kurma/pods")


def no_cgroups(root: Path) -> IsolatorHost:
    return IsolatorHost({}, 4, root=stock(root))


def no_swap_counted(root: Path) -> IsolatorHost:
    host = cgroup_v1(root)
    (root / "sys/fs/cgroup/memory/memory.memsw.limit_in_bytes").unlink()
    return host


def no_disks(root: Path) -> IsolatorHost:
    return replace(cgroup_v1(root), root=str(root / "nothing"))


def host_network(root: Path) -> IsolatorHost:
    return replace(cgroup_v1(root), host_network=True)


def host_ipc(root: Path) -> IsolatorHost:
    host = cgroup_v1(root)
    return replace(host, shared=host.shared | {"ipc"})


def user_namespace(root: Path) -> IsolatorHost:
    return replace(cgroup_v1(root), userns=True)


def no_sys_resource(root: Path) -> IsolatorHost:
    host = cgroup_v1(root)
    write(root, "proc/self/status", f"Name:\tkurma\nCapPrm:\t{_ALL_BUT_SYS_RESOURCE}\n")
    return host


def no_security_modules(root: Path) -> IsolatorHost:
    host = cgroup_v1(root)
    for place in ("sys/module/apparmor", "sys/kernel/security", "sys/fs/selinux"):
        shutil.rmtree(root / place)
    return host


def no_securityfs(root: Path) -> IsolatorHost:
    host = cgroup_v1(root)
    shutil.rmtree(root / "sys/kernel/security")
    return host


def permissive(root: Path) -> IsolatorHost:
    host = cgroup_v1(root)
    write(root, "sys/fs/selinux/enforce", "0")
    return host


#: By their names in the page. The first two are the columns of its first table.
HOSTS: dict[str, Any] = {
    "cgroup v1": cgroup_v1,
    "cgroup v2": cgroup_v2,
    "no cgroups": no_cgroups,
    "a kernel that does not count swap": no_swap_counted,
    "no block devices": no_disks,
    "the host's network": host_network,
    "the host's IPC namespace": host_ipc,
    "a user namespace": user_namespace,
    "Kurma without CAP_SYS_RESOURCE": no_sys_resource,
    "a kernel without AppArmor and SELinux": no_security_modules,
    "no securityfs": no_securityfs,
    "SELinux permissive": permissive,
}
