"""Files of both versions of cgroups, as the kernel writes them, and what they come to."""

from __future__ import annotations

from pathlib import Path

from kurma_core.api.pods import ResourceUsage
from kurma_core.api.usage_details import DeviceUsage, HugePageUsage, Pressure, PressureUsage, UsageDetails
from kurma_core.linux.cgroups import CgroupTree, Hierarchy, Layout
from kurma_core.pods.inside.usage import figures
from kurma_core.pods.inside.usage_details import Files, details
from kurma_core.value import fields, replace

V2 = {
    "memory.current": "8192\n",
    "memory.stat": "anon 1\nfile 2\ninactive_file 4096\n",
    "memory.max": "max\n",
    "cpu.stat": "usage_usec 1500000\nuser_usec 1\nsystem_usec 2\n",
    "pids.current": "3\n",
    "pids.max": "50\n",
    "io.stat": "8:0 rbytes=100 wbytes=20 rios=1 wios=1 dbytes=7 dios=0\n8:16 rbytes=5 wbytes=0 rios=1 wios=1\n",
}
V1 = {
    "memory": {
        "memory.usage_in_bytes": "8192\n",
        "memory.limit_in_bytes": "9223372036854771712\n",
        "memory.stat": "cache 1\ninactive_file 1\ntotal_inactive_file 4096\n",
    },
    "cpuacct": {"cpuacct.usage": "1500000000\n"},
    "pids": {"pids.current": "3\n", "pids.max": "max\n"},
    "blkio": {
        "blkio.throttle.io_service_bytes_recursive": "8:0 Read 100\n8:0 Write 20\n8:0 Sync 120\n8:0 Total 120\n"
        "8:16 Read 5\n8:16 Write 0\n8:16 Total 5\nTotal 125\n"
    },
}


def written(directory: Path, files: dict[str, str]) -> str:
    group = directory / "kurma" / "x"
    group.mkdir(parents=True)
    for name, text in files.items():
        (group / name).write_text(text)
    return str(directory)


