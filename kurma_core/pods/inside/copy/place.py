"""Opens the two sides of a copy: a path of the host, or one in the root of a running app."""

from __future__ import annotations

import errno
import functools
import os
from typing import TYPE_CHECKING, Any

from kurma_core.errors import HostError, PodStateError
from kurma_core.linux import mounts
from kurma_core.linux.beneath import RESOLVE_IN_ROOT, open_in_root, openat2
from kurma_core.pods.inside.enter_and_attach import check_runs
from kurma_core.pods.record.pod_record import the_app

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        hint = "what an app writes to its root goes with it; volumes stay: kurma show names them"
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
            if f"/kurma/{record.uuid}" not in self._read("cgroup"):
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
