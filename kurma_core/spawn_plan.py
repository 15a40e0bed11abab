"""Plans for the spawner, as frozen values: programs to start, roots and mounts to make.

A root is described by mount operations, applied in order inside the new process's private mount namespace. Targets
are resolved inside the new root by descriptor; sources are paths of the host, opened before the root is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from kurma_core.value import field, frozen

if TYPE_CHECKING:
    from kurma_core.linux.cgroups import CgroupTree
    from kurma_core.linux.process import ProcessIdentity


@frozen
class Overlay:
    """A union of directories.

    :param lowers: the top one first.
    :param target: ``/`` for the root itself (then it must be the first operation).
    :param scratch: changes go to a fresh tmpfs of the pod's own, and are gone with it.
    :param upper, work: or to directories of the host, on one file system.
    :param scratch_size: of the tmpfs, as its ``size=`` option (``64m``); empty: the kernel's default.
    :param attributes: ``nodev``, ``nosuid``, ``noexec``, ``ro``.
    """

    lowers: tuple[str, ...]
    target: str = "/"
    scratch: bool = False
    upper: str | None = None
    work: str | None = None
    volatile: bool = True
    scratch_size: str = ""
    attributes: tuple[str, ...] = ()


@frozen
class Bind:
    """A directory or file of the host shown inside.

    :param read_only: submounts included, unless ``read_only_submounts`` is false.
    :param links: whether symbolic links may stand on the way to ``source``.
    :param make_target: make the target if it is missing, with its parents (V3).
    :param propagation: of mounts: ``private``; ``rslave``: later mounts of the host appear in the root;
        ``rshared``: and mounts of the root on the host, if the source's mount is shared.
    """

    source: str
    target: str
    read_only: bool = False
    recursive: bool = True
    attributes: tuple[str, ...] = ()
    links: bool = True
    make_target: bool = True
    propagation: str = "private"
    read_only_submounts: bool = True


@frozen
class FileSystemMount:
    """A file system of the kernel: ``tmpfs``, ``proc``, ``sysfs``, ``devpts``, ``mqueue``.

    :param options: of the file system, e.g. ``{"size": "64m", "mode": "0755"}``; None as value: a flag.
    """

    fstype: str
    target: str
    options: Mapping[str, str | None] = field(default_factory=dict)
    attributes: tuple[str, ...] = ()


@frozen
class Directory:
    """A directory inside; one that exists is kept as it is."""

    target: str
    mode: int = 0o755
    uid: int = 0
    gid: int = 0


@frozen
class File:
    """A file inside, with this content; one that exists is replaced, and a link there too."""

    target: str
    content: bytes
    mode: int = 0o644
    uid: int = 0
    gid: int = 0


@frozen
class Symlink:
    """A symbolic link inside; whatever file or link is there is replaced."""

    target: str
    points_to: str


Operation = Overlay | Bind | FileSystemMount | Directory | File | Symlink


def tmpfs(target: str, *, attributes: tuple[str, ...] = (), **options: str) -> FileSystemMount:
    """An empty file system in memory: ``tmpfs("/run", mode="0755", size="64m")``."""
    return FileSystemMount("tmpfs", target, options, attributes)


def proc() -> FileSystemMount:
    """``/proc`` of the process's own PID namespace."""
    return FileSystemMount("proc", "/proc", {}, ("nosuid", "nodev", "noexec"))


def sysfs() -> FileSystemMount:
    """A read-only ``/sys``, which shows the network namespace that the process is in."""
    return FileSystemMount("sysfs", "/sys", {}, ("nosuid", "nodev", "noexec", "ro"))


def cgroups(tree: CgroupTree) -> tuple[Operation, ...]:
    """Mounts that show a root its own cgroup, read-write, and no other. They come after :func:`sysfs`.

    :param tree: made already.
    """
    base = "/sys/fs/cgroup"
    operations: list[Operation] = []
    if tree.layout.kind != "v2":
        operations.append(tmpfs(base, attributes=("nosuid", "nodev", "noexec"), mode="0755"))
    for source, place in tree.mount_plan():
        target = base if place == "." else f"{base}/{place}"
        operations.append(Bind(source, target, attributes=("nosuid", "nodev", "noexec")))
    operations += [Symlink(f"{base}/{name}", place) for name, place in tree.links()]
    return tuple(operations)


