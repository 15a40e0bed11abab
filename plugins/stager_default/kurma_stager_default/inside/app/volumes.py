"""Mounts an app's volumes in its root, and fills empty volumes with what the image has in their place."""

from __future__ import annotations

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
#: No volume may be mounted at, above or below these paths.
_SYSTEMS = ("/proc", "/sys", *[f"/dev/{name}" for name in proc_sys_dev.OWN_IN_DEV])


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
    the image's files that were removed for it."""

    __slots__ = ("fd", "mount", "path", "replaced", "source")

    def __init__(self, mount: Mount, root: int, ids: user_namespace.Ids) -> None:
        self.mount = mount
        try:
            self.source = os.open(f"/volumes/{mount.volume}", os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            raise SetupError(f"volume {mount.volume}: does not exist") from None
        directory = stat.S_ISDIR(os.fstat(self.source).st_mode)
        try:
            from kurma_core.trees import mount_targets  # not for the supervisor to hold

            place = mount_targets.make_place(root, mount.path, directory=directory, owner=ids.root)
        except OSError as error:
            raise SetupError(f"{self.name}: {error.strerror}") from None
        self.fd, self.path, self.replaced = place.fd, place.path, place.replaced

    @property
    def name(self) -> str:
        return f"volume {self.mount.volume}: cannot be mounted at {_shown(self.mount.path)}"


def _shown(path: str) -> str:
    """A path, shortened in the middle if it is too long for a message."""
    return path if len(path) <= _LONG else f"{path[: _LONG // 2]}…{path[-_LONG // 2 :]}"


def mount_volumes(
    app: App,
    root: int,
    note: Callable[[str], None],
    ids: user_namespace.Ids,
    namespace: int,
) -> None:
    # Make all places before mounting the first volume, so that none is made inside of another volume.
    targets = [_Target(mount, root, ids) for mount in app.mounts]
    _refuse_overlaps(targets)
    for target in targets:
        mount = target.mount
        for path in target.replaced:
            note(f"app {app.name}: volume {mount.volume} takes the place of the image's file {_shown(path)}")
        if mount.seed:
            _seed(target)
        elif _hides(target):
            note(f"app {app.name}: volume {mount.volume} hides what the image has at {_shown(mount.path)}")
        attributes = (0 if mount.device else proc_sys_dev.nodev(app.plan)) | (
            mounts.ATTR_RDONLY if mount.read_only else 0
        )
        _bind(target, attributes, namespace if mount.idmap else -1)
        os.close(target.source)
        os.close(target.fd)


def _bind(target: _Target, attributes: int, namespace: int) -> None:
    tree = mounts.open_tree(target.source)
    try:
        mounts.set_attributes(tree, attributes, clear=mounts.ATTR_NODEV if target.mount.device else 0)
        if namespace >= 0:
            user_namespace.map_volume(tree, namespace, target.mount.volume)
        mounts.move_mount(tree, target.fd)
    finally:
        os.close(tree)


def _refuse_overlaps(targets: list[_Target]) -> None:
    """Refuses volumes that overlap each other, or the stager's mounts. In ``/dev``, a volume may be mounted beside
    the stager's nodes."""
    for number, target in enumerate(targets):
        if target.path == "/dev" or any(_overlap(target.path, path) for path in _SYSTEMS):
            raise SetupError(f"{target.name}: kurma reserves this path")
        for other in targets[:number]:
            if _overlap(target.path, other.path):
                raise SetupError(
                    f"{target.name}: overlaps volume {other.mount.volume} at {_shown(other.mount.path)}"
                )


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
