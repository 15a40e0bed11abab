"""Sets a cgroup's limits as the kernel has them: ``kurma.io/linux-resources``, one object for processors, memory,
huge pages, processes and files of cgroup v2.

Unlike ``resource/cpu`` and ``resource/memory`` it has no minimum of its own, and a limit of memory leaves swap
alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kurma_core.errors import IsolatorError
from kurma_core.hookspecs.isolator import Compiled, Power
from kurma_core.models.isolator import CgroupSetting, IsolatorPlan
from kurma_core.schema import SchemaError, describe
from kurma_isolators_linux.amounts import amount, members
from kurma_isolators_linux.resources import CPU, MEMORY, SHARES, USUAL_SHARES, share

if TYPE_CHECKING:
    from kurma_core.hookspecs.isolator import IsolatorHost

NAME = "kurma.io/linux-resources"
#: Members that are one whole number, and those among them that may be -1: unlimited.
_NUMBERS = ("cpuPeriod", "cpuQuota", "cpuShares", "memoryLimit", "memorySwapLimit", "pidsLimit")
_UNLIMITED = ("cpuQuota", "memoryLimit", "memorySwapLimit", "pidsLimit")
_BYTES = ("memoryLimit", "memorySwapLimit")
_SETS = ("cpusetCpus", "cpusetMems")
MEMBERS = (*_NUMBERS, *_SETS, "hugepageLimits", "unified", "oomScoreAdj")
_EXAMPLE = '{"cpuQuota": 50000, "cpuPeriod": 100000, "memoryLimit": 67108864}'
#: The kernel's default period, in microseconds.
_PERIOD = 100_000
_MOST = (1 << 63) - 1
_KIB = {"KB": 1, "MB": 1 << 10, "GB": 1 << 20}
#: The isolators that set the same, by member.
_SAME = {
    "cpuPeriod": (CPU,),
    "cpuQuota": (CPU,),
    "cpuShares": (CPU, SHARES),
    "memoryLimit": (MEMORY,),
    "memorySwapLimit": (MEMORY,),
    "oomScoreAdj": ("os/linux/oom-score-adj",),
}


def linux_resources(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """Compiles the settings of a cgroup. 0, an empty text and null leave a setting as it is; -1 is no limit."""
    given = parsed(name, value)
    _refuse_doubles(given, host)
    found: list[CgroupSetting] = []
    lacking: list[str] = []
    for controller, of_it, settings in (
        ("cpu", ("cpuPeriod", "cpuQuota", "cpuShares"), _cpu),
        ("memory", _BYTES, _memory),
        ("cpuset", _SETS, _cpuset),
        ("pids", ("pidsLimit",), _pids),
        ("hugetlb", ("hugepageLimits",), _huge_pages),
    ):
        wanted = {key: given[key] for key in of_it if key in given}
        version = host.cgroups.get(controller)
        if wanted and version is None:
            keys = ", ".join(wanted)
            lacking.append(f"this host has no cgroup controller {controller}, so {keys} has no effect")
        elif wanted and version is not None:
            more, notes = settings(name, wanted, version, host)
            found += more
            lacking += notes
    more, notes = _unified(name, given.get("unified", {}), host)
    found += more
    lacking += notes
    score = None
    if "oomScoreAdj" in given:
        from kurma_isolators_linux.processes import oom_score_adj

        compiled = oom_score_adj(name, given["oomScoreAdj"], scope, host)
        score = compiled.plan.oom_score_adj
        lacking += [compiled.note] if compiled.note else []
    # A pod has no process of its own that has a score: each of its apps gets it.
    own, each = (None, score) if scope == "pod" else (score, None)
    plan = IsolatorPlan(cgroup=tuple(found), oom_score_adj=own)
    apps = None if each is None else IsolatorPlan(oom_score_adj=each)
    outcome = "enforced" if not lacking else "modified" if found or score is not None else "ignored"
    return Compiled(plan, outcome, "; ".join(lacking), apps=apps)


def powers(name: str, value: Any, scope: str, host: IsolatorHost) -> tuple[Power, ...]:
    """Requires a grant for what the single isolators require one: more than the usual processes of an app, a
    greater share of a pod, and an OOM score below Kurma's."""
    from kurma_isolators_linux.driver import PIDS
    from kurma_isolators_linux.processes import oom_score_adj_powers

    given = parsed(name, value)
    pids, score = given.get("pidsLimit", 0), given.get("oomScoreAdj")
    more = scope == "app" and (pids < 0 or pids > PIDS)
    more = more or (scope == "pod" and given.get("cpuShares", 0) > USUAL_SHARES)
    more = more or (score is not None and bool(oom_score_adj_powers(name, score, scope, host)))
    # A file of cgroup v2 may hold any of these.
    more = more or any(file in ("pids.max", "cpu.weight") for file in given.get("unified", {}))
    return (Power(name),) if more else ()