@frozen
class UserMap:
    """The id maps of a user namespace: ``(first inside, first outside, count)`` each."""

    uids: tuple[tuple[int, int, int], ...]
    gids: tuple[tuple[int, int, int], ...]


@frozen
class RootPlan:
    """A new root: the first operation makes it (its target is ``/``), the others fill it."""

    operations: tuple[Operation, ...]


@frozen
class SpawnPlan:
    """A program to start.

    :param argv: the program and its arguments; without a slash, it is looked for in the environment's PATH.
    :param environment: all of it; nothing is inherited.
    :param cwd: inside the new root.
    :param root: None: the caller's root.
    :param netns_path: a pinned network namespace to join; joined before anything is mounted.
    :param namespaces: new ones: any of ``mount``, ``pid``, ``ipc``, ``uts``; a ``root`` implies ``mount``.
    :param cgroup: directories of the host, of one cgroup on each hierarchy, in which the process is born; empty:
        it stays in those of the spawner.
    :param fds: number in the program → descriptor of the caller. 0, 1 and 2 are ``/dev/null`` unless given; every
        other one is closed.
    :param parent_death_signal: sent to the program when its parent (the caller's main thread) ends.
    :param child_of_caller: the program becomes the caller's child, which then can and must wait for it.
    :param fork_server: if a fork server with this key runs (:meth:`Starter.keep_fork_server`), it forks the
        process, and nothing is executed. The plan then has a root, the user root, and no other namespaces.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "/"
    root: RootPlan | None = None
    netns_path: str | None = None
    namespaces: frozenset[str] = frozenset()
    cgroup: tuple[str, ...] = ()
    fds: Mapping[int, int] = field(default_factory=dict)
    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()
    new_session: bool = False
    controlling_tty: bool = False
    parent_death_signal: int | None = None
    child_of_caller: bool = True
    hostname: str | None = None
    fork_server: str = ""


@frozen
class EnterPlan:
    """A program to start inside the namespaces and the root of a running process.

    :param pid: that process; ``pidfd``, if given, is a descriptor that holds it and guards against a reused PID.
    :param namespaces: which of its namespaces to join: ``mount``, ``net``, ``ipc``, ``uts``, ``pid``.

    The rest as in :class:`SpawnPlan`.
    """

    pid: int
    argv: tuple[str, ...]
    pidfd: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "/"
    namespaces: frozenset[str] = frozenset({"mount", "net"})
    cgroup: tuple[str, ...] = ()
    fds: Mapping[int, int] = field(default_factory=dict)
    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()
    new_session: bool = False
    controlling_tty: bool = False
    parent_death_signal: int | None = None
    child_of_caller: bool = True


class Started(Protocol):
    """A started program. ``pidfd`` holds it; the caller closes it."""

    @property
    def pid(self) -> int: ...
    @property
    def identity(self) -> ProcessIdentity: ...
    @property
    def pidfd(self) -> int: ...


class Starter(Protocol):
    """Starts programs by such plans: the spawner, as other packages see it."""

    def start(self, plan: SpawnPlan) -> Started:
        """:raises CommandNotFoundError, CommandNotExecutableError, HostError: it could not be started."""
        ...

    def keep_fork_server(self, key: str, plan: SpawnPlan) -> None:
        """Starts a fork server: a program that loads its modules, and then forks on request. It gets the requests
        on descriptor 6, and ends with the caller. There is one at most: one with another key is ended, also if the
        new one cannot be started. After three failures in a row with one key, the call does nothing.

        :param key: a digest of the program. If a fork server with this key runs, the call does nothing.
        :raises CommandNotFoundError, CommandNotExecutableError, HostError: it could not be started.
        """
        ...

    def enter(self, plan: EnterPlan) -> Started:
        """:raises CommandNotFoundError, CommandNotExecutableError, HostError: it could not be started."""
        ...

    def bind_into(
        self,
        pid: int,
        operations: Sequence[Operation],
        *,
        pidfd: int | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Carries out mount operations in the root of a running process.

        :param meanwhile: called while another process does that; its exception is raised once that is done.
        :raises HostError: one failed; those before it stay.
        """
        ...

    def unbind_from(self, pid: int, targets: Sequence[str], *, pidfd: int | None = None) -> None:
        """Removes mounts from such a root; a missing one is no error.

        :raises HostError: one failed; those before it are gone.
        """
        ...
