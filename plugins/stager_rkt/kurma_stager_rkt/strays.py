"""Processes of a pod that its stage1 has taken out of the pod's cgroup: told by what they hold and have mounted.

The number in ``pid`` alone says nothing once the pod has ended: it may be another process's by now. Nor does
``subcgroup`` (Z5), where stage1 says which cgroup they are in: one that does not name the pod is not its own.
"""

from __future__ import annotations

import os
import signal

from kurma_core.linux import process
from kurma_stager_rkt.podpid import pod_pid, small_content

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
