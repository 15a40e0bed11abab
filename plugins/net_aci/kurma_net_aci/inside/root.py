"""Enters the root of a network's scripts: the network's own tree, with some directories of the host mounted in
it."""

from __future__ import annotations

import errno
import os

from kurma_core.linux import mounts, namespaces
from kurma_core.linux.beneath import open_in_root

#: Directories of the host that are mounted in the root, with present and future mounts below them.
SHOWN = ("proc", "sys", "dev", "run/netns")
_DIRECTORY = os.O_PATH | os.O_DIRECTORY


def enter(rootfs: str) -> None:
    """Moves this process into a mount namespace of its own, with ``rootfs`` as its root. The network, IPC, PID and
    UTS namespaces stay the host's (Kurma Network Specification, The Container and The API).

    Later mounts of the host below :data:`SHOWN` propagate into the root, so that a helper of setup finds the
    network namespaces of later pods. Mounts in the root do not propagate to the host.

    :raises OSError: with the path.
    """
    # Before the namespace is copied: a mount that becomes shared only later would not propagate into the copy.
    namespaces.share_directory("/run/netns")
    namespaces.unshare(namespaces.CLONE_NEWNS)
    mounts.mount(None, "/", None, mounts.MS_REC | mounts.MS_SLAVE)
    root = mounts.open_tree(mounts.AT_FDCWD, rootfs, recursive=False)
    # The state directory may be mounted noexec; the image was verified, so its programs may be executed.
    hindrances = mounts.ATTR_NOEXEC | mounts.ATTR_NODEV | mounts.ATTR_NOSUID | mounts.ATTR_RDONLY
    mounts.set_attributes(root, 0, clear=hindrances, recursive=False)
    mounts.move_mount_to(root, rootfs)
    for place in SHOWN:
        source = os.open(f"/{place}", _DIRECTORY | os.O_CLOEXEC)
        mounts.bind(source, _directory(root, place))
    mounts.pivot_root(root)


def _directory(root: int, path: str) -> int:
    """Opens a directory in the image, and makes it if it is missing. Links are resolved inside the image's
    root."""
    at, way = root, ""
    for name in path.split("/"):
        way = f"{way}/{name}"
        try:
            found = open_in_root(root, way, _DIRECTORY)
        except FileNotFoundError:
            try:  # noqa: SIM105 - contextlib is not light
                os.mkdir(name, 0o755, dir_fd=at)
            except FileExistsError:
                pass  # another call has made it; or it is a dangling link, for which the next line raises
            found = open_in_root(root, way, _DIRECTORY)
        except NotADirectoryError:
            raise OSError(errno.ENOTDIR, "is no directory in the image", way) from None
        at = found
    return at
