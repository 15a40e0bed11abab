"""Hides paths of an app's root, and makes others read-only, as its plan lists them. Runs in the app's mount
namespace, after the volumes are mounted."""

from __future__ import annotations

import errno
import os

from kurma_core.linux import mounts
from kurma_core.linux.beneath import open_in_root
from kurma_stager_default.inside.app import proc_sys_dev

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_stager_default.inside.manifest import App

_MISSING = (errno.ENOENT, errno.ENOTDIR)


def apply(root: int, app: App) -> None:
    """Protects the paths of the lists in the app's plan. Links are followed as in the app's root; missing paths
    are skipped.

    :param root: a descriptor of the app's root.
    :raises OSError: with the path that cannot be protected.
    """
    plan, shared = app.plan, frozenset[int]()
    if any(mount.propagation == "rshared" for mount in app.mounts):
        shared = frozenset([mount.id for mount in mounts.mountinfo() if mount.peer_groups])
    for path in plan.read_only_paths or ():
        place = _open(root, path, shared)
        if place is not None:
            mounts.bind(place, place, attributes=mounts.ATTR_RDONLY)
            os.close(place)
    # After the read-only paths, so that a path in both lists is hidden.
    proc_sys_dev.mask(
        [place for path in plan.masked_paths or () if (place := _open(root, path, shared)) is not None]
    )


def _open(root: int, path: str, shared: frozenset[int]) -> int | None:
    """:param shared: IDs of mounts on which a mount would appear on the host, too."""
    try:
        place = open_in_root(root, path.lstrip("/"), os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _MISSING:
            return None
        raise OSError(error.errno, error.strerror, path) from None
    if shared and mounts.mount_id(place) in shared:
        raise OSError(errno.EINVAL, "it cannot be protected on a volume with the propagation rshared", path)
    return place
