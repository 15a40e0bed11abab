"""Reads the source of a copy (``kurma cp``): opens a path of the host or of a running app's root, and walks the
tree below it.

A tree is walked entry by entry: by descriptor throughout, and without following links. So a process that changes
the tree meanwhile can add entries to the copy, but never files from outside of the tree.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kurma_core.errors import HostError, PodStateError
from kurma_core.linux import mounts
from kurma_core.linux.beneath import RESOLVE_IN_ROOT, open_in_root, openat2
from kurma_core.models.pod import ENDED_STATES
from kurma_core.pods.inside.enter_and_attach import check_runs
from kurma_core.pods.record.pod_record import the_app

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kurma_core.models.isolator import IdRange
    from kurma_core.models.pod import PodRecord

#: File systems of kernel interfaces, whose files are not stored data.
_KERNELS = frozenset(
    {"proc", "sysfs", "cgroup", "cgroup2", "devpts", "mqueue", "securityfs", "debugfs", "tracefs"}
)


class Place:
    """A side of a copy: the host.

    :attr:`ids`: host ids of the pod's user namespace; None: ids are the host's own.
    :attr:`kernels`: devices of file systems from which nothing is copied.
    """

    name = "the host"
    ids: IdRange | None = None
    kernels: frozenset[int] = frozenset()
    #: Hint for an error about a read-only file system.
    read_only = "it is mounted read-only"

    @functools.cached_property
    def sealed(self) -> frozenset[int]:
        """Devices of file systems to which nothing is written: those of the kernel, and ``/dev``."""
        with open("/proc/self/mountinfo", errors="surrogateescape") as file:
            return _sealed([mounts.Mount(line) for line in file])

    def called(self, path: str) -> str:
        """That path in messages."""
        return path

    def open(self, path: str, flags: int) -> int:
        """:raises HostError: it cannot be opened."""
        try:
            return self._open(path, flags | os.O_CLOEXEC)
        except OSError as error:
            if error.errno == errno.EXDEV:
                why = f"{path}: it leads out of the root of {self.name}"
                raise HostError(why, errno=error.errno, path=path) from None
            raise HostError(
                f"{path}: {(error.strerror or str(error)).lower()}", errno=error.errno, path=path
            ) from None

    def _open(self, path: str, flags: int) -> int:
        return os.open(path, flags)

    def inside(self, number: int) -> int:
        """A host id as seen in this place; ids outside of its user namespace become the overflow id 65534."""
        if self.ids is None:
            return number
        return number - self.ids.first if self.ids.first <= number <= self.ids.last else _NOBODY

    def outside(self, number: int) -> int:
        """The host id of an id of this place. :raises HostError: its user namespace has no such id."""
        if self.ids is None:
            return number
        if number >= self.ids.count:
            raise HostError(f"{self.name} has no id {number}: its user namespace ends at {self.ids.count - 1}")
        return self.ids.first + number

    def check(self) -> None:
        """:raises PodStateError: the app has ended."""

    def close(self) -> None:
        """Closes its descriptors, if any."""


_NOBODY = 65534


class AppRoot(Place):
    """A side of a copy: the root of a running app, with its volumes. Links in it cannot lead out of it.

    :raises PodStateError: the pod, or the app, does not run.
    :raises AppNotFoundError: there is no such app.
    """

    read_only = "the app's root is read-only (--read-only), or the volume is (:ro)"

    def __init__(self, record: PodRecord, app: str | None) -> None:
        hint = (
            "what an app writes to its root goes with it, unless the pod is made with --keep-root; volumes stay: "
            "kurma show names them"
        )
        if record.state in ENDED_STATES and record.keeps_root:
            hint = "its kept root can only be read: copy from it, or make an image of it by kurma commit"
        try:
            check_runs(record, "copy from or to")
        except PodStateError as error:
            error.hint = hint
            raise
        status = the_app(record, app)
        self.name = f"app {status.name} of pod {record.name}"
        ended = PodStateError(f"{self.name} does not run", pod=record.uuid, hint=hint)
        self._ended: Any = ended
        self.ids = record.userns
        if status.pid is None:
            raise ended
        try:
            # By descriptor: it never refers to another process that gets the same PID.
            self._process = os.open(f"/proc/{status.pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            raise ended from None
        try:
            if f"/{record.cgroup}" not in self._read("cgroup"):
                raise ended
            devices = [mounts.Mount(line) for line in self._read("mountinfo").splitlines()]
            self.kernels = frozenset(_device(one.device) for one in devices if one.fstype in _KERNELS)
            self.sealed = _sealed(devices)
            self._root = os.open("root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._process)
        except BaseException as error:
            os.close(self._process)
            if isinstance(error, OSError):
                raise ended from None
            raise

    def _read(self, name: str) -> str:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._process)
        with open(fd, errors="surrogateescape") as file:
            return file.read()

    def _open(self, path: str, flags: int) -> int:
        try:
            return open_in_root(self._root, path, flags)
        except OSError as error:
            if error.errno == errno.ELOOP:
                self._check_magic(path)
            raise

    def _check_magic(self, path: str) -> None:
        """:raises OSError: ``EXDEV``: the path contains a magic link of the kernel's, which could lead out of the
        root."""
        try:
            os.close(openat2(self._root, path, os.O_PATH | os.O_NOFOLLOW, resolve=RESOLVE_IN_ROOT))
        except OSError as error:
            if error.errno == errno.EXDEV:
                raise

    def called(self, path: str) -> str:
        return f"{path} in {self.name}"

    def check(self) -> None:
        try:
            # The second field may contain spaces and brackets.
            state = self._read("stat").rpartition(")")[2].split()[0]
        except OSError:
            state = "X"
        if state in "ZX":
            raise self._ended

    def close(self) -> None:
        os.close(self._root)
        os.close(self._process)


def _sealed(found: Sequence[mounts.Mount]) -> frozenset[int]:
    return frozenset(
        _device(one.device)
        for one in found
        if one.fstype in _KERNELS
        or one.fstype == "devtmpfs"
        or (one.fstype == "tmpfs" and (one.target == "/dev" or one.target.startswith(("/proc/", "/sys/"))))
    )


def _device(text: str) -> int:
    major, _, minor = text.partition(":")
    return os.makedev(int(major), int(minor))


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
                    note(f"{'/'.join((*parts, name))} is not copied: it is {kind}")
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
