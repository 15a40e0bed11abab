"""Measures what pods and their apps use: CPU, memory, disk and network traffic, by cgroups and interfaces."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from kurma_core.api.pods import ResourceUsage, Usage
from kurma_core.errors import PodStateError
from kurma_core.linux.cgroups import CgroupTree, Layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kurma_core.linux.cgroups import CgroupTree
    from kurma_core.models.pod import PodRecord


_RUN = ("starting", "running", "stopping")


def usage(records: Iterable[PodRecord]) -> list[Usage]:
    """Measures those of the pods that run."""
    layout = Layout.detect()
    versions = layout.versions()
    found = []
    for record in records:
        if record.state in _RUN:
            tree = CgroupTree(f"kurma/{record.uuid}", layout)
            if tree.exists():
                found.append(_usage(record, tree, versions))
    return found


def check_measurable(record: PodRecord) -> PodRecord:
    """:raises PodStateError: the pod does not run."""
    if record.state not in _RUN:
        raise PodStateError(f"pod {record.name} uses nothing: it is {record.state}", pod=record.uuid)
    return record


def _usage(record: PodRecord, tree: CgroupTree, versions: dict[str, int]) -> Usage:
    received, sent = _traffic(record)
    return Usage(
        record.uuid,
        record.name,
        time.monotonic(),
        figures(tree, versions),
        received,
        sent,
        {
            name: figures(CgroupTree(f"{tree.name}/{group}", tree.layout), versions)
            for group, name in app_groups(record).items()
        },
    )


def app_groups(record: PodRecord) -> dict[str, str]:
    """Running apps by their cgroup, a child of the pod's. Only apps that share their cgroup with no other app; the
    cgroups' names are the stager's choice."""
    owners: dict[str, set[str]] = {}
    for app in record.apps:
        if app.pid is not None:
            for group in set(groups_of(app.pid, f"kurma/{record.uuid}")):
                owners.setdefault(group, set()).add(app.name)
    return {group: next(iter(names)) for group, names in owners.items() if len(names) == 1}


def _traffic(record: PodRecord) -> tuple[int | None, int | None]:
    """Bytes received and sent by the pod, from the ``net/dev`` of its stager, which is in its network
    namespace."""
    if record.network_namespace is None or record.stager_pid is None:
        return None, None
    names = {attachment.interface for attachment in record.attachments} - {"lo"}
    try:
        # By descriptor: it never refers to another process that gets the same PID.
        process = os.open(f"/proc/{record.stager_pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            inside, pinned = os.stat("ns/net", dir_fd=process), os.stat(record.network_namespace)
            if (inside.st_dev, inside.st_ino) != (pinned.st_dev, pinned.st_ino):
                return None, None
            with open("net/dev", opener=lambda path, flags: os.open(path, flags, dir_fd=process)) as file:
                lines = [line.partition(":") for line in file]
        finally:
            os.close(process)
    except OSError:
        return None, None  # the stager has just ended
    counts = [values.split() for name, _, values in lines if name.strip() in names]
    return sum(int(one[0]) for one in counts), sum(int(one[8]) for one in counts)


#: cgroup v1 reports "no limit" as a number above this one.
_ENDLESS = 1 << 60


def figures(tree: CgroupTree, versions: dict[str, int]) -> ResourceUsage:
    """Reads the resource usage of a cgroup.

    :param versions: cgroup versions by controller.
    """
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
    # cgroup v2 counts CPU time even without the cpu controller.
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
    """The children of the cgroup ``name`` that the process is in or below, on each hierarchy.

    Empty if the process is in that cgroup itself or in another one, or has ended.
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
