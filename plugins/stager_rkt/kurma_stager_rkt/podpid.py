"""The process that stage1 names as its pod's first, in ``pid`` or ``ppid`` (Z5)."""

from __future__ import annotations

import os

from kurma_core.linux.beneath import AT_FDCWD, open_beneath
from kurma_core.linux.regular_file import open_regular

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
    """What is not wholly written yet is none, as what is nonsense."""
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
