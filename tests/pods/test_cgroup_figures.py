"""Files of both versions of cgroups, as the kernel writes them, and what they come to."""

from __future__ import annotations

from pathlib import Path

from kurma_core.api.pods import ResourceUsage
from kurma_core.linux.cgroups import CgroupTree, Hierarchy, Layout
from kurma_core.pods.inside.usage import figures

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
