"""Memory that cgroups are to keep where it is short, on v2: ``memory.low``.

A cgroup keeps no more than the one above it does, which by itself keeps nothing. So what is shared by all pods is
to keep the sum of theirs.
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.linux.cgroups import CgroupTree

_FILE = "memory.low"
_MOST = (1 << 63) - 1


def keep(tree: CgroupTree, amount: int) -> None:
    """The tree keeps that many bytes, and what is above it, if shared with others, as many as all in it.

    Nothing is done where there is no v2 memory controller; once the tree is gone, what is above it is put right.

    :raises OSError: the kernel refuses.
    """
    import fcntl

    hierarchy = tree.layout.of("memory")
    if hierarchy is None or hierarchy.version != 2:
        return
    path = f"{hierarchy.directory}/{tree.name}"
    _write(path, amount)
    while (path := os.path.dirname(path)) != hierarchy.directory:
        try:
            shared = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(shared, fcntl.LOCK_EX)
            _write(path, sum(_read(f"{path}/{name}") for name in os.listdir(path)))
        finally:
            os.close(shared)


def _read(directory: str) -> int:
    """0 for what is no cgroup, has gone, or has no such file."""
    try:
        with open(f"{directory}/{_FILE}") as file:
            text = file.read().strip()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENODEV):
            return 0
        raise
    return _MOST if text == "max" else int(text)


def _write(directory: str, amount: int) -> None:
    try:
        fd = os.open(f"{directory}/{_FILE}", os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.write(fd, str(min(amount, _MOST)).encode())
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise OSError(error.errno, error.strerror, f"{directory}/{_FILE}") from None
    finally:
        os.close(fd)
