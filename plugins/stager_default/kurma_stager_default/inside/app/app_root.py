"""Makes an app's root: mounts the union of its layers, ``/proc``, ``/sys``, ``/dev`` and its volumes, and pivots.

Each execution gets a new root in its own mount namespace. Nothing has to be unmounted: the mounts go when the
namespace ends. Runs as root in a forked child, which changes to the new root.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from kurma_core.linux import mounts, namespaces
from kurma_core.linux.beneath import remove_tree
from kurma_stager_default.inside import user_namespace
from kurma_stager_default.inside.app import proc_sys_dev
from kurma_stager_default.inside.errors import SetupError
from kurma_stager_default.inside.manifest import App, Mount, Pod

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: Where the app's root is mounted until pivot_root(2), and where the pod's shared memory is.
PLACE = "/run/root"
SHM = "/run/shm"

#: Characters of a path in a message, which has to fit in a pipe.
_LONG = 400
_READABLE = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
#: No volume may be mounted at, above or below these paths.
_SYSTEMS = ("/proc", "/sys", *[f"/dev/{name}" for name in proc_sys_dev.OWN_IN_DEV])
_NO_OVERLAY = (errno.ENODEV, errno.EINVAL, errno.EOPNOTSUPP)


def enter(
    pod: Pod,
    app: App,
    directory: str,
    note: Callable[[str], None],
    namespace: int = -1,
    notify: str = "",
    *,
    ahead: bool = False,
) -> str:
    """Makes the root and changes to it.

    :param directory: for this execution's changes, on a real file system. It is made here; the directories of
        earlier executions beside it are removed.
    :param note: called with notes for the user on a root that works.
    :param namespace: a descriptor of the pod's user namespace, to which the owners are mapped; -1: none.
    :param notify: path of the socket by which the app reports its readiness; empty: none.
    :param ahead: ``/proc``, ``/sys`` and ``/dev`` were mounted before, for this app.
    :returns: see :func:`.etc_hosts.write`.
    :raises SetupError: a step failed; the text names the step, the object and the reason.
    """
    try:
        namespaces.unshare(namespaces.CLONE_NEWNS)
        mounts.make_private("/")
        _make_way(directory)
        root = _union(pod, app, directory, note, namespace)
        from kurma_stager_default.inside.app import etc_hosts  # not for the supervisor to hold

        files = etc_hosts.write(root, pod, app)
        if pod.names:
            etc_hosts.show_names(root, pod, app)
        if ahead:
            proc_sys_dev.move_ahead(root, pod.ids)
        else:
            proc_sys_dev.mount_all(root, SHM, pod.ids, app.plan, notify)
        if app.make_directory:
            # Before the volumes are mounted, so that no directory is made in a volume of the host.
            from kurma_core.trees import mount_targets  # not for the supervisor to hold

            os.close(mount_targets.make_dirs(root, app.working_directory, 0o755, *pod.ids.root, symlinks=True))
        _volumes(app, root, note, pod.ids, namespace)
        if app.read_only:
            mounts.set_attributes(root, mounts.ATTR_RDONLY, recursive=False)
        mounts.pivot_root(root)
        os.close(root)
        return files
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise SetupError(f"its root cannot be made: {where}{error.strerror or error}") from None


def _make_way(directory: str) -> None:
    """Makes the execution's directory, and removes those of earlier executions with the files that they wrote. The
    child does it, so that a large tree does not hold up the supervisor."""
    parent, _, own = directory.rpartition("/")
    os.makedirs(parent, 0o700, exist_ok=True)
    top = os.open(parent, _READABLE)
    try:
        for name in os.listdir(top):
            try:  # noqa: SIM105 - contextlib costs every pod's start
                remove_tree(top, name)
            except OSError:
                pass  # it is removed with the pod
        os.mkdir(own, 0o700, dir_fd=top)
    finally:
        os.close(top)


def _union(pod: Pod, app: App, directory: str, note: Callable[[str], None], namespace: int) -> int:
    """Mounts the layers as one writable tree at :data:`PLACE`, ``nodev``. :returns: a descriptor of it."""
    plain = [f"/layers/{layer}" for layer in app.layers]
    if not plain:
        raise SetupError("it has no layers")
    if pod.storage == "given":
        return _given(app, plain[0])
    os.mkdir(directory + "/upper")
    if pod.storage != "copy":
        layers = user_namespace.map_layers(plain, namespace) if namespace >= 0 else plain
        os.mkdir(directory + "/work")
        top = os.stat(layers[0])
        os.chown(directory + "/upper", top.st_uid, top.st_gid)
        os.chmod(directory + "/upper", stat.S_IMODE(top.st_mode))
        try:
            from kurma_core.trees import overlay  # not for the supervisor to hold

            root = overlay.mount_overlay(
                layers, directory + "/upper", directory + "/work", volatile=True, attributes=_nodev(app)
            )
            mounts.move_mount_to(root, PLACE)
            return root
        except OSError as error:
            if pod.storage == "overlay" or error.errno not in _NO_OVERLAY:
                raise
            note(f"app {app.name}: its root is a copy, since overlay is not to be had ({error.strerror or error})")
    return _copied(pod, app, directory + "/upper", namespace)


def _given(app: App, path: str) -> int:
    """Mounts a root that rkt's stage0 has made for this app, with the pod's host ids as owners on disk."""
    root = mounts.open_tree(mounts.AT_FDCWD, path, recursive=False)
    mounts.set_attributes(root, _nodev(app), recursive=False)
    mounts.move_mount_to(root, PLACE)
    return root


def _nodev(app: App) -> int:
    """Mount attributes of the root: ``nodev``, since devices work in ``/dev`` only; not for a privileged app."""
    return 0 if app.plan.privileged else mounts.ATTR_NODEV


def _copied(pod: Pod, app: App, target: str, namespace: int) -> int:
    """Makes the root as a copy of the layers. With a user namespace, the copy keeps the layers' owners on disk,
    and is mounted with mapped owners."""
    _merge(target, [f"/layers/{layer}" for layer in reversed(app.layers)])
    root = mounts.open_tree(mounts.AT_FDCWD, target, recursive=False)
    mounts.set_attributes(root, _nodev(app), recursive=False)
    if namespace >= 0:
        user_namespace.map_copy(root, namespace)
        pod.ids.make_as_root()  # the host's root has no id in a mapped tree, and cannot make files there
    mounts.move_mount_to(root, PLACE)
    return root


class _Layer:
    """A directory to copy, as :func:`kurma_core.trees.merging.merge` wants it."""

    root = ""
    filter = None
    removed = ()
    opaque = ()
    implied = ()

    def __init__(self, path: str) -> None:
        self.path = path


def _merge(target: str, paths: Iterable[str]) -> None:
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
            raise SetupError(f"volume {mount.volume}: there is none") from None
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


def _volumes(
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
        nodev = 0 if mount.device else _nodev(app)
        attributes = nodev | (mounts.ATTR_RDONLY if mount.read_only else 0)
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
            raise SetupError(f"{target.name}: that place is the system's")
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
            _merge(f"/proc/self/fd/{volume}/.", [f"/proc/self/fd/{target.fd}"])
    except OSError as error:
        raise SetupError(
            f"volume {target.mount.volume}: cannot be filled with what the image has at {target.mount.path}: "
            f"{error.filename}: {error.strerror}"
        ) from None
    finally:
        os.close(volume)
