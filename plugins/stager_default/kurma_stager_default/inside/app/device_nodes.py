"""Makes an app's device nodes in its ``/dev``. Runs in the app's mount namespace, as root of the host."""

from __future__ import annotations

import os
import stat

from kurma_core.linux import mounts
from kurma_core.trees.mount_targets import make_dirs
from kurma_stager_default.inside.errors import SetupError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kurma_stager_default.inside.manifest import Plan
    from kurma_stager_default.inside.user_namespace import Ids

_TOP = "/dev/"
_TYPES = {"c": stat.S_IFCHR, "b": stat.S_IFBLK}


def make(dev: int, plan: Plan, ids: Ids) -> None:
    """Makes the nodes of the plan's devices.

    :param dev: the app's ``/dev``, which holds only entries that Kurma has made.
    :raises SetupError: a node cannot be made.
    """
    for device in plan.devices:
        path: str = device["path"]
        if not path:
            continue  # the device is mounted as a volume
        try:
            _node(dev, path, device, ids, alive=plan.privileged)
        except FileExistsError:
            continue  # the pod gives it to each of its apps, and this one has it already
        except OSError as error:
            raise SetupError(f"device {path} cannot be made: {error.strerror}") from None


def _node(dev: int, path: str, device: dict[str, Any], ids: Ids, *, alive: bool) -> None:
    """:param alive: this ``/dev`` is not ``nodev``: every device node in it can be opened."""
    if not path.startswith(_TOP):
        raise SetupError(f"device {path}: not in /dev")
    way, _, name = path[len(_TOP) :].rpartition("/")
    directory = make_dirs(dev, way, 0o755, *ids.root) if way else os.dup(dev)
    try:
        os.mknod(name, _TYPES[device["kind"]], os.makedev(device["major"], device["minor"]), dir_fd=directory)
        os.chown(name, *_owner(device, ids), dir_fd=directory, follow_symlinks=False)
        os.chmod(f"/proc/self/fd/{directory}/{name}", device["mode"])
        if not alive:
            # A node under nodev cannot be opened: mount this one over itself without nodev.
            node = mounts.open_tree(directory, name, recursive=False, follow=False)
            attributes = mounts.ATTR_NOSUID | mounts.ATTR_NOEXEC
            mounts.set_attributes(node, attributes, clear=mounts.ATTR_NODEV, recursive=False)
            place = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            mounts.move_mount(node, place)
            os.close(place)
            os.close(node)
    finally:
        os.close(directory)


def _owner(device: dict[str, Any], ids: Ids) -> tuple[int, int]:
    """The owner's user and group on the host. The pod's root replaces an id that its user namespace lacks."""
    root_user, root_group = ids.root
    try:
        user = ids.uid(device["uid"])
    except SetupError:
        user = root_user
    try:
        return user, ids.gid(device["gid"])
    except SetupError:
        return user, root_group
