"""Finds the processes of a pod under stage1: the first one (``pid``, ``ppid``), readiness, and escaped ones.

stage1 may take processes out of the pod's cgroup. :func:`end_strays` finds these by the lock that they hold and by
their root mount: after the pod's end the PID in ``pid`` may be another process's, and a ``subcgroup`` whose name
does not contain the pod's UUID may be another pod's.
"""

from __future__ import annotations

import os
import signal

from kurma_core.linux import process
from kurma_core.linux.beneath import AT_FDCWD, open_beneath, open_regular

_MOST = 1 << 22


def pod_pid(place: str) -> int | None:
    """The PID for the ``enter`` entrypoint; None: stage1 has not written it yet, or the process has ended.

    The file ``pid`` holds it; or ``ppid`` holds its parent's PID, whose only child it is.
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

    :raises OSError: it is missing, or not a regular file.
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
    """The children of a process, for kernels without ``/proc/PID/task/TID/children``."""
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
    """Whether the pod's supervisor has reported readiness: ``rkt/supervisor-status`` is a link to ``ready``."""
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


#: Most bytes of a cgroup's path.
_LONGEST = 4096


def end_strays(place: str) -> bool:
    """Kills processes that have inherited the pod's lock, the pod's first process, and processes in the cgroup
    that stage1 has named. It can be repeated.

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
    """The path, or the end of the path, of the cgroup that stage1 has named for its processes.

    :returns: empty: stage1 has named none, or one whose name does not contain the pod's UUID.
    """
    try:
        content = small_content(f"{place}/subcgroup", _LONGEST)
    except OSError:
        return ""
    path = content.decode("utf-8", "replace").strip().strip("/")
    return path if _names(path.rpartition("/")[2], os.path.basename(place)) else ""


def _names(text: str, uuid: str) -> bool:
    """Whether the text contains the UUID, also in systemd's notation for cgroups."""
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
        # Check again, now that the pidfd keeps the PID from being reused.
        if pid == os.getpid() or not (_has_inherited(str(pid), lock) or _is_of(pid, os.path.basename(place))):
            return False
        process.pidfd_send_signal(fd, signal.SIGKILL)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)


def _has_inherited(pid: str, lock: os.stat_result) -> bool:
    """Whether a process has inherited the lock. Kurma's own processes that inspect it have opened it
    close-on-exec."""
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
    """Whether the process's root mount, cgroups or arguments contain the pod's UUID."""
    name = uuid.encode()
    try:
        if uuid in os.readlink(f"/proc/{pid}/root"):
            return True
        with open(f"/proc/{pid}/mountinfo", "rb") as stream:
            # The root mount only: a process may see mounts of any other pod.
            if any(name in line for line in stream if line.split()[4] == b"/"):
                return True
        for file in ("cgroup", "cmdline"):
            with open(f"/proc/{pid}/{file}", encoding="utf-8", errors="replace") as stream:
                if _names(stream.read(), uuid):
                    return True
    except OSError:
        return False  # it has ended
    return False
