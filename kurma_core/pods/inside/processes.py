"""Lists the processes of a pod, as the host sees them (``kurma top``)."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from kurma_core.api.pods import Process
from kurma_core.errors import PodStateError
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.pods.inside.usage import app_groups, check_measurable, groups_of
from kurma_core.pods.record.pod_record import the_app
from kurma_core.trees import user_database

if TYPE_CHECKING:
    from kurma_core.models.pod import PodRecord

#: Bytes of a command line that are shown.
_LONGEST = 4096


def processes(record: PodRecord, app: str | None = None) -> list[Process]:
    """The processes of a pod, by PID.

    :param app: only that app's.
    :raises PodStateError: the pod, or the app, does not run.
    :raises AppNotFoundError: the pod has no such app.
    """
    check_measurable(record)
    if app is not None and the_app(record, app).pid is None:
        raise PodStateError(f"app {app} of pod {record.name} does not run", pod=record.uuid)
    name = f"kurma/{record.uuid}"
    look = _Look(record, app_groups(record))
    found = [each for each in map(look.at, CgroupTree(name).pids()) if each is not None]
    return [each for each in look.attributed(found) if app in (None, each.app)]


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
        from kurma_core.value import replace

        by_pid = {each.pid: each for each in found}
        mains = {app.pid: app.name for app in self._record.apps if app.pid is not None}
        result = []
        for each in found:
            above: Process | None = each
            seen: set[int] = set()
            name = each.app
            while name is None and above is not None and above.pid not in seen:
                seen.add(above.pid)
                name = mains.get(above.pid, above.app)
                above = by_pid.get(above.parent)
            result.append(replace(each, app=name))
        return result

    def _process(self, pid: int, directory: int) -> Process:
        # The second field may contain spaces and brackets.
        stat = _read(directory, "stat").rpartition(b")")[2].split()
        status = dict(line.partition(b":")[::2] for line in _read(directory, "status").splitlines())
        uid = self._inner(int(status[b"Uid"].split()[1]))
        words = _read(directory, "cmdline")[:_LONGEST].rstrip(b"\0")
        groups = [group for group in groups_of(pid, f"kurma/{self._record.uuid}") if group in self._groups]
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


__all__ = ["Process", "processes"]
