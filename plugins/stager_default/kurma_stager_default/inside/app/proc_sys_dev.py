"""Mounts ``/proc``, ``/sys`` and ``/dev`` for an app, masks and protects parts. Runs in the app's mount
namespace."""

from __future__ import annotations

import errno
import os
import stat

from kurma_core.linux import mounts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_stager_default.inside.manifest import Plan
    from kurma_stager_default.inside.user_namespace import Ids

#: The nodes of an app's ``/dev``, in the notation of the devices controller.
NODES = {
    "null": "c 1:3",
    "zero": "c 1:5",
    "full": "c 1:7",
    "random": "c 1:8",
    "urandom": "c 1:9",
    "tty": "c 5:0",
}
#: Also allowed: the terminal multiplexer, terminals, and making any node, which cannot be opened.
ALLOWED = (*[f"{node} rwm" for node in NODES.values()], "c 5:2 rwm", "c 136:* rwm", "c *:* m", "b *:* m")

_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
_MASKED_IN_PROC = (
    "acpi",
    "asound",
    "dynamic_debug",  # root writes to it: what the whole kernel logs
    "interrupts",
    "kcore",
    "key-users",
    "keys",
    "latency_stats",
    "sched_debug",
    "scsi",
    "timer_list",
    "timer_stats",
)
_MASKED_IN_SYS = ("dev/block", "devices/virtual/powercap", "firmware", "fs/selinux")
# A directory of each CPU, if the machine has it.
_CPUS, _MASKED_IN_CPU = "devices/system/cpu", "thermal_throttle"
_READ_ONLY = ("bus", "fs", "irq", "sys", "sysrq-trigger")

#: Mounts for the pod's first app, made before the pod is known. In the stager's mount namespace, which no app
#: enters.
AHEAD = "/run/ahead"
_PLACES = ("proc", "sys", "dev")
#: The stager's own entries of ``/dev``. Volumes may be mounted beside them.
OWN_IN_DEV = (*NODES, "console", "notify", "pts")

_CLOSED = mounts.ATTR_NOSUID | mounts.ATTR_NODEV | mounts.ATTR_NOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _Usual:
    """The part of a plan that :func:`mount_all` reads, for an app without special rights or devices."""

    privileged = False
    devices = ()
    masked_paths = read_only_paths = None


def nodev(plan: Plan) -> int:
    """Mount attributes of the root: ``nodev``, since devices work in ``/dev`` only; not for a privileged app."""
    return 0 if plan.privileged else mounts.ATTR_NODEV


