"""Mounts an app's volumes in its root, and fills empty volumes with what the image has in their place."""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from kurma_core.linux import mounts
from kurma_stager_default.inside import user_namespace
from kurma_stager_default.inside.app import proc_sys_dev
from kurma_stager_default.inside.errors import SetupError
from kurma_stager_default.inside.manifest import App, Mount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: Characters of a path in a message, which has to fit in a pipe.
_LONG = 400
_READABLE = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
#: Files of ``/proc`` over which a volume may be mounted.
_PROC_FILES = [
    f"/proc/{name}"
    for name in ("cpuinfo", "diskstats", "loadavg", "meminfo", "slabinfo", "stat", "swaps", "uptime")
]
#: Where the images of volumes with a sub path are mounted, in the mount namespace of one execution.
_IMAGES = "/run/images"
_NO_OVERLAY = (errno.ENODEV, errno.EINVAL, errno.EOPNOTSUPP)


class _Layer:
    """A directory to copy, as :func:`kurma_core.trees.merging.merge` wants it."""

    root = ""
    filter = None
    removed = ()
    opaque = ()
    implied = ()

    def __init__(self, path: str) -> None:
        self.path = path


def merge(target: str, paths: Iterable[str]) -> None:
    from kurma_core.trees import merging

    merging.merge(target, [_Layer(path) for path in paths], copy=True)


class _Target:
    """The place where a volume will be mounted. :attr:`path` is its path with links resolved, :attr:`replaced` are
    the image's files that were removed for it.

    :param source: a descriptor of the volume.
    :param kept: real paths of volumes that are mounted already, in which no file is replaced.
    """

    __slots__ = ("fd", "mount", "path", "replaced", "source")

    def __init__(self, mount: Mount, source: int, root: int, ids: user_namespace.Ids, kept: list[str]) -> None:
        self.mount = mount
        self.source = source
        directory = stat.S_ISDIR(os.fstat(source).st_mode)
        try:
            from kurma_core.trees import mount_targets  # not for the supervisor to hold

            place = mount_targets.make_place(root, mount.path, directory=directory, owner=ids.root, kept=kept)
        except OSError as error:
            reason = error.strerror
            if error.errno == errno.EROFS and any(_holds(path, mount.path) for path in kept):
                reason = "the volume above it is read-only, and has no such path"
            raise SetupError(f"{self.name}: {reason}") from None
        self.fd, self.path, self.replaced = place.fd, place.path, place.replaced

    @property
    def name(self) -> str:
        return f"{_named(self.mount)}: cannot be mounted at {_shown(self.mount.path)}"


def _shown(path: str) -> str:
    """A path, shortened in the middle if it is too long for a message."""
    return path if len(path) <= _LONG else f"{path[: _LONG // 2]}…{path[-_LONG // 2 :]}"


def mount_volumes(
    app: App,
    root: int,
    note: Callable[[str], None],
    ids: user_namespace.Ids,
    namespace: int,
    directory: str,
) -> None:
    """Mounts the app's volumes, each before those below it.

    :param namespace: a descriptor of the pod's user namespace; -1: none.
    :param directory: of this execution, for a copy of an image where overlay is not to be had.
    """
    done: list[tuple[str, Mount]] = []
    mapped = False
    for mount in sorted(app.mounts, key=lambda each: each.path.count("/")):
        source = _image(mount, namespace, directory, len(done)) if mount.layers else _volume(mount)
        if mapped and any(_holds(path, mount.path) for path, _ in done):
            ids.make_as_root()  # the host's root has no id in a mapped volume, and cannot make a place there
            mapped = False
        target = _Target(mount, source, root, ids, [path for path, _ in done])
        _check(target, app, done)
        for path in target.replaced:
            note(f"app {app.name}: {_named(mount)} takes the place of the image's file {_shown(path)}")
        if mount.seed:
            _seed(target)
        elif _hides(target):
            note(f"app {app.name}: {_named(mount)} hides what the image has at {_shown(mount.path)}")
        _bind(target, app, namespace if mount.idmap and not mount.layers else -1)
        os.close(target.source)
        os.close(target.fd)
        done.append((target.path, mount))
        mapped = mapped or (mount.idmap and namespace >= 0)


