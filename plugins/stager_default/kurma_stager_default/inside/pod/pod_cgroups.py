"""The cgroups of the pod and its apps: creation, settings, OOM kills, killing all processes.

The stager sees the pod's cgroup as the root of ``/sys/fs/cgroup``.
"""

from __future__ import annotations

import errno
import os

from kurma_core.linux import process
from kurma_core.linux.cgroups import CgroupTree, Layout, controllers
from kurma_stager_default.inside.errors import SetupError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_stager_default.inside.manifest import Plan

#: The stager's own cgroup: a v2 cgroup that enables controllers for its children must hold no process itself.
OWN = "stager"

_SIGKILL = 9
_ROUNDS = 64


class PodGroups:
    """The pod's cgroup and the apps' below it.

    :param layout: the mounted hierarchies; None: detect them.
    :attr:`wall` are the devices that the pod's cgroup allows; see :mod:`.device_cgroup`.
    """

    __slots__ = ("layout", "wall")

    def __init__(self, layout: Layout | None = None) -> None:
        self.layout = Layout.detect() if layout is None else layout
        self.wall: list[str] | None = []

    def app(self, name: str) -> CgroupTree:
        return CgroupTree(f"app-{name}", self.layout)

    def make_way(self) -> None:
        """Moves the stager out of the pod's own v2 cgroup, if that enables controllers for its children.

        The core may have started the stager in another cgroup already; a move costs some ten milliseconds.
        """
        for hierarchy in self.layout.hierarchies:
            if hierarchy.version == 2 and controllers(hierarchy.directory) and _is_in(hierarchy.directory):
                own = CgroupTree(OWN, Layout([hierarchy]))
                own.create()
                own.add(os.getpid())

    def apply_pod(self, plan: Plan) -> None:
        """Writes the settings of the pod's plan. :raises SetupError: the kernel refuses one."""
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
        """Makes the app's cgroup with its settings. :raises SetupError: the kernel refuses a setting."""
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
    """Whether the setting limits a block device that has been removed since the pod was made: ignore it then."""
    return error.errno == errno.ENODEV and setting["file"].startswith(("io.", "blkio."))


def oom_kills(tree: CgroupTree) -> int:
    """The number of processes of the cgroup that the kernel has OOM-killed; 0 if it does not count them."""
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
    """Opens a descriptor that reports that the cgroup is out of memory.

    :returns: the descriptor and the events to poll for; -1: the host does not report it. After an event, call
        :func:`saw_oom`.
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
    """Acknowledges an event, so that only later ones are reported. :param fd: of :func:`watch_oom`."""
    try:
        os.pread(fd, 4096, 0)
    except OSError:
        try:  # noqa: SIM105 - contextlib costs every pod's start
            os.read(fd, 8)  # v1: an eventfd, which does not support pread(2)
        except OSError:
            pass


def end_all(tree: CgroupTree) -> bool:
    """Sends SIGKILL to all processes of the cgroup, without waiting for their end. :returns: whether there were
    any.

    It does not use ``cgroup.kill``: after that, forks into the cgroup take longer (see
    :mod:`kurma_core.linux.clone`).
    """
    if not tree.pids():
        return False
    _freeze(tree, True)  # so that no process forks while the members are read
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
    """Kills these processes. :returns: False: an AppArmor profile forbids to signal one of them."""
    allowed = True
    held = {}
    for pid in pids:
        try:
            held[pid] = process.pidfd_open(pid)
        except ProcessLookupError:
            continue
    # A pidfd is open and the PID is still a member: so the number was not reused in between.
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
    """Kills by ``cgroup.kill``, which ignores AppArmor profiles. On v1, only the end of the pod's PID 1 does
    that."""
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
