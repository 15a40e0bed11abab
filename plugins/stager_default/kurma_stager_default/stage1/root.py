"""Makes the root of the stage1's supervisor: stage1's own tree with the mounts that the stager expects (Kurma
Stager Specification, Filesystem Configuration). The mounts are in a mount namespace of the pod, not on the host.
"""

from __future__ import annotations

import os
import stat

from kurma_core.linux import beneath, mounts
from kurma_core.trees import mount_targets
from kurma_stager_default.stage1.place import APPS, Stage1Error, why

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kurma_core.linux.cgroups import CgroupTree
    from kurma_stager_default.stage1.document import Document
    from kurma_stager_default.stage1.place import Place

_CLOSED = mounts.ATTR_NOSUID | mounts.ATTR_NODEV | mounts.ATTR_NOEXEC
_CGROUPS = "/sys/fs/cgroup"
#: The directory of empty volumes, in the pod's directory.
_EMPTY = "sharedVolumes"


def enter(place: Place, document: Document, manifest: bytes, tree: CgroupTree, userns: int) -> None:
    """Makes the root and changes to it. Runs in a private mount namespace, whose root is still the host's.

    :param userns: a descriptor of the pod's user namespace; -1: it has none.
    :raises Stage1Error: a volume's source is missing, or a mount has failed.
    """
    volumes = {name: _volume(place, name, volume, document) for name, volume in document.volumes.items()}
    binds = [("/dev", _bind("/dev"))]
    binds += [
        (_CGROUPS if where == "." else f"{_CGROUPS}/{where}", _bind(path)) for path, where in tree.mount_plan()
    ]
    if userns >= 0:
        binds.append(("/userns", mounts.open_tree(userns)))
    try:
        base = os.open(place.rootfs, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        own = mounts.open_tree(base)
        mounts.set_attributes(own, 0, propagation=mounts.MS_PRIVATE)
        mounts.move_mount_to(own, place.rootfs)
        os.close(base)
        # A process that has not executed an app's program yet runs this one: no app may write to it.
        programs = mounts.open_tree(own, "opt/stager", recursive=False)
        mounts.set_attributes(programs, mounts.ATTR_RDONLY, recursive=False)
        _mount(own, "/opt/stager", programs)
        _mount(own, "/run", mounts.new_filesystem("tmpfs", {"mode": "0755", "size": "64m"}, _CLOSED))
        _mount(own, "/proc", mounts.new_filesystem("proc", {}, _CLOSED))
        _mount(own, "/sys", mounts.new_filesystem("sysfs", {}, _CLOSED | mounts.ATTR_RDONLY))
        if tree.layout.kind != "v2":
            _mount(own, _CGROUPS, mounts.new_filesystem("tmpfs", {"mode": "0755"}, _CLOSED))
        for target, mount in binds:
            _mount(own, target, mount)
        for name, target in tree.links():
            os.symlink(target, f"sys/fs/cgroup/{name}", dir_fd=own)
        for name, mount in volumes.items():
            _mount(own, f"/volumes/{name}", mount)
        for app in document.apps:
            _link(own, f"layers/{app}", f"/{APPS}/{app}/rootfs")
        _write(own, "manifest", manifest)
        mounts.pivot_root(own)
        os.close(own)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise Stage1Error(f"cannot make its root filesystem: {where}{why(error)}") from None


def _bind(path: str) -> int:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        tree = mounts.open_tree(fd)
        mounts.set_attributes(tree, 0, propagation=mounts.MS_PRIVATE)
        return tree
    finally:
        os.close(fd)


def _mount(root: int, target: str, mount: int) -> None:
    directory = stat.S_ISDIR(os.fstat(mount).st_mode)
    fd = mount_targets.make_mount_target(root, target, directory=directory)
    mounts.move_mount(mount, fd)
    os.close(fd)
    os.close(mount)


def _volume(place: Place, name: str, volume: dict[str, Any], document: Document) -> int:
    """A detached mount of the volume. It is writable here; an app's own mount of it may be read-only."""
    kind = volume.get("kind")
    try:
        if kind == "host":
            source = volume.get("source") or ""
            if not source.startswith("/"):
                raise Stage1Error(f"volume {name}: its source is not an absolute path: {source!r}")
            fd = os.open(source, os.O_PATH | os.O_CLOEXEC)
        elif kind == "empty":
            fd = _empty(place, name, volume, document)
        else:
            raise Stage1Error(f"volume {name}: this stage1 knows no volumes of kind {kind!r}")
        try:
            recursive = volume.get("recursive") is not False
            tree = mounts.open_tree(fd, recursive=recursive)
            read_only = mounts.ATTR_RDONLY if volume.get("readOnly") is True else 0
            mounts.set_attributes(tree, read_only, recursive=recursive, propagation=mounts.MS_PRIVATE)
            return tree
        finally:
            os.close(fd)
    except OSError as error:
        raise Stage1Error(f"volume {name}: {volume.get('source') or _EMPTY}: {why(error)}") from None
    except ValueError:
        raise Stage1Error(f"volume {name}: its mode or owner is not a number") from None


def _empty(place: Place, name: str, volume: dict[str, Any], document: Document) -> int:
    """Makes an empty volume in the pod's directory. Its owner is given as an id inside of the pod.

    :returns: a descriptor of it."""
    path = f"{place.path}/{_EMPTY}/{name}"
    os.makedirs(path, 0o755, exist_ok=True)
    os.chmod(path, int(volume.get("mode") or "0755", 8))
    userns = document.value["stagerConfig"]["kurma.io"]["userns"]
    first = userns["uids"][0][1] if userns else 0
    os.chown(path, first + int(volume.get("uid") or 0), first + int(volume.get("gid") or 0))
    return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _link(root: int, path: str, to: str) -> None:
    os.close(mount_targets.make_dirs(root, os.path.dirname(path)))
    fd = beneath.open_beneath(root, os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
    try:
        os.symlink(to, os.path.basename(path), dir_fd=fd)
    finally:
        os.close(fd)


def _write(root: int, path: str, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=root)
    with open(fd, "wb") as file:
        file.write(content)
