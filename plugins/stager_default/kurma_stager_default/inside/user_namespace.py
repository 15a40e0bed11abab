"""The pod's user namespace: maps its user and group ids to the host's, enters it, maps the owners of mounts.

The stager stays in the host's user namespace. It makes an app's files with its own rights, and gives them to the
host ids that the app's ids are mapped to. A child enters the namespace shortly before exec, and cannot leave it.
An app's mounts are locked there: even an app that may mount cannot unmount them.
"""

from __future__ import annotations

import errno
import os

from kurma_core.linux import capabilities, libc, mounts, namespaces
from kurma_stager_default.inside.errors import SetupError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kurma_stager_default.inside.app.privileges import Identity

    Map = list[list[int]]

#: Where the core pins the namespace in the stager's root.
PLACE = "/userns"
#: Directory for the layers with mapped owners, in the mount namespace of one execution.
LAYERS = "/run/layers"


class Ids:
    """Maps ids of the pod's user namespace to ids of the host; without a user namespace they are the same.

    :param value: ``userns`` of ``stagerConfig``; None: the pod has no user namespace.
    :attr:`path` is where the namespace is pinned; empty: there is none.
    """

    __slots__ = ("_gids", "_uids", "path")

    def __init__(self, value: dict[str, Any] | None) -> None:
        everything = [[0, 0, 1 << 32]]
        self.path: str = "" if value is None else value["path"]
        self._uids: Map = everything if value is None else value["uids"]
        self._gids: Map = everything if value is None else value["gids"]

    def uid(self, inside: int) -> int:
        """:raises SetupError: the namespace has no such user."""
        return _outside(self._uids, inside, "user")

    def gid(self, inside: int) -> int:
        """:raises SetupError: the namespace has no such group."""
        return _outside(self._gids, inside, "group")

    def check(self, identity: Identity) -> None:
        """:raises SetupError: the namespace lacks one of these ids; the kernel would only answer EINVAL."""
        self.uid(identity.user.uid)
        for group in (identity.user.gid, *identity.groups):
            self.gid(group)

    @property
    def root(self) -> tuple[int, int]:
        """The user and group of the host that root of the pod is mapped to."""
        return self.uid(0), self.gid(0)

    @property
    def terminals(self) -> int:
        """The group of the host for the pod's terminals: that of ``tty`` (5), else root's."""
        try:
            return self.gid(5)
        except SetupError:
            return self.gid(0)

    def make_as_root(self) -> None:
        """From now on, files that this process makes belong to the pod's root. Its capabilities, which a change of
        the file system user drops, are set again."""
        _, permitted, inheritable = capabilities.get()
        libc.syscall("setfsgid", self.gid(0))
        libc.syscall("setfsuid", self.uid(0))
        capabilities.set_(permitted, permitted, inheritable)

    def note(self) -> str:
        """A note for the user on the namespace."""
        return f"user namespace: the pod's root is user {self.uid(0)} of the host, and has no right outside of it"

    def open(self) -> int:
        """Opens the namespace, for a child that will change its root. :returns: a descriptor; -1: there is
        none."""
        return os.open(self.path, os.O_RDONLY | os.O_CLOEXEC) if self.path else -1


def _outside(ranges: Map, inside: int, kind: str) -> int:
    for first, outside, count in ranges:
        if first <= inside < first + count:
            return outside + inside - first
    known = ", ".join([f"{first} to {first + count - 1}" for first, _, count in ranges])
    raise SetupError(f"{kind} {inside} is outside of the pod's user namespace, which has the ids {known}")


def find() -> int:
    """Opens the user namespace in the stager's own root, before the manifest is read. :returns: a descriptor; -1:
    there is none."""
    try:
        return os.open(PLACE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1


def enter(fd: int) -> None:
    """Becomes root of the user namespace, with all capabilities in it and none outside. The process cannot leave
    it again."""
    namespaces.setns(fd, namespaces.CLONE_NEWUSER)
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def enter_with_mounts(fd: int) -> None:
    """As :func:`enter`, with a new mount namespace: a copy of this process's mounts, which the user namespace owns
    and in which they are locked."""
    enter(fd)
    namespaces.unshare(namespaces.CLONE_NEWNS)


def map_layers(layers: list[str], userns: int) -> list[str]:
    """Binds layers as id-mapped mounts: files of the host's user 0 belong to the app's root there, and so on. The
    layers' files are not changed. Runs as root in the mount namespace of one execution.

    :returns: the paths of the mounts, in the same order.
    """
    os.makedirs(LAYERS, 0o755, exist_ok=True)
    places = []
    for number, layer in enumerate(layers):
        place = f"{LAYERS}/{number}"
        os.makedirs(place, 0o755, exist_ok=True)
        tree = mounts.open_tree(mounts.AT_FDCWD, layer, recursive=False)
        try:
            _map(tree, userns, f"layer {os.path.basename(layer)[:20]}", layer, recursive=False)
            mounts.move_mount_to(tree, place)
        finally:
            os.close(tree)
        places.append(place)
    return places


def map_copy(tree: int, userns: int) -> None:
    """Maps the owners of a copied root. :param tree: a detached mount of the copy of all layers."""
    _map(tree, userns, "the copy of its layers", f"/proc/self/fd/{tree}", recursive=False)


def map_volume(tree: int, userns: int, name: str) -> None:
    """Maps the owners of a volume. :param tree: a detached mount of the volume, submounts included."""
    _map(tree, userns, f"volume {name}", f"/proc/self/fd/{tree}", recursive=True)


def _map(tree: int, userns: int, what: str, path: str, *, recursive: bool) -> None:
    try:
        mounts.map_ids(tree, userns, recursive=recursive)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        raise SetupError(
            f"{what}: owners cannot be mapped to the pod's user namespace: {_why(error, path)}"
        ) from None


def _why(error: OSError, path: str) -> str:
    kind = _file_system(path)
    if error.errno == errno.EPERM:
        return f"on the host it is a mapped mount already ({kind})"
    if error.errno == errno.EINVAL:
        return f"its file system ({kind}), or one mounted below it, cannot be mapped by this kernel"
    return f"{error.strerror} ({kind})"


def _file_system(path: str) -> str:
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for mount in mounts.mountinfo():
        if mount.device == wanted:
            return mount.fstype
    return "of an unknown type"
