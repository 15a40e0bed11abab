"""Measures what pods and their apps use (``kurma stats``): CPU, memory, disk and network traffic, by cgroups and
interfaces; lists their processes, as the host sees them (``kurma top``)."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from kurma_core.api.pods import Process, ResourceUsage, Usage
from kurma_core.api.usage_details import InterfaceUsage
from kurma_core.errors import PodStateError
from kurma_core.linux.cgroups import CgroupTree, Layout
from kurma_core.pods.record.pod_record import the_app
from kurma_core.pods.record.state import STARTED_STATES
from kurma_core.value import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kurma_core.models.pod import PodRecord
    from kurma_core.pods.record.pod_store import PodStore


def usage(records: Iterable[PodRecord], store: PodStore | None = None) -> list[Usage]:
    """Measures those of the pods that run.

    :param store: the pods' directories, to measure details as well; None: without details.
    """
    layout = Layout.detect()
    versions = layout.versions()
    found = []
    for record in records:
        if record.state in STARTED_STATES:
            tree = CgroupTree(record.cgroup, layout)
            if tree.exists():
                directory = None if store is None else store.directory(record.uuid).path
                found.append(_usage(record, tree, versions, directory))
    return found


def check_measurable(record: PodRecord) -> PodRecord:
    """:raises PodStateError: the pod does not run."""
    if record.state not in STARTED_STATES:
        raise PodStateError(f"pod {record.name} has no resource usage: it is {record.state}", pod=record.uuid)
    return record


def _usage(record: PodRecord, tree: CgroupTree, versions: dict[str, int], directory: str | None) -> Usage:
    interfaces = _interfaces(record)
    mains = {app.name: app.pid for app in record.apps}

    def measured(group: CgroupTree, app: str | None = None) -> ResourceUsage:
        if directory is None:
            return figures(group, versions)
        from kurma_core.pods.inside.usage_details import CachedTree, Files, details, writable_layer

        cached = CachedTree(group.name, group.layout)
        main = None if app is None else mains[app]
        writable = None if main is None else writable_layer(main, directory)
        # Each controller has all processes of the pod, since only root can move one on a single hierarchy.
        found = details(Files(cached, versions), group.pids("memory"), main, writable)
        return replace(figures(cached, versions), details=found)

    return Usage(
        record.uuid,
        record.name,
        time.monotonic(),
        measured(tree),
        None if interfaces is None else sum(one.received for one in interfaces),
        None if interfaces is None else sum(one.sent for one in interfaces),
        {
            name: measured(CgroupTree(f"{tree.name}/{group}", tree.layout), name)
            for group, name in app_groups(record).items()
        },
        record.display_name,
        (interfaces or ()) if directory is not None else (),
    )


def app_groups(record: PodRecord) -> dict[str, str]:
    """Running apps by their cgroup, a child of the pod's. Only apps that share their cgroup with no other app; the
    cgroups' names are the stager's choice."""
    owners: dict[str, set[str]] = {}
    for app in record.apps:
        if app.pid is not None:
            for group in set(groups_of(app.pid, record.cgroup)):
                owners.setdefault(group, set()).add(app.name)
    return {group: next(iter(names)) for group, names in owners.items() if len(names) == 1}


def _interfaces(record: PodRecord) -> tuple[InterfaceUsage, ...] | None:
    """Traffic of the pod's interfaces, from the ``net/dev`` of its stager, which is in its network namespace.

    :returns: None: the pod has no namespace of its own, or has just ended.
    """
    if record.network_namespace is None or record.stager_pid is None:
        return None
    names = {attachment.interface for attachment in record.attachments if not attachment.base}
    try:
        # By descriptor: it never refers to another process that gets the same PID.
        process = os.open(f"/proc/{record.stager_pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            inside, pinned = os.stat("ns/net", dir_fd=process), os.stat(record.network_namespace)
            if (inside.st_dev, inside.st_ino) != (pinned.st_dev, pinned.st_ino):
                return None
            with open("net/dev", opener=lambda path, flags: os.open(path, flags, dir_fd=process)) as file:
                lines = [line.partition(":") for line in file]
        finally:
            os.close(process)
    except OSError:
        return None  # the stager has just ended
    found = []
    for name, _, values in lines:
        if name.strip() in names:
            counts = [int(value) for value in values.split()]
            found.append(InterfaceUsage(name.strip(), *counts[:4], *counts[8:12]))
    return tuple(found)


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


#: Bytes of a command line that are shown.
_LONGEST = 4096


def processes(record: PodRecord, app: str | None = None) -> list[Process]:
    """The processes of a pod, the oldest first, and a parent before its children.

    :param app: only that app's.
    :raises PodStateError: the pod, or the app, does not run.
    :raises AppNotFoundError: the pod has no such app.
    """
    check_measurable(record)
    if app is not None and the_app(record, app).pid is None:
        raise PodStateError(f"app {app} of pod {record.name} does not run", pod=record.uuid)
    look = _Look(record, app_groups(record))
    found = [each for each in map(look.at, CgroupTree(record.cgroup).pids()) if each is not None]
    return [each for each in look.attributed(_oldest_first(found)) if app in (None, each.app)]


def _oldest_first(found: list[Process]) -> list[Process]:
    """PIDs do not tell the order: after the highest, the kernel gives low ones again."""
    by_pid = {each.pid: each for each in found}
    return sorted(found, key=lambda each: (-each.elapsed, sum(1 for _ in _lineage(each, by_pid)), each.pid))


def _lineage(process: Process, by_pid: dict[int, Process]) -> Iterator[Process]:
    """The process, its parent, that one's parent, and so on, as far as ``by_pid`` has them."""
    above: Process | None = process
    seen: set[int] = set()
    while above is not None and above.pid not in seen:
        seen.add(above.pid)
        yield above
        above = by_pid.get(above.parent)