def _volume(mount: Mount) -> int:
    try:
        return os.open(mount.secret or f"/volumes/{mount.volume}", os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        raise SetupError(f"{_named(mount)}: does not exist") from None


def _named(mount: Mount) -> str:
    """The mount's source, for messages."""
    return f"{'secret' if mount.secret else 'volume'} {mount.volume}"


def _image(mount: Mount, namespace: int, directory: str, number: int) -> int:
    """Mounts the layers of an image volume as one read-only tree, for this execution. :returns: a descriptor of
    the volume's directory or file in it."""
    from kurma_core.linux import beneath
    from kurma_core.trees import overlay

    plain = [f"/layers/{layer}" for layer in mount.layers]
    layers = user_namespace.map_layers(plain, namespace) if namespace >= 0 else plain
    try:
        tree = overlay.mount_overlay(layers)
    except OSError as error:
        if error.errno not in _NO_OVERLAY:
            raise
        copy = f"{directory}/image-{number}"
        os.mkdir(copy, 0o700)
        merge(copy, reversed(plain))
        tree = mounts.open_tree(mounts.AT_FDCWD, copy, recursive=False)
        mounts.set_attributes(tree, mounts.ATTR_RDONLY, recursive=False)
        if namespace >= 0:
            user_namespace.map_copy(tree, namespace)
    if not mount.sub_path:
        return tree
    # Older kernels copy no part of a detached mount.
    place = f"{_IMAGES}/{number}"
    os.makedirs(place, 0o700, exist_ok=True)
    mounts.move_mount_to(tree, place)
    try:
        return beneath.open_in_root(tree, mount.sub_path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        raise SetupError(f"volume {mount.volume}: its image has no {mount.sub_path}: {error.strerror}") from None
    finally:
        os.close(tree)


def _bind(target: _Target, app: App, namespace: int) -> None:
    mount = target.mount
    # The tree of an image is a mount that nothing else uses.
    whole = mount.layers and not mount.sub_path
    tree = os.dup(target.source) if whole else mounts.open_tree(target.source)
    try:
        attributes = 0 if mount.device else proc_sys_dev.nodev(app.plan)
        read_only = mounts.ATTR_RDONLY if mount.read_only else 0
        if mount.read_only_submounts:
            attributes |= read_only
        for option in mount.options:
            attributes |= mounts.ATTRIBUTES[option]
        mounts.set_attributes(tree, attributes, clear=mounts.ATTR_NODEV if mount.device else 0)
        if read_only:
            mounts.set_attributes(tree, read_only, recursive=False)
        if namespace >= 0:
            user_namespace.map_volume(tree, namespace, mount.volume)
        mounts.move_mount(tree, target.fd)
    finally:
        os.close(tree)


def _check(target: _Target, app: App, done: list[tuple[str, Mount]]) -> None:
    """Refuses a volume over the stager's mounts, over an earlier volume, or below one whose mounts appear on the
    host. In ``/dev``, a volume may be mounted beside the stager's nodes."""
    mount = target.mount
    if _reserved(target.path, mount, app):
        raise SetupError(f"{target.name}: kurma reserves this path")
    for path, other in done:
        if _holds(target.path, path):
            raise SetupError(f"{target.name}: hides {_named(other)} at {_shown(other.path)}")
        if other.propagation == "rshared" and _holds(path, target.path):
            raise SetupError(
                f"{target.name}: it would appear on the host, since volume {other.volume} at "
                f"{_shown(other.path)} has the propagation rshared"
            )


def _reserved(path: str, mount: Mount, app: App) -> bool:
    """:param path: with links resolved. A link of the image leads to none of these places."""
    if path == "/":
        return True
    wanted = path == mount.path and not mount.seed
    if _holds("/proc", path):
        return not wanted or path not in _PROC_FILES
    if _holds("/sys", path):
        return not wanted
    if path == "/dev":
        # An app with a terminal gets a mount in it, at console.
        shared = mount.propagation == "rshared" and app.terminal is not None
        return not wanted or shared or not app.plan.privileged
    return any(_overlap(path, f"/dev/{name}") for name in proc_sys_dev.OWN_IN_DEV)


def _holds(outer: str, inner: str) -> bool:
    return (inner + "/").startswith(outer.rstrip("/") + "/")


def _overlap(one: str, other: str) -> bool:
    return _holds(one, other) or _holds(other, one)


def _hides(target: _Target) -> bool:
    status = os.fstat(target.fd)
    if not stat.S_ISDIR(status.st_mode):
        return status.st_size > 0
    fd = os.open(f"/proc/self/fd/{target.fd}", _READABLE)
    try:
        return not _is_empty(fd)
    finally:
        os.close(fd)


def _is_empty(fd: int) -> bool:
    with os.scandir(fd) as entries:
        return next(entries, None) is None


def _seed(target: _Target) -> None:
    """Fills an empty volume with the image's files at the same path. A volume with content is not changed."""
    if not stat.S_ISDIR(os.fstat(target.source).st_mode):
        return
    volume = os.open(f"/proc/self/fd/{target.source}", _READABLE)
    try:
        # Apps are set up in parallel, and may share the volume: the second one finds it filled.
        fcntl.flock(volume, fcntl.LOCK_EX)
        if _is_empty(volume):
            merge(f"/proc/self/fd/{volume}/.", [f"/proc/self/fd/{target.fd}"])
    except OSError as error:
        raise SetupError(
            f"volume {target.mount.volume}: cannot be filled with what the image has at {target.mount.path}: "
            f"{error.filename}: {error.strerror}"
        ) from None
    finally:
        os.close(volume)