def changed(name: str, before: Any, value: Any) -> dict[str, Any]:
    """The value after an update: members that are 0, empty or missing stay as they were."""
    old, new = parsed(name, before), parsed(name, value)
    found = {**old, **new}
    for key, word in (("hugepageLimits", "pageSize"),):
        if key in old and key in new:
            sizes = {one[word]: one for one in (*old[key], *new[key])}
            found[key] = list(sizes.values())
    if "unified" in old and "unified" in new:
        found["unified"] = {**old["unified"], **new["unified"]}
    return found


def parsed(name: str, value: Any) -> dict[str, Any]:
    """Checks a value. :returns: its members that say something.

    :raises IsolatorError: the value is wrong.
    """
    given = members(name, value, MEMBERS, _EXAMPLE)
    found: dict[str, Any] = {}
    for key, one in given.items():
        if key in _NUMBERS:
            number = _number(name, given, key)
            if number:
                found[key] = number
        elif key in _SETS:
            if _list(name, key, one):
                found[key] = one
        elif key == "hugepageLimits":
            if sizes := _sizes(name, one):
                found[key] = sizes
        elif key == "unified":
            if files := _files(name, one):
                found[key] = files
        else:
            found[key] = _whole(name, key, one, -1000, 1000)
    return found


def _number(name: str, given: Mapping[str, Any], key: str) -> int:
    if key in _BYTES and isinstance(given[key], str):
        return amount(name, given, key, "bytes") or 0
    return _whole(name, key, given[key], -1 if key in _UNLIMITED else 0, _MOST)


