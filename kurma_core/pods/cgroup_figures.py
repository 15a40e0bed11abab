"""What a cgroup has used, as either version of cgroups counts it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.api.pods import ResourceUsage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kurma_core.linux.cgroups import CgroupTree

#: A limit from which on v1 means that there is none.
_ENDLESS = 1 << 60


def figures(tree: CgroupTree, versions: dict[str, int]) -> ResourceUsage:
    """:param versions: of cgroups, by controller."""
    old = versions.get("memory") == 1
    limit = _number(tree, "memory", "memory.limit_in_bytes" if old else "memory.max")
    read, written = _blocks(tree, versions)
    return ResourceUsage(
        _number(tree, "memory", "memory.usage_in_bytes" if old else "memory.current"),
        _word(tree, "memory", "memory.stat", "total_inactive_file" if old else "inactive_file"),
        limit if limit is not None and limit < _ENDLESS else None,
        _cpu(tree, versions),
        _number(tree, "pids", "pids.current"),
        _number(tree, "pids", "pids.max"),
        read,
        written,
    )


def _cpu(tree: CgroupTree, versions: dict[str, int]) -> float | None:
    if versions.get("cpuacct") == 1:
        nanoseconds = _number(tree, "cpuacct", "cpuacct.usage")
        return None if nanoseconds is None else nanoseconds / 1e9
    # v2 counts this, whether or not it has the controller.
    microseconds = _word(tree, "cgroup", "cpu.stat", "usage_usec")
    return None if microseconds is None else microseconds / 1e6


def _blocks(tree: CgroupTree, versions: dict[str, int]) -> tuple[int | None, int | None]:
    """Bytes read and written, of all devices together."""
    if versions.get("blkio") == 1:
        lines = _lines(tree, "blkio", "blkio.throttle.io_service_bytes_recursive")
        if lines is None:
            return None, None
        # 8:0 Read 4096
        words = [line.split() for line in lines]
        read, written = (
            sum(int(word[2]) for word in words if len(word) == 3 and word[1] == what) for what in ("Read", "Write")
        )
        return read, written
    lines = _lines(tree, "io", "io.stat")
    if lines is None:
        return None, None
    # 8:0 rbytes=4096 wbytes=0 rios=1 …
    pairs = [pair.partition("=") for line in lines for pair in line.split()[1:]]
    read, written = (sum(int(value) for key, _, value in pairs if key == what) for what in ("rbytes", "wbytes"))
    return read, written


def _word(tree: CgroupTree, controller: str, file: str, word: str) -> int | None:
    for line in _lines(tree, controller, file) or ():
        name, _, value = line.partition(" ")
        if name == word:
            return int(value)
    return None


def _number(tree: CgroupTree, controller: str, file: str) -> int | None:
    text = "".join(_lines(tree, controller, file) or ())
    return int(text) if text.isdigit() else None


def _lines(tree: CgroupTree, controller: str, file: str) -> list[str] | None:
    try:
        return tree.read(controller, file).splitlines()
    except OSError:
        return None  # the host has no such controller, or the pod has just ended


def groups_of(pid: int, name: str) -> Iterator[str]:
    """The children of the cgroup ``name`` that the process is in or below, on each hierarchy where it is.

    Nothing: it is in that cgroup itself, or in another; or it has ended.
    """
    try:
        with open(f"/proc/{pid}/cgroup", errors="surrogateescape") as file:
            paths = [line.rstrip("\n").split(":", 2)[2] for line in file]
    except OSError:
        return
    for path in paths:
        _, found, below = path.partition(f"/{name}/")
        if found and below:
            yield below.split("/", 1)[0]
