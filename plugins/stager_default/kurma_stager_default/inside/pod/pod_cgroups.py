"""The pod's cgroup as the stager sees it, the root of ``/sys/fs/cgroup``, and the apps' below it."""

from __future__ import annotations

import errno
import os

from kurma_core.linux import process
from kurma_core.linux.cgroups import CgroupTree, Layout, controllers
from kurma_stager_default.inside.errors import SetupError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_stager_default.inside.manifest import Plan

#: Where the stager itself goes: a v2 cgroup with controllers for its children takes no process of its own.
OWN = "stager"

_SIGKILL = 9
_ROUNDS = 64


class PodGroups:
    """:param layout: what is mounted (None: look).
    :attr:`wall` is which devices the pod's own cgroup allows; see :mod:`.device_cgroup`.
    """

    __slots__ = ("layout", "wall")

    def __init__(self, layout: Layout | None = None) -> None:
        self.layout = Layout.detect() if layout is None else layout
        self.wall: list[str] | None = []

    def app(self, name: str) -> CgroupTree:
        return CgroupTree(f"app-{name}", self.layout)

    def make_way(self) -> None:
        """Have no process in the pod's own v2 cgroup, if that has controllers for its children.

        Who started this process may have seen to that; moving costs some ten milliseconds.
        """
        for hierarchy in self.layout.hierarchies:
            if hierarchy.version == 2 and controllers(hierarchy.directory) and _is_in(hierarchy.directory):
                own = CgroupTree(OWN, Layout([hierarchy]))
                own.create()
                own.add(os.getpid())

    def apply_pod(self, plan: Plan) -> None:
        """:raises SetupError: a setting of the pod's plan is refused."""
        for setting in plan.cgroup:
            hierarchy = self.layout.of(setting["controller"])
            if hierarchy is None:
                raise SetupError(f"this host has no cgroup controller {setting['controller']!r}")
            path = f"{hierarchy.directory}/{_file_name(setting['file'])}"
            try:
                _write(path, setting["value"])
            except OSError as error:
                if not _device_gone(setting, error):
                    raise SetupError(f"cannot write {setting['value']!r} to {path}: {error.strerror}") from None

    def make_app(self, name: str, plan: Plan) -> CgroupTree:
        """The app's cgroup, with its settings. :raises SetupError: a setting is refused."""
        tree = self.app(name)
        try:
            tree.create()
            for setting in plan.cgroup:
                try:
                    tree.write(setting["controller"], setting["file"], setting["value"])
                except OSError as error:
                    if not _device_gone(setting, error):
                        raise
            if self.wall != []:
                from kurma_stager_default.inside.pod import device_cgroup

                device_cgroup.narrow(tree, plan, self.wall)
        except OSError as error:
            raise SetupError(f"its cgroup: {error.filename}: {error.strerror}") from None
        return tree


def _is_in(directory: str) -> bool:
    with open(directory + "/cgroup.procs") as file:
        return str(os.getpid()) in file.read().split()


def _file_name(name: str) -> str:
    if "/" in name:
        raise SetupError(f"not the name of a cgroup file: {name!r}")
    return name


def _write(path: str, value: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def _device_gone(setting: dict[str, str], error: OSError) -> bool:
    """A limit of a block device that was taken away since the pod was made: there is nothing to limit."""
    return error.errno == errno.ENODEV and setting["file"].startswith(("io.", "blkio."))


def oom_kills(tree: CgroupTree) -> int:
    """How many processes of the cgroup the kernel has ended for want of memory; 0 where it does not tell."""
    for file in ("memory.events", "memory.oom_control"):
        try:
            text = tree.read("memory", file)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
                continue
            raise
        for line in text.split("\n"):
            key, _, value = line.partition(" ")
            if key == "oom_kill":
                return int(value)
    return 0


def watch_oom(tree: CgroupTree) -> tuple[int, int]:
    """A descriptor that polls when the kernel wants for memory in the cgroup, and the events to poll for.

    For :func:`saw_oom`. It goes with this process. :returns: -1 where the host does not tell.
    """
    import select

    try:
        return os.open(tree.file("memory", "memory.events"), os.O_RDONLY | os.O_CLOEXEC), select.POLLPRI
    except OSError:
        pass
    try:  # v1
        told = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            about = os.open(tree.file("memory", "memory.oom_control"), os.O_RDONLY | os.O_CLOEXEC)
            try:
                tree.write("memory", "cgroup.event_control", f"{told} {about}")
            finally:
                os.close(about)
        except OSError:
            os.close(told)
            raise
        return told, select.POLLIN
    except OSError:
        return -1, 0


def saw_oom(fd: int) -> None:
    """It polls again for what comes from now on. :param fd: of :func:`watch_oom`."""
    try:
        os.pread(fd, 4096, 0)
    except OSError:
        try:  # noqa: SIM105 - contextlib costs every pod's start
            os.read(fd, 8)  # v1's counter, which cannot be sought in
        except OSError:
            pass


def end_all(tree: CgroupTree) -> bool:
    """SIGKILL to all in the cgroup, without waiting for them. :returns: whether there was anybody.

    Not by ``cgroup.kill``: after it, being born there takes longer (see :mod:`kurma_core.linux.clone`).
    """
    if not tree.pids():
        return False
    _freeze(tree, True)  # so that nothing is born while we look
    try:
        signalled: set[int] = set()
        for _ in range(_ROUNDS):
            new = [pid for pid in tree.pids() if pid not in signalled]
            if not new:
                break
            signalled.update(new)
            if not _kill_members(tree, new):
                _kill_unasked(tree)
    finally:
        _freeze(tree, False)
    return True


def _kill_members(tree: CgroupTree, pids: list[int]) -> bool:
    """:returns: whether all could be signalled: a profile of AppArmor may forbid it."""
    allowed = True
    held = {}
    for pid in pids:
        try:
            held[pid] = process.pidfd_open(pid)
        except ProcessLookupError:
            continue
    # Held now, and still a member: no other process has got the number in between.
    members = set(tree.pids())
    for pid, fd in held.items():
        if pid in members:
            try:
                process.pidfd_send_signal(fd, _SIGKILL)
            except ProcessLookupError:
                pass
            except PermissionError:
                allowed = False
        os.close(fd)
    return allowed


def _kill_unasked(tree: CgroupTree) -> None:
    """By the kernel, which asks no profile; on v1 there is no such way but the end of the pod's PID 1."""
    for directory in tree.directories():
        try:
            fd = os.open(f"{directory}/cgroup.kill", os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            os.write(fd, b"1")
        finally:
            os.close(fd)


def _freeze(tree: CgroupTree, frozen: bool) -> None:
    for directory in tree.directories():
        for file, words in (("cgroup.freeze", ("0", "1")), ("freezer.state", ("THAWED", "FROZEN"))):
            try:
                fd = os.open(f"{directory}/{file}", os.O_WRONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                os.write(fd, words[frozen].encode())
            finally:
                os.close(fd)
            return