def test_version_2(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu io memory pids\n")
    layout = Layout([Hierarchy(2, (), written(tmp_path, V2), ".")])
    tree = CgroupTree("kurma/x", layout)
    assert figures(tree, layout.versions()) == ResourceUsage(8192, 4096, None, 1.5, 3, 50, 105, 20)
    (tmp_path / "kurma" / "x" / "memory.max").write_text("65536\n")
    assert figures(tree, layout.versions()).memory_limit == 65536


def test_version_1(tmp_path: Path) -> None:
    layout = Layout([Hierarchy(1, (name,), written(tmp_path / name, files), name) for name, files in V1.items()])
    tree = CgroupTree("kurma/x", layout)
    assert figures(tree, layout.versions()) == ResourceUsage(8192, 4096, None, 1.5, 3, None, 105, 20)
    (tmp_path / "memory/kurma/x/memory.limit_in_bytes").write_text("65536\n")
    assert figures(tree, layout.versions()).memory_limit == 65536


def test_what_a_host_does_not_count_is_not_known(tmp_path: Path) -> None:
    """Version 2 without controllers, as beside those of version 1: time of processors it counts all the same."""
    (tmp_path / "cgroup.controllers").write_text("\n")
    written(tmp_path, {"cpu.stat": V2["cpu.stat"]})
    layout = Layout([Hierarchy(2, (), str(tmp_path), ".")])
    known = figures(CgroupTree("kurma/x", layout), layout.versions())
    assert known == ResourceUsage(None, None, None, 1.5, None, None, None, None)
    assert figures(CgroupTree("kurma/gone", layout), layout.versions()).cpu is None


PRESSURE = """some avg10=1.50 avg60=0.25 avg300=0.00 total=2500000
full avg10=0.50 avg60=0.00 avg300=0.00 total=1000000
"""
_SEEN = {"huge_pages": {}, "devices": (), **dict.fromkeys(("processes", "threads", "descriptors", "sockets"), 0)}
NOTHING: UsageDetails = UsageDetails(**{each.name: _SEEN.get(each.name) for each in fields(UsageDetails)})


def measured(tree: CgroupTree, layout: Layout) -> UsageDetails:
    return details(Files(tree, layout.versions()), (), None, None)


def test_details_of_version_2(tmp_path: Path) -> None:
    files = {
        "cpu.stat": "usage_usec 3\nuser_usec 1500000\nsystem_usec 250000\nnr_periods 9\nnr_throttled 4\n"
        "throttled_usec 500000\n",
        "cpu.max": "50000 100000\n",
        "cpu.weight": "39\n",
        "cpu.pressure": PRESSURE,
        "memory.stat": "anon 100\nfile 50\nkernel 7\nfile_mapped 20\npgfault 11\npgmajfault 2\n",
        "memory.events": "low 0\nhigh 0\nmax 5\noom 1\noom_kill 1\n",
        "memory.peak": "4096\n",
        "memory.low": "0\n",
        "memory.swap.current": "64\n",
        "memory.swap.max": "max\n",
        "hugetlb.2MB.current": "2097152\n",
        "io.stat": "8:0 rbytes=100 wbytes=20 rios=3 wios=1 dbytes=7 dios=0\n",
    }
    (tmp_path / "cgroup.controllers").write_text("cpu hugetlb io memory\n")
    layout = Layout([Hierarchy(2, (), written(tmp_path, files), ".")])
    assert measured(CgroupTree("kurma/x", layout), layout) == replace(
        NOTHING,
        cpu_user=1.5, cpu_system=0.25, cpu_periods=9, cpu_throttled_periods=4, cpu_throttled=0.5,
        cpu_period=100000, cpu_quota=50000, cpu_shares=998,
        cpu_pressure=PressureUsage(Pressure(2.5, 1.5, 0.25, 0.0), Pressure(1.0, 0.5, 0.0, 0.0)),
        memory_cache=50, memory_anonymous=100, memory_mapped=20, memory_kernel=7, memory_peak=4096,
        memory_limit_hits=5, page_faults=11, major_page_faults=2, swap=64, oom_kills=1,
        huge_pages={"2MB": HugePageUsage(2 << 20, None)}, devices=(DeviceUsage("8:0", 100, 20, 3, 1),),
    )  # fmt: skip


def test_details_of_version_1(tmp_path: Path) -> None:
    hierarchies = {
        "cpuacct": {"cpuacct.stat": "user 150\nsystem 25\n"},
        "cpu": {
            "cpu.stat": "nr_periods 9\nnr_throttled 4\nthrottled_time 500000000\n",
            "cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n", "cpu.shares": "512\n",
        },
        "memory": {
            "memory.stat": "cache 1\ntotal_cache 50\ntotal_rss 100\ntotal_mapped_file 20\ntotal_swap 64\n"
            "total_pgfault 11\ntotal_pgmajfault 2\n",
            "memory.limit_in_bytes": "1000\n", "memory.memsw.limit_in_bytes": "1500\n",
            "memory.soft_limit_in_bytes": "9223372036854771712\n", "memory.failcnt": "5\n",
            "memory.max_usage_in_bytes": "4096\n", "memory.kmem.usage_in_bytes": "7\n",
            "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
        },
        "hugetlb": {"hugetlb.2MB.usage_in_bytes": "0\n", "hugetlb.2MB.max_usage_in_bytes": "2097152\n"},
        "blkio": {
            **V1["blkio"], "blkio.throttle.io_serviced_recursive": "8:0 Read 3\n8:0 Write 1\nTotal 4\n",
        },
    }  # fmt: skip
    layout = Layout(
        [Hierarchy(1, (name,), written(tmp_path / name, files), name) for name, files in hierarchies.items()]
    )
    assert measured(CgroupTree("kurma/x", layout), layout) == replace(
        NOTHING,
        cpu_user=1.5, cpu_system=0.25, cpu_periods=9, cpu_throttled_periods=4, cpu_throttled=0.5,
        cpu_period=100000, cpu_shares=512,
        memory_cache=50, memory_anonymous=100, memory_mapped=20, memory_kernel=7, memory_peak=4096,
        memory_limit_hits=5, page_faults=11, major_page_faults=2, swap=64, swap_limit=500, oom_kills=1,
        huge_pages={"2MB": HugePageUsage(0, 2 << 20)},
        devices=(DeviceUsage("8:0", 100, 20, 3, 1), DeviceUsage("8:16", 5, 0, 0, 0)),
    )  # fmt: skip


def test_details_of_a_host_that_counts_nothing(tmp_path: Path) -> None:
    layout = Layout([])
    assert measured(CgroupTree("kurma/x", layout), layout) == NOTHING
