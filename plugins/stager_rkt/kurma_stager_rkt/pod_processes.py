"""Finds the processes of a pod under stage1: the first one (``pid``, ``ppid``), readiness, and escaped ones.

stage1 may take processes out of the pod's cgroup. :func:`end_strays` finds these by what they hold and have
mounted: after the pod's end the number in ``pid`` may be another process's, and a ``subcgroup`` that does not name
the pod is not the pod's.
"""

from __future__ import annotations

import os
import signal

from kurma_core.linux import process
from kurma_core.linux.beneath import AT_FDCWD, open_beneath, open_regular

_MOST = 1 << 22


def pod_pid(place: str) -> int | None:
    """PID of the process that ``enter`` is given; None: stage1 has not named it yet, or it has ended.

    ``pid`` holds it; ``ppid`` holds its parent's, whose only child it is. Either will do.
    """
    found = _number(place, "pid")
    if found is not None:
        return found if os.path.isdir(f"/proc/{found}") else None
    parent = _number(place, "ppid")
    if parent is None:
        return None
    children = _children(parent)
    return children[0] if len(children) == 1 else None


def _number(place: str, name: str) -> int | None:
    """Ignores partial or malformed PID files."""
    try:
        text = small_content(f"{place}/{name}", 32).strip()
    except OSError:
        return None
    if not text.isdigit() or not 0 < int(text) <= _MOST:
        return None
    return int(text)


def small_content(path: str, limit: int) -> bytes:
    """The first ``limit`` bytes of a file that stage1 has written.

    :raises OSError: there is none, or there is a link or something else than a regular file.
    """
    fd = open_regular(AT_FDCWD, path, os.O_RDONLY | os.O_NOFOLLOW, resolve=0)
    try:
        return os.read(fd, limit)
    finally:
        os.close(fd)


def _children(parent: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{parent}/task"):
            with open(f"/proc/{parent}/task/{task}/children", "rb") as stream:
                found += map(int, stream.read().split())
    except OSError:
        return _children_among_all(parent)
    return found


def _children_among_all(parent: int) -> list[int]:
    """For kernels that are built without lists of children."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as stream:
                if int(stream.read().rpartition(b")")[2].split()[1]) == parent:
                    found.append(int(name))
        except OSError:
            continue  # it has ended
    return found


def is_ready(place: str) -> bool:
    """Whether the pod's supervisor has said so: ``rkt/supervisor-status`` is a link to ``ready``."""
    try:
        root = os.open(f"{place}/stage1/rootfs", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        directory = open_beneath(root, "rkt", os.O_PATH | os.O_DIRECTORY)
        try:
            return os.readlink("supervisor-status", dir_fd=directory) == "ready"
        finally:
            os.close(directory)
    except OSError:
        return False
    finally:
        os.close(root)


#: Bytes of the path of a cgroup.
_LONGEST = 4096


def end_strays(place: str) -> bool:
    """Kills those that have inherited the pod's lock, the pod's first process, and those in the cgroup that stage1
    has named. Repeatable.

    :param place: the pod's directory.
    :returns: whether there were any.
    """
    try:
        lock = os.stat(place)
    except FileNotFoundError:
        return False
    first, cgroup = pod_pid(place), subcgroup(place)
    found = [
        _kill(int(name), lock, place)
        for name in filter(str.isdigit, os.listdir("/proc"))
        if int(name) == first or _has_inherited(name, lock) or _is_in(name, cgroup)
    ]
    return any(found)


def subcgroup(place: str) -> str:
    """The end, or all, of the path of the cgroup that stage1 says its processes are in (Z5).

    :returns: empty: it says none, or one that does not name the pod.
    """
    try:
        content = small_content(f"{place}/subcgroup", _LONGEST)
    except OSError:
        return ""
    path = content.decode("utf-8", "replace").strip().strip("/")
    return path if _names(path.rpartition("/")[2], os.path.basename(place)) else ""


def _names(text: str, uuid: str) -> bool:
    """Also as systemd writes it in the names of its cgroups."""
    return uuid in text.replace("\\x2d", "-")


def _is_in(pid: str, cgroup: str) -> bool:
    if not cgroup:
        return False
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as stream:
            return any(f"/{cgroup}/" in line.rstrip("\n").split(":", 2)[2] + "/" for line in stream)
    except OSError:
        return False  # it has ended


def _kill(pid: int, lock: os.stat_result, place: str) -> bool:
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        # Looked at again, now that its number cannot become another one's.
        if pid == os.getpid() or not (_has_inherited(str(pid), lock) or _is_of(pid, os.path.basename(place))):
            return False
        process.pidfd_send_signal(fd, signal.SIGKILL)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)


def _has_inherited(pid: str, lock: os.stat_result) -> bool:
    """Programs of Kurma that look at the lock have it for themselves alone: it is closed when they execute."""
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            if os.path.samestat(os.stat(f"/proc/{pid}/fd/{fd}"), lock) and not _closes(pid, fd):
                return True
    except OSError:
        return False  # it has ended
    return False


def _closes(pid: str, fd: str) -> bool:
    with open(f"/proc/{pid}/fdinfo/{fd}", "rb") as stream:
        flags = next(line.split()[1] for line in stream if line.startswith(b"flags:"))
    return bool(int(flags, 8) & os.O_CLOEXEC)


def _is_of(pid: int, uuid: str) -> bool:
    """Whether the pod is named where its root is, or in its cgroups or arguments."""
    name = uuid.encode()
    try:
        if uuid in os.readlink(f"/proc/{pid}/root"):
            return True
        with open(f"/proc/{pid}/mountinfo", "rb") as stream:
            # Of others' mounts it may see any.
            if any(name in line for line in stream if line.split()[4] == b"/"):
                return True
        for file in ("cgroup", "cmdline"):
            with open(f"/proc/{pid}/{file}", encoding="utf-8", errors="replace") as stream:
                if _names(stream.read(), uuid):
                    return True
    except OSError:
        return False  # it has ended
    return False