class _Look:
    """One snapshot of all processes of a pod."""

    def __init__(self, record: PodRecord, groups: dict[str, str]) -> None:
        self._record = record
        self._groups = groups
        self._now = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._ticks = os.sysconf("SC_CLK_TCK")
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._users: dict[tuple[int, int, int], str | None] = {}

    def at(self, pid: int) -> Process | None:
        """None: it has ended, or belongs to a PID namespace that is not visible to us."""
        if pid == 0:
            return None
        try:
            # By descriptor: it never refers to another process that gets the same PID.
            directory = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return self._process(pid, directory)
        except (OSError, ValueError, IndexError, KeyError):
            return None
        finally:
            os.close(directory)

    def attributed(self, found: list[Process]) -> list[Process]:
        """Gives processes without an app's cgroup the app of their parents, since some stagers make no cgroups for
        apps."""
        by_pid = {each.pid: each for each in found}
        mains = {app.pid: app.name for app in self._record.apps if app.pid is not None}
        result = []
        for each in found:
            name = each.app
            for above in _lineage(each, by_pid) if name is None else ():
                name = mains.get(above.pid, above.app)
                if name is not None:
                    break
            result.append(replace(each, app=name))
        return result

    def _process(self, pid: int, directory: int) -> Process:
        # The second field may contain spaces and brackets.
        stat = _read(directory, "stat").rpartition(b")")[2].split()
        status = dict(line.partition(b":")[::2] for line in _read(directory, "status").splitlines())
        uid = self._inner(int(status[b"Uid"].split()[1]))
        words = _read(directory, "cmdline")[:_LONGEST].rstrip(b"\0")
        groups = [group for group in groups_of(pid, self._record.cgroup) if group in self._groups]
        return Process(
            pid=pid,
            inner_pid=int(status[b"NSpid"].split()[-1]),
            parent=int(stat[1]),
            app=self._groups[groups[0]] if groups else None,
            uid=uid,
            user=None if uid is None else self._user(directory, uid),
            state=stat[0].decode(),
            threads=int(stat[17]),
            cpu=(int(stat[11]) + int(stat[12])) / self._ticks,
            elapsed=max(0.0, round(self._now - int(stat[19]) / self._ticks, 2)),
            memory=int(stat[21]) * self._page,
            name=_text(status[b"Name"].strip()),
            command=tuple([_text(word) for word in words.split(b"\0")] if words else ()),
        )

    def _inner(self, uid: int) -> int | None:
        ids = self._record.userns
        if ids is None:
            return uid
        return uid - ids.first if ids.first <= uid <= ids.last else None

    def _user(self, directory: int, uid: int) -> str | None:
        """The user's name in the passwd file of the process's own root."""
        from kurma_core.trees import user_database

        try:
            root = os.open("root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
        except OSError:
            return None
        try:
            status = os.fstat(root)
            key = status.st_dev, status.st_ino, uid
            if key not in self._users:
                self._users[key] = user_database.find_user(root, str(uid), proc=True).name
            return self._users[key]
        except (OSError, LookupError):
            return None
        finally:
            os.close(root)


def _read(directory: int, name: str) -> bytes:
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    with open(fd, "rb") as file:
        return file.read()


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
