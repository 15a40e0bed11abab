"""The root of a network's scripts: the network's own tree, and in it what of the host they need."""

from __future__ import annotations

import errno
import os

from kurma_core.linux import mounts, namespaces
from kurma_core.linux.beneath import open_in_root

#: What of the host is seen in the root, with all that is mounted there, now and later.
SHOWN = ("proc", "sys", "dev", "run/netns")
_DIRECTORY = os.O_PATH | os.O_DIRECTORY


def enter(rootfs: str) -> None:
    """Moves this process into a mount namespace of its own, with ``rootfs`` as its root. The network, IPC, PID and
    UTS namespaces stay the host's (Kurma Network Specification, The Container and The API).

    What the host mounts later below :data:`SHOWN` comes in: a helper that setup has left finds the namespaces of
    pods that are made after it. Nothing that is mounted here gets out.

    :raises OSError: with the path.
    """
    # Before the namespace is copied: what becomes a shared mount only later would lead nothing in.
    namespaces.share_directory("/run/netns")
    namespaces.unshare(namespaces.CLONE_NEWNS)
    mounts.mount(None, "/", None, mounts.MS_REC | mounts.MS_SLAVE)
    root = mounts.open_tree(mounts.AT_FDCWD, rootfs, recursive=False)
    # Where state is kept, a host may forbid to execute anything; what is executed here was verified.
    hindrances = mounts.ATTR_NOEXEC | mounts.ATTR_NODEV | mounts.ATTR_NOSUID | mounts.ATTR_RDONLY
    mounts.set_attributes(root, 0, clear=hindrances, recursive=False)
    mounts.move_mount_to(root, rootfs)
    for place in SHOWN:
        source = os.open(f"/{place}", _DIRECTORY | os.O_CLOEXEC)
        mounts.bind(source, _directory(root, place))
    mounts.pivot_root(root)


def _directory(root: int, path: str) -> int:
    """A directory in the image, made where it is missing; links of the image lead where they do from inside."""
    at, way = root, ""
    for name in path.split("/"):
        way = f"{way}/{name}"
        try:
            found = open_in_root(root, way, _DIRECTORY)
        except FileNotFoundError:
            try:  # noqa: SIM105 - contextlib is not light
                os.mkdir(name, 0o755, dir_fd=at)
            except FileExistsError:
                pass  # another call has made it; or it is a link to nothing, which the next line tells
            found = open_in_root(root, way, _DIRECTORY)
        except NotADirectoryError:
            raise OSError(errno.ENOTDIR, "is no directory in the image", way) from None
        at = found
    return at