def _whole(name: str, key: str, value: Any, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise IsolatorError(
            f"isolator {name}: {key}: expected a whole number from {least} to {most}, got {describe(value)}"
        )
    return value


def _list(name: str, key: str, value: Any) -> str:
    """A list of processors or memory nodes, such as ``0-3,6``."""
    if not isinstance(value, str) or not set(value) <= set("0123456789,-"):
        raise IsolatorError(f"isolator {name}: {key}: expected a list such as 0-3,6, got {describe(value)}")
    return value


def _sizes(name: str, value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise IsolatorError(f"isolator {name}: hugepageLimits: expected a list, got {describe(value)}")
    for one in value:
        if not isinstance(one, Mapping) or set(one) != {"pageSize", "limit"} or _kib(one["pageSize"]) is None:
            wanted = '{"pageSize": "2MB", "limit": 4194304}'
            raise IsolatorError(f"isolator {name}: hugepageLimits: expected {wanted}, got {describe(one)}")
        _whole(name, "limit", one["limit"], 0, (1 << 64) - 1)
    return [dict(one) for one in value]


def _kib(size: Any) -> int | None:
    """The size of a page such as ``2MB`` in KiB, as the kernel counts; None: not a size."""
    text = size if isinstance(size, str) else ""
    number, factor = text[:-2], _KIB.get(text[-2:])
    return int(number) * factor if factor and number.isascii() and number.isdecimal() and len(number) < 8 else None


def _files(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(one, str) for one in value.values()):
        wanted = '{"memory.high": "67108864"}'
        raise IsolatorError(f"isolator {name}: unified: expected texts by file such as {wanted}")
    return dict(value)


def _refuse_doubles(given: Mapping[str, Any], host: IsolatorHost) -> None:
    """:raises IsolatorError: another isolator of the same app or pod sets the same."""
    for key, names in _SAME.items():
        both = next((one for one in names if one in host.siblings), None)
        if key in given and both is not None:
            raise IsolatorError(
                f"isolator {NAME}: {key} contradicts isolator {both}", hint="set it by one of the two"
            )


_Settings = tuple[list[CgroupSetting], list[str]]


def _cpu(name: str, given: Mapping[str, int], version: int, host: IsolatorHost) -> _Settings:
    found = []
    period, quota = given.get("cpuPeriod"), given.get("cpuQuota")
    if "cpuShares" in given:
        found.append(share(given["cpuShares"], version))
    if version == 1:
        found += [CgroupSetting("cpu", "cpu.cfs_period_us", str(period))] if period else []
        found += [CgroupSetting("cpu", "cpu.cfs_quota_us", str(quota))] if quota else []
    elif period or quota:
        most = "max" if quota is None or quota < 0 else str(quota)
        found.append(CgroupSetting("cpu", "cpu.max", f"{most} {period or _PERIOD}"))
    return found, []


def _memory(name: str, given: Mapping[str, int], version: int, host: IsolatorHost) -> _Settings:
    from kurma_isolators_linux.resources import _FILES, _counts_swap

    limit, both = given.get("memoryLimit"), given.get("memorySwapLimit")
    if both is not None and both > 0 and (limit is None or limit < 0 or limit > both):
        raise IsolatorError(
            f"isolator {name}: memorySwapLimit {both} is for memory and swap together, so it needs a memoryLimit "
            "that is not greater"
        )
    files = _FILES[version]
    most = "-1" if version == 1 else "max"
    found = []
    if limit is not None:
        found.append(CgroupSetting("memory", files["limit"], most if limit < 0 else str(limit)))
    if both is None:
        return found, []
    if not _counts_swap(version, host.root):
        return found, ["this kernel does not count swap, so memorySwapLimit has no effect"]
    swap = both if version == 1 else both - (limit or 0)
    found.append(CgroupSetting("memory", files["swap"], most if both < 0 else str(swap)))
    return found, []


def _cpuset(name: str, given: Mapping[str, str], version: int, host: IsolatorHost) -> _Settings:
    files = {"cpusetCpus": "cpuset.cpus", "cpusetMems": "cpuset.mems"}
    return [CgroupSetting("cpuset", files[key], value) for key, value in given.items()], []


def _pids(name: str, given: Mapping[str, int], version: int, host: IsolatorHost) -> _Settings:
    limit = given["pidsLimit"]
    return [CgroupSetting("pids", "pids.max", "max" if limit < 0 else str(limit))], []


def _huge_pages(name: str, given: Mapping[str, Any], version: int, host: IsolatorHost) -> _Settings:
    found, notes = [], []
    for one in given["hugepageLimits"]:
        size = one["pageSize"]
        if not os.path.isdir(f"{host.root}/sys/kernel/mm/hugepages/hugepages-{_kib(size)}kB"):
            notes.append(f"this kernel has no huge pages of {size}")
            continue
        file = f"hugetlb.{size}.{'limit_in_bytes' if version == 1 else 'max'}"
        found.append(CgroupSetting("hugetlb", file, str(one["limit"])))
    return found, notes


def _unified(name: str, files: Mapping[str, str], host: IsolatorHost) -> _Settings:
    """:raises IsolatorError: the file's controller is one of cgroup v1 on this host, or the file holds no
    setting."""
    found, notes = [], []
    for file, text in files.items():
        controller = file.partition(".")[0]
        version = host.cgroups.get(controller)
        if version == 1 or (version is None and 1 in host.cgroups.values()):
            raise IsolatorError(f"isolator {name}: unified: {file} is a file of cgroup v2, and this host has v1")
        if version is None:
            notes.append(f"this host has no cgroup controller {controller}, so {file} has no effect")
            continue
        try:
            found.append(CgroupSetting.from_json({"controller": controller, "file": file, "value": text}))
        except SchemaError as error:
            raise IsolatorError(f"isolator {name}: unified: {error}") from None
    return found, notes