def make_ahead(shm: str, ids: Ids) -> None:
    """Mounts at :data:`AHEAD` what nearly every app needs. Runs in a child of the stager, since ``/proc`` shows
    the PID namespace of the process that mounts it.

    :param ids: of a pod without a user namespace.
    :raises OSError: with what could not be mounted.
    """
    os.mkdir(AHEAD, 0o700)
    root = os.open(AHEAD, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        mount_all(root, shm, ids, _Usual)  # type: ignore[arg-type]
    finally:
        os.close(root)


def move_ahead(root: int, ids: Ids) -> None:
    """Moves the mounts of :func:`make_ahead` to the app's root. Runs in the app's mount namespace, which is a copy
    of the stager's.

    :raises OSError: with the path that could not be moved.
    """
    for name in _PLACES:
        os.close(_mount(root, name, os.open(f"{AHEAD}/{name}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), ids))


def drop_ahead() -> None:
    """Unmounts the stager's own copy, when an app has moved its copy or needs none. Runs in the stager."""
    for name in _PLACES:
        mounts.umount(f"{AHEAD}/{name}", mounts.UMOUNT_NOFOLLOW | mounts.MNT_DETACH)


def mount_all(root: int, shm: str, ids: Ids, plan: Plan, notify: str = "") -> None:
    """Mounts ``/proc``, ``/sys`` and ``/dev`` in the app's root.

    :param shm: where the pod's shared memory is mounted, which its apps share.
    :param ids: maps the app's ids to the host's.
    :param plan: the app's: its devices; for a privileged app nothing is masked. Its own lists of masked and
        read-only paths are applied later, by :mod:`.path_masks`.
    :param notify: a socket to be shown as ``/dev/notify``; empty: none.
    :raises OSError: with the path that could not be mounted.
    """
    read_only = 0 if plan.privileged else mounts.ATTR_RDONLY
    proc = _mount(root, "proc", mounts.new_filesystem("proc", None, _CLOSED), ids)
    sys = _mount(root, "sys", mounts.new_filesystem("sysfs", None, _CLOSED | read_only), ids)
    _dev(root, shm, ids, plan, notify)
    if not plan.privileged:
        if plan.read_only_paths is None:
            for name in _READ_ONLY:
                _read_only(proc, name)
        if plan.masked_paths is None:
            masked = [(proc, name) for name in _MASKED_IN_PROC]
            masked += [(sys, name) for name in (*_MASKED_IN_SYS, *_in_cpus(sys))]
            mask([place for top, name in masked if (place := _open(top, name)) is not None])
    os.close(proc)
    os.close(sys)


def _mount(root: int, name: str, mount: int, ids: Ids) -> int:
    """Moves a mount to a directory of the root. Symbolic links are refused: the app could point one elsewhere
    later, or to a place where another mount hides this one.

    :returns: ``mount``.
    """
    from kurma_core.trees import mount_targets  # not for the supervisor to hold

    try:
        place = mount_targets.make_dirs(root, name, 0o755, *ids.root)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(
                error.errno, "the image has a symbolic link there; make it a directory", f"/{name}"
            ) from None
        if error.errno == errno.ENOTDIR:
            raise OSError(error.errno, "the image has a file there; make it a directory", f"/{name}") from None
        raise
    try:
        mounts.move_mount(mount, place)
    finally:
        os.close(place)
    return mount


def _open(directory: int, path: str) -> int | None:
    """Opens an entry of ``/proc`` or ``/sys``; None: this kernel does not have it."""
    try:
        return os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise


def _in_cpus(sys: int) -> list[str]:
    """The paths to mask in the directories of all CPUs; empty if the first CPU's has no such entry."""
    first = _open(sys, f"{_CPUS}/cpu0/{_MASKED_IN_CPU}")
    if first is None:
        return []
    os.close(first)
    directory = os.open(_CPUS, _DIRECTORY, dir_fd=sys)
    try:
        names = [name for name in os.listdir(directory) if name[:3] == "cpu" and name[3:].isdigit()]
    finally:
        os.close(directory)
    return [f"{_CPUS}/{name}/{_MASKED_IN_CPU}" for name in names]


def _read_only(proc: int, name: str) -> None:
    place = _open(proc, name)
    if place is None:
        return
    mounts.bind(place, place, attributes=_CLOSED | mounts.ATTR_RDONLY)
    os.close(place)


def mask(places: list[int]) -> None:
    """Mounts an empty read-only directory, or the null device, over these files and directories.

    :param places: descriptors; they are closed.
    """
    null = os.open("/dev/null", os.O_PATH | os.O_CLOEXEC)
    empty = -1
    for place in places:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            mounts.bind(null, place, recursive=False, attributes=mounts.ATTR_RDONLY | mounts.ATTR_NOSUID)
        elif empty < 0:
            options: dict[str, str | None] = {"mode": "0555", "size": "4k", "nr_inodes": "2"}
            empty = mounts.new_filesystem("tmpfs", options, _CLOSED | mounts.ATTR_RDONLY)
            mounts.move_mount(empty, place)
        else:
            mounts.bind(empty, place, recursive=False)
        os.close(place)
    os.close(null)
    if empty >= 0:
        os.close(empty)


def _dev(root: int, shm: str, ids: Ids, plan: Plan, notify: str) -> None:
    """Mounts ``/dev``. Its nodes are bound from the stager's own ``/dev``: nodes that the app makes with mknod(2)
    cannot be opened, since the file system is ``nodev``."""
    uid, gid = ids.root
    options: dict[str, str | None] = {"mode": "0755", "size": "64k", "uid": str(uid), "gid": str(gid)}
    attributes = mounts.ATTR_NOSUID | (0 if plan.privileged else mounts.ATTR_NODEV)
    dev = _mount(root, "dev", mounts.new_filesystem("tmpfs", options, attributes), ids)
    for name, target in _LINKS.items():
        os.symlink(target, name, dir_fd=dev)
        os.chown(name, uid, gid, dir_fd=dev, follow_symlinks=False)
    for name in NODES:
        _node(dev, name, f"/dev/{name}", clear=mounts.ATTR_NODEV)
    if notify:
        _node(dev, "notify", notify, clear=0)
    for name in ("pts", "shm", "mqueue"):
        os.mkdir(name, 0o755, dir_fd=dev)
    terminals = {"newinstance": None, "ptmxmode": "0666", "mode": "0620", "gid": str(ids.terminals)}
    pts = mounts.new_filesystem("devpts", terminals, mounts.ATTR_NOSUID | mounts.ATTR_NOEXEC)
    for name in (".", "ptmx"):
        os.chown(name, uid, gid, dir_fd=pts)
    _attach(dev, "pts", pts)
    _attach(dev, "mqueue", mounts.new_filesystem("mqueue", None, _CLOSED))
    _attach(dev, "shm", mounts.open_tree(mounts.AT_FDCWD, shm, recursive=False))
    if plan.devices:
        from kurma_stager_default.inside.app import device_nodes

        device_nodes.make(dev, plan, ids)
    os.close(dev)


def _node(dev: int, name: str, source: str, *, clear: int) -> None:
    os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=dev))
    node = mounts.open_tree(mounts.AT_FDCWD, source, recursive=False)
    # A node under nodev cannot be opened, so the mount of this one is without nodev. The node is the host's:
    # read-only protects its owner and mode, and does not prevent writes to the device.
    attributes = mounts.ATTR_RDONLY | mounts.ATTR_NOSUID | mounts.ATTR_NOEXEC
    mounts.set_attributes(node, attributes, clear=clear, recursive=False)
    _attach(dev, name, node)


def _attach(directory: int, name: str, mount: int) -> None:
    place = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    mounts.move_mount(mount, place)
    os.close(place)
    os.close(mount)
