"""Limits CPU time and memory by cgroups: ``resource/cpu``, ``resource/memory``, ``os/linux/cpu-shares``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kurma_core.appc.quantity import format_quantity
from kurma_core.hookspecs.isolator import Compiled, Power
from kurma_core.models.isolator import CgroupSetting, IsolatorPlan
from kurma_isolators_linux.amounts import request_and_limit, told, whole_number

if TYPE_CHECKING:
    from kurma_core.hookspecs.isolator import IsolatorHost

CPU = "resource/cpu"
MEMORY = "resource/memory"
SHARES = "os/linux/cpu-shares"

_CPU_EXAMPLE = '{"request": "250m", "limit": "500m"}'
_MEMORY_EXAMPLE = '{"request": "1G", "limit": "2G"}'
# Minimum of a memory limit, in bytes, twice the measured need: starting an app takes memory in its cgroup, and the
# stager is in the pod's cgroup.
_LEAST_MEMORY = {"app": 4 << 20, "pod": 16 << 20}
# Microseconds: the default period; the kernel's longest, used for small quotas; and the kernel's shortest quota.
_PERIOD, _LONG_PERIOD, _SHORTEST_QUOTA = 100_000, 1_000_000, 1_000
# The kernel's minimum, maximum and default.
FEWEST_SHARES, MOST_SHARES, USUAL_SHARES = 2, 262_144, 1024
_FEWEST_WEIGHT, _MOST_WEIGHT, USUAL_WEIGHT = 1, 10_000, 100


def cpu(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """Compiles {request, limit} in cores: the request is the share when processors are busy, the limit a quota."""
    request, limit = request_and_limit(name, value, "cores", _CPU_EXAMPLE)
    version = host.cgroups.get("cpu")
    if version is None:
        return Compiled(IsolatorPlan(), "ignored", "this host has no cgroup controller cpu")
    amounts = told("millicores", request=request, limit=limit)
    notes = []
    settings: tuple[CgroupSetting, ...] = ()
    if limit is not None and version == 1 and scope == "app" and CPU in host.pod:
        # v1 refuses a child's quota above its parent's; a child without a quota has its parent's.
        _, most = request_and_limit(CPU, host.pod[CPU], "cores", _CPU_EXAMPLE)
        if most is not None and limit > most:
            notes.append(f"held to the pod's limit, {format_quantity(most, 'cores')}")
            limit = most
    if SHARES in host.siblings:
        if request != limit:
            notes.append(f"{SHARES} decides on the share")
    elif request is not None:
        settings += (_share(request, version),)
    if limit is not None and limit < host.cpus * 1000:
        settings += _quota(limit, version)
    return Compiled(IsolatorPlan(cgroup=settings), "modified" if notes else "enforced", "; ".join(notes), amounts)


def cpu_powers(name: str, value: Any, scope: str, host: IsolatorHost) -> tuple[Power, ...]:
    """Requires a grant for a pod's request of more than one core, which is a larger share than other pods have
    (:func:`cpu_shares_powers`)."""
    request, _ = request_and_limit(name, value, "cores", _CPU_EXAMPLE)
    more = request is not None and request * USUAL_SHARES // 1000 > USUAL_SHARES
    return (Power(name),) if scope == "pod" and more else ()


def _share(milli: int, version: int) -> CgroupSetting:
    """A core is worth 1024 shares, the kernel's default."""
    return share(milli * 1024 // 1000, version)


def share(shares: int, version: int) -> CgroupSetting:
    """Sets ``shares`` on v1; on v2 a proportional weight, so that twice the shares are twice the weight, and the
    default shares are the default weight."""
    shares = min(max(shares, FEWEST_SHARES), MOST_SHARES)
    if version == 1:
        return CgroupSetting("cpu", "cpu.shares", str(shares))
    weight = min(max(round(shares * USUAL_WEIGHT / USUAL_SHARES), _FEWEST_WEIGHT), _MOST_WEIGHT)
    return CgroupSetting("cpu", "cpu.weight", str(weight))


def _quota(milli: int, version: int) -> tuple[CgroupSetting, ...]:
    """Returns the settings of a quota. The caller sets no quota for all of a host's processors."""
    period = _PERIOD if milli * _PERIOD // 1000 >= _SHORTEST_QUOTA else _LONG_PERIOD
    quota = milli * period // 1000
    if version == 1:
        return (
            CgroupSetting("cpu", "cpu.cfs_period_us", str(period)),
            CgroupSetting("cpu", "cpu.cfs_quota_us", str(quota)),
        )
    return (CgroupSetting("cpu", "cpu.max", f"{quota} {period}"),)


def memory(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """Compiles {request, limit} in bytes: the kernel spares the request when memory is short; the limit includes
    swap."""
    request, limit = request_and_limit(name, value, "bytes", _MEMORY_EXAMPLE, least=_LEAST_MEMORY[scope])
    version = host.cgroups.get("memory")
    if version is None:
        return Compiled(IsolatorPlan(), "ignored", "this host has no cgroup controller memory")
    amounts = told("bytes", request=request, limit=limit)
    files = _FILES[version]
    settings: tuple[CgroupSetting, ...] = ()
    note = ""
    if limit is not None:
        settings += (CgroupSetting("memory", files["limit"], str(limit)),)
        if _counts_swap(version, host.root):
            # v1 counts memory and swap together, v2 swap alone.
            settings += (CgroupSetting("memory", files["swap"], str(limit) if version == 1 else "0"),)
        else:
            note = "this kernel does not count swap, so that more than the limit can be swapped out"
    if request is not None:
        settings += (CgroupSetting("memory", files["request"], str(request)),)
    return Compiled(IsolatorPlan(cgroup=settings), "modified" if note else "enforced", note, amounts)


_FILES = {
    1: {
        "limit": "memory.limit_in_bytes",
        "swap": "memory.memsw.limit_in_bytes",
        "request": "memory.soft_limit_in_bytes",
    },
    2: {"limit": "memory.max", "swap": "memory.swap.max", "request": "memory.low"},
}


def _counts_swap(version: int, root: str) -> bool:
    """Whether the kernel counts swap per cgroup."""
    import os

    if version == 1:
        return os.path.exists(f"{root}/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes")
    # On v2 the root cgroup has no file for swap, so the kernel's command line is read. A kernel without
    # /proc/swaps has no swap to count.
    try:
        with open(f"{root}/proc/cmdline") as file:
            off = "swapaccount=0" in file.read().split()
    except OSError:
        off = False
    return not off and os.path.exists(f"{root}/proc/swaps")


def cpu_shares_powers(name: str, value: Any, scope: str, host: IsolatorHost) -> tuple[Power, ...]:
    """Requires a grant for more shares of a pod than the default. An app's shares only count among the apps of its
    pod."""
    shares = whole_number(name, value, FEWEST_SHARES, MOST_SHARES)
    return (Power(name),) if scope == "pod" and shares > USUAL_SHARES else ()


def cpu_shares(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """Compiles the share of processor time when processors are busy; 1024 is the default."""
    shares = whole_number(name, value, FEWEST_SHARES, MOST_SHARES)
    version = host.cgroups.get("cpu")
    if version is None:
        return Compiled(IsolatorPlan(), "ignored", "this host has no cpu controller")
    setting = share(shares, version)
    plan = IsolatorPlan(cgroup=(setting,))
    means = shares if version == 1 else int(setting.value) * USUAL_SHARES / USUAL_WEIGHT
    if abs(means - shares) > shares / 10:
        note = f"cpu.weight {setting.value}, which is worth {means:.0f} shares, is the nearest"
        return Compiled(plan, "modified", note)
    return Compiled(plan)
