"""Walks a tree that is copied, entry by entry: by descriptor throughout, and without following links.

So a process that changes the tree meanwhile can add entries to the copy, but never files from outside of the tree.
"""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kurma_core.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kurma_core.pods.inside.copy.place import Place


#: Prefix of the temporary names of incomplete files.
UNFINISHED = ".kurma-cp-"
#: Bytes that are copied at a time.
PIECE = 1 << 20


class Reader(Protocol):
    def read(self, count: int, /) -> bytes: ...


class Entry(NamedTuple):
    """A file, directory or link that is copied.

    :param parts: its path from the top of the copy; empty: the top itself.
    :param kind: ``file``, ``directory``, ``link``, or ``again``: a hard link to an earlier file.
    :param mode: permission bits.
    :param uid, gid: as seen in its pod or on the host.
    :param mtime: nanoseconds since 1970.
    :param size: bytes, of a file.
    :param to: target of a link.
    :param first: of ``again``: the path of the earlier file.
    :param open: opens its content, of which ``size`` bytes count; the caller closes it.
    """

    parts: tuple[str, ...]
    kind: str
    mode: int
    uid: int
    gid: int
    mtime: int
    size: int = 0
    to: str = ""
    first: tuple[str, ...] = ()
    open: Callable[[], int | Reader] | None = None

    @property
    def name(self) -> str:
        """The path in messages."""
        return "/".join(self.parts) or "."


class Descriptor:
    """Reads from a descriptor, and closes it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self, count: int) -> bytes:
        return os.read(self._fd, min(count, PIECE))

    def close(self) -> None:
        os.close(self._fd)


_THIS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def walk(place: Place, fd: int, path: str, note: Callable[[str], None]) -> Iterator[Entry]:
    """The entry that ``fd``, an ``O_PATH`` descriptor, refers to, and all entries below it; each directory comes
    before its contents.

    :param path: of that entry, for messages.
    :param note: called with entries that cannot be copied and are left out.
    :raises HostError: that entry itself cannot be copied.
    :raises OSError: an entry cannot be read.
    """
    status = os.fstat(fd)
    if (kind := _no_file(place, status)) is not None:
        raise HostError(f"cannot copy {path}: it is {kind}", path=path)
    yield from _walk(place, fd, status, (), note)


def _walk(
    place: Place, fd: int, status: os.stat_result, parts: tuple[str, ...], note: Callable[[str], None]
) -> Iterator[Entry]:
    yield _entry(place, fd, status, parts)
    if not stat.S_ISDIR(status.st_mode):
        return
    directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
    try:
        for name in sorted(os.listdir(directory)):
            if name.startswith(UNFINISHED):
                continue  # a copy in progress, also when a directory is copied into itself
            try:
                below = os.open(name, _THIS, dir_fd=directory)
            except FileNotFoundError:
                continue  # removed meanwhile
            try:
                found = os.fstat(below)
                kind = _no_file(place, found)
                if kind is not None:
                    note(f"{'/'.join((*parts, name))} is left out: it is {kind}")
                    continue
                yield from _walk(place, below, found, (*parts, name), note)
            finally:
                os.close(below)
    finally:
        os.close(directory)


def _no_file(place: Place, status: os.stat_result) -> str | None:
    """The kind of a file that cannot be copied; None: it can."""
    if status.st_dev in place.kernels:
        return "the kernel's"
    if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode) or stat.S_ISLNK(status.st_mode):
        return None
    if stat.S_ISFIFO(status.st_mode):
        return "a named pipe"
    return "a socket" if stat.S_ISSOCK(status.st_mode) else "a device"


def _entry(place: Place, fd: int, status: os.stat_result, parts: tuple[str, ...]) -> Entry:
    mode, owner = stat.S_IMODE(status.st_mode), (place.inside(status.st_uid), place.inside(status.st_gid))
    if stat.S_ISDIR(status.st_mode):
        return Entry(parts, "directory", mode, *owner, status.st_mtime_ns)
    if stat.S_ISLNK(status.st_mode):
        return Entry(parts, "link", mode, *owner, status.st_mtime_ns, to=os.readlink("", dir_fd=fd))
    # By the magic link, which refers to the same file: the name could lead to a pipe or a device by now.
    content = functools.partial(os.open, f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    return Entry(parts, "file", mode, *owner, status.st_mtime_ns, size=status.st_size, open=content)
