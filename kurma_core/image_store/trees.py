"""Walking a directory tree by descriptor, in one defined order."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from kurma_core.cancellation import check

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def walk(root: int) -> Iterator[tuple[bytes, int, bytes, os.stat_result]]:
    """Everything below the directory ``root``: a directory before what it holds, names in order of their bytes.

    No link is followed. The descriptor that comes with an entry is good until the next one is asked for.

    :returns: path beneath the root, descriptor of the directory that it is in, its name there, its status. The
        root itself comes first, with an empty path and the name ``.``.
    :raises OSError: as the kernel says. :raises Cancelled: the operation was cancelled.
    """
    yield b"", root, b".", os.fstat(root)
    # One descriptor per level. The store's limits keep trees shallow enough for that.
    stack: list[tuple[bytes, int, Iterator[bytes]]] = [(b"", os.dup(root), iter(_names(root)))]
    try:
        while stack:
            prefix, fd, names = stack[-1]
            name = next(names, None)
            if name is None:
                os.close(fd)
                stack.pop()
                continue
            check()
            status = os.lstat(name, dir_fd=fd)
            path = prefix + name
            yield path, fd, name, status
            if stat.S_ISDIR(status.st_mode):
                below = os.open(name, DIRECTORY_FLAGS, dir_fd=fd)
                stack.append((path + b"/", below, iter(_names(below))))
    finally:
        for _, fd, _ in stack:
            os.close(fd)


def _names(fd: int) -> list[bytes]:
    return sorted(os.fsencode(name) for name in os.listdir(fd))


def open_tree(path: str) -> int:
    """Descriptor of the directory at a path of our own. :raises OSError: as the kernel says."""
    return os.open(path, DIRECTORY_FLAGS)


def place(parent: int, name: bytes) -> bytes:
    """A path for calls that know no descriptors (extended attributes); only ``name`` itself can be a link."""
    return b"/proc/self/fd/%d/%s" % (parent, name)
