"""Shows an app its own cgroup at ``/sys/fs/cgroup``: on v1 a directory for each hierarchy, on v2 the cgroup.

The mounts are cloned in the stager's mount namespace, before the app's process enters the app's root, where the
stager's cgroup file systems cannot be reached.
"""

from __future__ import annotations

import errno
import os

from kurma_core.linux import mounts
from kurma_core.linux.beneath import open_beneath

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.linux.cgroups import CgroupTree

_PLACE = "sys/fs/cgroup"
_CLOSED = mounts.ATTR_NOSUID | mounts.ATTR_NODEV | mounts.ATTR_NOEXEC


def clone(tree: CgroupTree) -> list[tuple[str, int]]:
    """Clones the app's part of each hierarchy.

    :param tree: the app's cgroup. :returns: paths below ``/sys/fs/cgroup``, ``"."`` for that itself, and detached
        mounts.
    """
    return [
        (
            hierarchy.place,
            mounts.open_tree(mounts.AT_FDCWD, f"{hierarchy.directory}/{tree.name}", recursive=False),
        )
        for hierarchy in tree.layout.hierarchies
    ]


def attach(root: int, clones: list[tuple[str, int]], *, writable: bool) -> None:
    """Mounts the clones in the app's root, whose ``/sys`` is mounted, and closes them.

    :param root: a descriptor of the app's root. :param writable: for a privileged app.
    :raises OSError: with the path that could not be mounted.
    """
    closed = _CLOSED if writable else _CLOSED | mounts.ATTR_RDONLY
    try:
        place = open_beneath(root, _PLACE, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
        place = -1  # the app's own /sys has no such directory
    whole = [clone for name, clone in clones if name == "."]
    if place >= 0 and whole:
        _attach(whole[0], place, closed)
    elif place >= 0 and clones:
        _attach_each(clones, place, closed)
    for _, clone in clones:
        os.close(clone)
    if place >= 0:
        os.close(place)


def _attach_each(clones: list[tuple[str, int]], place: int, closed: int) -> None:
    options: dict[str, str | None] = {"mode": "0755", "size": "4k", "nr_inodes": "128"}
    top = mounts.new_filesystem("tmpfs", options, _CLOSED)
    mounts.move_mount(top, place)
    for name, clone in clones:
        os.mkdir(name, 0o755, dir_fd=top)
        inner = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
        _attach(clone, inner, closed)
        os.close(inner)
        if "," in name:
            for controller in name.split(","):
                os.symlink(name, controller, dir_fd=top)
    mounts.set_attributes(top, _CLOSED | mounts.ATTR_RDONLY, recursive=False)
    os.close(top)


def _attach(clone: int, place: int, attributes: int) -> None:
    mounts.set_attributes(clone, attributes, recursive=False)
    mounts.move_mount(clone, place)
