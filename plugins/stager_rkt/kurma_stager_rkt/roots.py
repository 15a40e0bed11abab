"""Makes the root file systems of stage1 and of its apps: overlays where they work, else copies.

They are mounted in the host's mount namespace, where the entrypoints run, and where other programs expect them.
Their upper directories are below the pod's ``overlay``, as in rkt's pods, and outlive the mounts.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from kurma_core.json_text import loads
from kurma_core.linux import mounts
from kurma_core.linux.beneath import remove_tree
from kurma_core.schema import fit
from kurma_core.trees import merging, overlay
from kurma_stager_rkt.pod_files import LAYERS, ROOTFS, inside, shift, tree_id

if TYPE_CHECKING:
    from kurma_core.hookspecs.pod_setup import PodSetup
    from kurma_core.trees.merging import Shift

#: Errors of a kernel that has no overlay for these directories.
_NO_OVERLAY = (errno.EINVAL, errno.ENODEV, errno.EOPNOTSUPP, errno.EPERM, errno.E2BIG)
_LAYERS = [str]


class _Layer:
    """A directory to copy, as a step of :func:`kurma_core.trees.merging.merge`."""

    root, filter, removed, opaque, implied = "", None, (), (), ()

    def __init__(self, path: str) -> None:
        self.path = path


def make_stage1(place: str, image: str, path: str, storage: str, shift: Shift | None) -> bool:
    """Makes stage1's root. :param image: its ID. :param path: its tree.
    :param shift: maps the owners; the root is a copy then.
    :returns: whether it is an overlay.
    """
    side, target = f"{place}/overlay/{tree_id(image)}", f"{place}/{ROOTFS}"
    if _make(target, [path], f"{side}/upper", f"{side}/work", storage, shift):
        return True
    _mount_on_itself(target)
    return False


def make_app(place: str, pod: PodSetup, app: str, storage: str, stage2: str) -> None:
    """Makes an app's root. :param stage2: the directory ``opt/stage2`` of stage1's root.

    :raises OSError: the app's root cannot be made.
    """
    layers = next(each.layers for each in pod.apps if each.name == app)
    side = f"{place}/overlay/{tree_id(layers[0].id)}"
    target = f"{stage2}/{app}/rootfs"
    _make(target, [one.path for one in layers], f"{side}/upper/{app}", f"{side}/work/{app}", storage, shift(pod))


def forget_app(place: str, app: str) -> None:
    """Removes the upper directory of an app's root, which must not be mounted. It can be repeated."""
    try:
        side = _side(place, app)
    except FileNotFoundError:
        return
    for kind in ("upper", "work"):
        if os.path.isdir(f"{side}/{kind}"):
            remove_in(f"{side}/{kind}", app)


def show_again(place: str, image: str, path: str) -> None:
    """Mounts the overlays of an ended pod again: the roots of stage1 and of its apps, with all changes. The root
    of an app whose layers are missing is left out.

    :raises OSError: stage1's root cannot be mounted.
    """
    side = f"{place}/overlay/{tree_id(image)}"
    if mounts.mounts_at_or_below(f"{place}/{ROOTFS}"):
        return
    if os.path.isdir(f"{side}/upper"):
        _mount(f"{place}/{ROOTFS}", [path], f"{side}/upper", f"{side}/work")
    with inside(place, "opt/stage2") as stage2:
        for app in os.listdir(f"{place}/appsinfo"):
            with contextlib.suppress(OSError, ValueError):
                _show_app_again(place, app, f"{stage2}/{app}/rootfs")


def _show_app_again(place: str, app: str, target: str) -> None:
    side = _side(place, app)
    with open(f"{place}/appsinfo/{app}/{LAYERS}", "rb") as stream:
        layers = loads(stream.read(), own=True)
    fit(layers, _LAYERS, "the layers")
    if os.path.isdir(f"{side}/upper/{app}"):
        _mount(target, layers, f"{side}/upper/{app}", f"{side}/work/{app}")


def _side(place: str, app: str) -> str:
    """The directory of an app's upper and work directories. :raises OSError: there is no such app."""
    with open(f"{place}/appsinfo/{app}/treeStoreID", encoding="ascii") as stream:
        return f"{place}/overlay/{stream.read()}"


def _make(target: str, layers: Sequence[str], upper: str, work: str, storage: str, shift: Shift | None) -> bool:
    if storage != "copy" and shift is None:
        for directory in (upper, work):
            os.makedirs(directory, 0o755, exist_ok=True)
        _look_alike(layers[0], upper)
        try:
            _mount(target, list(layers), upper, work)
            return True
        except OSError as error:
            if storage == "overlay" or error.errno not in _NO_OVERLAY:
                raise
            os.rmdir(upper)
    _copy(target, reversed(layers), shift)
    return False


def _mount_on_itself(target: str) -> None:
    """Binds a directory to itself, so that all mounts of stage1 below it are in one tree, which
    :func:`kurma_stager_rkt.unmount.unmount_below` can unmount as a whole."""
    tree = mounts.open_tree(mounts.AT_FDCWD, target, recursive=False)
    try:
        mounts.set_attributes(tree, 0, recursive=False, propagation=mounts.MS_PRIVATE)
        mounts.move_mount_to(tree, target)
    finally:
        os.close(tree)


def _mount(target: str, layers: list[str], upper: str, work: str) -> None:
    remove_in(os.path.dirname(work), os.path.basename(work))  # a volatile overlay needs a new work directory
    os.mkdir(work, 0o700)
    mount = overlay.mount_overlay(layers, upper, work)
    try:
        mounts.move_mount_to(mount, target)
    finally:
        os.close(mount)


def remove_in(directory: str, name: str) -> None:
    """Removes the entry of that name with all below it; a missing one is success.

    :param directory: may be a path by descriptor.
    :raises OSError: as :func:`kurma_core.linux.beneath.remove_tree`.
    """
    parent = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        remove_tree(parent, name)
    finally:
        os.close(parent)


def _copy(target: str, paths: Iterable[str], shift: Shift | None) -> None:
    merging.merge(target, cast("Any", [_Layer(path) for path in paths]), copy=True, shift=shift)


def _look_alike(source: str, target: str) -> None:
    status = os.stat(source)
    os.chown(target, status.st_uid, status.st_gid)
    os.chmod(target, status.st_mode & 0o7777)
