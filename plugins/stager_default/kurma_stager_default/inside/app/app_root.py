"""Makes an app's root: mounts the overlay of its layers, ``/proc``, ``/sys``, ``/dev``, volumes, and pivots.

Each execution gets a new root in its own mount namespace. Nothing has to be unmounted: the mounts go when the
namespace ends. Runs as root in a forked child, which changes to the new root.
"""

from __future__ import annotations

import errno
import os
import stat

from kurma_core.linux import mounts, namespaces
from kurma_core.linux.beneath import remove_tree
from kurma_stager_default.inside import user_namespace
from kurma_stager_default.inside.app import cgroup_view, proc_sys_dev
from kurma_stager_default.inside.errors import SetupError
from kurma_stager_default.inside.manifest import App, Pod

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: Where the app's root is mounted until pivot_root(2), and where the pod's shared memory is.
PLACE = "/run/root"
SHM = "/run/shm"

_READABLE = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
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
    clones: list[tuple[str, int]] | None = None,
) -> str:
    """Makes the root and changes to it.

    :param directory: for this execution's changes, on a real file system. It is made here; the directories of
        earlier executions beside it are removed.
    :param note: called with notes for the user on a root that works.
    :param namespace: a descriptor of the pod's user namespace, to which the owners are mapped; -1: none.
    :param notify: path of the socket by which the app reports its readiness; empty: none.
    :param ahead: ``/proc``, ``/sys`` and ``/dev`` were mounted before, for this app.
    :param clones: the app's cgroups, see :func:`.cgroup_view.clone`; None: :func:`show_cgroup` is called later.
    :returns: see :func:`.etc_hosts.write`.
    :raises SetupError: a step failed; the text names the step, the object and the reason.
    """
    try:
        namespaces.unshare(namespaces.CLONE_NEWNS)
        propagating = _make_private(app)
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
        if clones:
            cgroup_view.attach(root, clones, writable=app.plan.privileged)
        if app.mounts:
            from kurma_stager_default.inside.app import volumes  # not for the supervisor to hold

            volumes.mount_volumes(app, root, note, pod.ids, namespace, directory)
            for name in propagating:
                # The old root is unmounted at the change of roots: its mounts must not be, on the host.
                mounts.make_private(f"/volumes/{name}")
        if app.make_directory:
            _make_working_directory(app, root, pod.ids)
        if app.plan.own_paths and not app.plan.privileged:
            from kurma_stager_default.inside.app import path_masks  # not for the supervisor to hold

            path_masks.apply(root, app)
        if app.read_only:
            mounts.set_attributes(root, mounts.ATTR_RDONLY, recursive=False)
        mounts.pivot_root(root)
        os.close(root)
        return files
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise SetupError(f"cannot make its root filesystem: {where}{error.strerror or error}") from None


def _make_private(app: App) -> list[str]:
    """Makes the mounts of this new mount namespace private, except the app's volumes that propagate.

    :returns: the names of those.
    """
    propagating = [mount.volume for mount in app.mounts if mount.propagation != "private"]
    if not propagating:
        mounts.make_private("/")
        return []
    # All other mounts of the stager's namespace are private already.
    for name in os.listdir("/volumes"):
        if name not in propagating:
            mounts.make_private(f"/volumes/{name}")
    return propagating


def _make_working_directory(app: App, root: int, ids: user_namespace.Ids) -> None:
    """Makes the working directory if it is missing, in a volume too, as Docker does. A failure is not reported:
    the change to the directory fails then, and its error says more."""
    from kurma_core.trees import mount_targets  # not for the supervisor to hold

    if any(mount.idmap for mount in app.mounts) and ids.path:
        ids.make_as_root()  # the host's root has no id in a mapped volume
    try:
        os.close(mount_targets.make_dirs(root, app.working_directory, 0o755, *ids.root, symlinks=True))
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.ENOTDIR, errno.EACCES, errno.EPERM):
            raise


def show_cgroup(clones: list[tuple[str, int]], app: App) -> None:
    """Shows the app's cgroups in a root that is this process's own already. Nothing of the app has run in it.

    :raises SetupError: one cannot be mounted.
    """
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        cgroup_view.attach(root, clones, writable=app.plan.privileged)
    except OSError as error:
        raise SetupError(f"cannot show its cgroup: {error.filename or ''} {error.strerror}") from None
    finally:
        os.close(root)


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
                layers,
                directory + "/upper",
                directory + "/work",
                volatile=True,
                attributes=proc_sys_dev.nodev(app.plan),
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
    mounts.set_attributes(root, proc_sys_dev.nodev(app.plan), recursive=False)
    mounts.move_mount_to(root, PLACE)
    return root


def _copied(pod: Pod, app: App, target: str, namespace: int) -> int:
    """Makes the root as a copy of the layers. With a user namespace, the copy keeps the layers' owners on disk,
    and is mounted with mapped owners."""
    from kurma_stager_default.inside.app import volumes

    volumes.merge(target, [f"/layers/{layer}" for layer in reversed(app.layers)])
    root = mounts.open_tree(mounts.AT_FDCWD, target, recursive=False)
    mounts.set_attributes(root, proc_sys_dev.nodev(app.plan), recursive=False)
    if namespace >= 0:
        user_namespace.map_copy(root, namespace)
        pod.ids.make_as_root()  # the host's root has no id in a mapped tree, and cannot make files there
    mounts.move_mount_to(root, PLACE)
    return root
