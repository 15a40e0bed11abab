"""Measures a pod or app in detail: throttling, pressure, parts of its memory, devices, processes, files.

Both versions of cgroups have most of the values, in files and units of their own. A value that the host's version
lacks is None.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from kurma_core.api.usage_details import (
    DeviceUsage,
    HugePageUsage,
    Pressure,
    PressureUsage,
    UsageDetails,
)
from kurma_core.image_store.durable import Usage as DiskUsage
from kurma_core.linux.cgroups import CgroupTree

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kurma_core.linux.cgroups import Layout

#: cgroup v1 reports "no limit" as a number above this one.
ENDLESS = 1 << 60
#: Units of ``cpuacct.stat``.
_TICKS = os.sysconf("SC_CLK_TCK")
#: Sizes of huge pages, as the names of cgroup files have them.
_PAGES = ("64KB", "1MB", "2MB", "16MB", "32MB", "512MB", "1GB", "16GB")


class CachedTree(CgroupTree):
    """Reads each file of a cgroup once: several values come from the same file."""

    __slots__ = ("_read",)

    def __init__(self, name: str, layout: Layout | None = None) -> None:
        super().__init__(name, layout)
        self._read: dict[tuple[str, str], str | OSError] = {}

    def read(self, controller: str, file: str) -> str:
        """See :meth:`CgroupTree.read`."""
        found = self._read.get((controller, file))
        if found is None:
            try:
                found = super().read(controller, file)
            except OSError as error:
                found = error
            self._read[controller, file] = found
        if isinstance(found, OSError):
            raise found
        return found


class Files:
    """Reads the files of one cgroup. Files that the host lacks are empty.

    :param versions: cgroup versions by controller.
    """

    def __init__(self, tree: CgroupTree, versions: dict[str, int]) -> None:
        self.tree = tree
        self._versions = versions

    def is_v1(self, controller: str) -> bool:
        return self._versions.get(controller) == 1

    def lines(self, controller: str, file: str) -> list[str] | None:
        """None: there is no such file."""
        try:
            return self.tree.read(controller, file).splitlines()
        except OSError:
            return None  # the host has no such controller, or the pod has just ended

    def number(self, controller: str, file: str) -> int | None:
        text = "".join(self.lines(controller, file) or ())
        return int(text) if text.isdigit() else None

    def words(self, controller: str, file: str) -> dict[str, int]:
        """The values of a file with a word and a number on each line."""
        found = {}
        for line in self.lines(controller, file) or ():
            name, _, value = line.partition(" ")
            if value.isdigit():
                found[name] = int(value)
        return found


def details(files: Files, pids: Iterable[int], main: int | None, writable: str | None) -> UsageDetails:
    """Measures one cgroup, with all below it.

    :param pids: its processes. :param main: PID of the app's main process; None: of a pod.
    :param writable: directory with the files that the app has written; None: it is not known.
    """
    cpu = _cpu_v1(files) if files.is_v1("cpuacct") or files.is_v1("cpu") else _cpu_v2(files)
    memory = _memory_v1(files) if files.is_v1("memory") else _memory_v2(files)
    disk = DiskUsage()
    written = None if writable is None else disk.add(writable)
    return UsageDetails(
        **cpu,
        **memory,
        **_processes(pids),
        open_files_limit=None if main is None else _open_files_limit(main),
        huge_pages=_huge_pages(files),
        devices=_devices(files),
        cpu_pressure=_pressure(files, "cpu"),
        memory_pressure=_pressure(files, "memory"),
        io_pressure=_pressure(files, "io"),
        written=written,
        written_files=None if written is None else disk.files,
    )


# -- processors --


def _cpu_v1(files: Files) -> dict[str, Any]:
    ticks, stat = files.words("cpuacct", "cpuacct.stat"), files.words("cpu", "cpu.stat")
    quota = "".join(files.lines("cpu", "cpu.cfs_quota_us") or ())
    return {
        "cpu_user": _scaled(ticks.get("user"), _TICKS),
        "cpu_system": _scaled(ticks.get("system"), _TICKS),
        "cpu_periods": stat.get("nr_periods"),
        "cpu_throttled_periods": stat.get("nr_throttled"),
        "cpu_throttled": _scaled(stat.get("throttled_time"), 1e9),
        "cpu_period": files.number("cpu", "cpu.cfs_period_us"),
        "cpu_quota": int(quota) if quota.isdigit() else None,
        "cpu_shares": files.number("cpu", "cpu.shares"),
    }


def _cpu_v2(files: Files) -> dict[str, Any]:
    stat = files.words("cgroup", "cpu.stat")
    quota, _, period = "".join(files.lines("cpu", "cpu.max") or ()).partition(" ")
    weight = files.number("cpu", "cpu.weight")
    return {
        "cpu_user": _scaled(stat.get("user_usec"), 1e6),
        "cpu_system": _scaled(stat.get("system_usec"), 1e6),
        "cpu_periods": stat.get("nr_periods"),
        "cpu_throttled_periods": stat.get("nr_throttled"),
        "cpu_throttled": _scaled(stat.get("throttled_usec"), 1e6),
        "cpu_period": int(period) if period.isdigit() else None,
        "cpu_quota": int(quota) if quota.isdigit() else None,
        # The inverse of the conversion by which shares become a weight.
        "cpu_shares": None if weight is None else 2 + (weight - 1) * 262142 // 9999,
    }


def _scaled(value: int | None, unit: float) -> float | None:
    return None if value is None else value / unit


# -- memory --


def _memory_v1(files: Files) -> dict[str, Any]:
    stat = files.words("memory", "memory.stat")
    return {
        "memory_cache": stat.get("total_cache"),
        "memory_anonymous": stat.get("total_rss"),
        "memory_mapped": stat.get("total_mapped_file"),
        "memory_kernel": files.number("memory", "memory.kmem.usage_in_bytes"),
        "memory_peak": files.number("memory", "memory.max_usage_in_bytes"),
        "memory_limit_hits": files.number("memory", "memory.failcnt"),
        "memory_reservation": _bounded(files.number("memory", "memory.soft_limit_in_bytes")),
        "page_faults": stat.get("total_pgfault"),
        "major_page_faults": stat.get("total_pgmajfault"),
        "swap": stat.get("total_swap"),
        "swap_limit": _swap_limit_v1(files),
        "oom_kills": files.words("memory", "memory.oom_control").get("oom_kill"),
    }


def _swap_limit_v1(files: Files) -> int | None:
    """cgroup v1 limits memory and swap together."""
    both = _bounded(files.number("memory", "memory.memsw.limit_in_bytes"))
    memory = _bounded(files.number("memory", "memory.limit_in_bytes"))
    return None if both is None or memory is None else max(0, both - memory)


def _memory_v2(files: Files) -> dict[str, Any]:
    stat, events = files.words("memory", "memory.stat"), files.words("memory", "memory.events")
    return {
        "memory_cache": stat.get("file"),
        "memory_anonymous": stat.get("anon"),
        "memory_mapped": stat.get("file_mapped"),
        "memory_kernel": stat.get("kernel", _sum(stat.get("kernel_stack"), stat.get("slab"))),
        "memory_peak": files.number("memory", "memory.peak"),
        "memory_limit_hits": events.get("max"),
        "memory_reservation": files.number("memory", "memory.low") or None,
        "page_faults": stat.get("pgfault"),
        "major_page_faults": stat.get("pgmajfault"),
        "swap": files.number("memory", "memory.swap.current"),
        "swap_limit": files.number("memory", "memory.swap.max"),
        "oom_kills": events.get("oom_kill"),
    }


def _sum(*values: int | None) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _bounded(value: int | None) -> int | None:
    return value if value is not None and value < ENDLESS else None


def _huge_pages(files: Files) -> dict[str, HugePageUsage]:
    """By the size of a page, as the kernel writes it: ``2MB``."""
    found = {}
    for size in _PAGES:
        if files.is_v1("hugetlb"):
            used = files.number("hugetlb", f"hugetlb.{size}.usage_in_bytes")
            most = files.number("hugetlb", f"hugetlb.{size}.max_usage_in_bytes")
        else:
            used, most = files.number("hugetlb", f"hugetlb.{size}.current"), None
        if used is not None:
            found[size] = HugePageUsage(used, most)
    return found


# -- block devices and pressure --


def _devices(files: Files) -> tuple[DeviceUsage, ...]:
    counts: dict[str, dict[str, int]] = {}
    if files.is_v1("blkio"):
        for file, keys in (
            ("blkio.throttle.io_service_bytes_recursive", {"Read": "rbytes", "Write": "wbytes"}),
            ("blkio.throttle.io_serviced_recursive", {"Read": "rios", "Write": "wios"}),
        ):
            for line in files.lines("blkio", file) or ():
                words = line.split()  # 8:0 Read 4096
                if len(words) == 3 and words[1] in keys:
                    counts.setdefault(words[0], {})[keys[words[1]]] = int(words[2])
    else:
        for line in files.lines("io", "io.stat") or ():
            device, *pairs = line.split()  # 8:0 rbytes=4096 wbytes=0 rios=1 …
            parts = [pair.partition("=") for pair in pairs]
            counts[device] = {key: int(value) for key, _, value in parts if value.isdigit()}
    return tuple(
        DeviceUsage(device, one.get("rbytes", 0), one.get("wbytes", 0), one.get("rios", 0), one.get("wios", 0))
        for device, one in sorted(counts.items())
    )


def _pressure(files: Files, resource: str) -> PressureUsage | None:
    parsed = {}
    for line in files.lines("cgroup", f"{resource}.pressure") or ():
        kind, *pairs = line.split()  # some avg10=0.00 avg60=0.00 avg300=0.00 total=0
        parsed[kind] = {key: value for key, _, value in (pair.partition("=") for pair in pairs)}
    if "some" not in parsed:
        return None
    return PressureUsage(_stall(parsed["some"]), _stall(parsed.get("full", {})))


def _stall(values: dict[str, str]) -> Pressure:
    averages = [float(values.get(name, 0)) for name in ("avg10", "avg60", "avg300")]
    return Pressure(int(values.get("total", 0)) / 1e6, *averages)


# -- processes --


def _processes(pids: Iterable[int]) -> dict[str, Any]:
    processes = threads = descriptors = sockets = 0
    for pid in pids:
        try:
            threads += len(os.listdir(f"/proc/{pid}/task"))
            for name in os.listdir(f"/proc/{pid}/fd"):
                descriptors += 1
                try:
                    sockets += os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:")
                except OSError:
                    continue  # it was closed meanwhile
        except OSError:
            continue  # it has just ended
        processes += 1
    return {"processes": processes, "threads": threads, "descriptors": descriptors, "sockets": sockets}


def _open_files_limit(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/limits") as file:
            words = next((line.split() for line in file if line.startswith("Max open files")), [])
    except OSError:
        return None
    return int(words[3]) if len(words) > 3 and words[3].isdigit() else None


# -- files --


def writable_layer(pid: int, pod_directory: str) -> str | None:
    """The directory on the host with the files that an app has written, from the mount of its root.

    :param pid: of its main process. :param pod_directory: the pod's directory, whose ``pod`` is the stager's
        ``/pod``.
    :returns: None: the root is no overlay of the stager's, or the app has ended.
    """
    try:
        with open(f"/proc/{pid}/mountinfo", errors="surrogateescape") as file:
            lines = [line.split() for line in file]
    except OSError:
        return None
    for words in lines:
        separator = words.index("-")
        if words[4] == "/" and words[separator + 1] == "overlay":
            for option in words[separator + 3].split(","):
                key, _, value = option.partition("=")
                if key == "upperdir" and value.startswith("/pod/"):
                    # The stager chooses it: it must not lead elsewhere by links.
                    found = pod_directory + value
                    return found if os.path.realpath(found) == found else None
    return None
