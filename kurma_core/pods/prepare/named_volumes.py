"""Named volumes of pods: their place in a pod's definition, and their first files.

A pod file says ``kind: named``. The pod's manifest has a host volume instead, whose ``volume`` names it
(:class:`kurma_core.appc.pod.Volume`). Before each start, and before an app is added, missing volumes are created.

A volume that was never filled gets the files, the owner and the mode of the first directory of an image that it is
mounted over. The files are copied beside the volume's directory, and then move into it one by one: a process that
dies leaves either an incomplete copy, which the next start makes anew, or a complete one, whose move the next
start finishes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING

from kurma_core.errors import VolumeError
from kurma_core.value import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kurma_core.appc.pod import PodManifest, Volume
    from kurma_core.models.image import RenderedImage
    from kurma_core.pods.record.document import PodDocument
    from kurma_core.pods.services import Services
    from kurma_core.volume_store import Volume as StoredVolume
    from kurma_core.volume_store import VolumeStore

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: The image has no directory at that path.
_NO_DIRECTORY = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV)
_NOREPLACE = 1


def found(volumes: Iterable[Volume], store: VolumeStore) -> tuple[Volume, ...]:
    """The volumes, with host volumes in place of named ones."""
    return tuple(
        volume
        if volume.volume is None
        else replace(
            volume,
            kind="host",
            source=store.path(volume.volume),
            recursive=False,
            # In a user namespace, too, other pods see the owners that this one sees.
            idmap=True,
            propagation="private",
            create=False,
        )
        for volume in volumes
    )


def make_missing(services: Services, pod: PodManifest) -> None:
    """Creates the volumes that the pod uses and that do not exist."""
    for name in services.volumes.ensure(pod.named_volumes):
        services.journal.tell("volume", "created", None, name)


def make_ready(
    services: Services, document: PodDocument, rendered: Callable[[], Mapping[str, RenderedImage]]
) -> None:
    """Creates missing volumes, fills those that were never filled, and makes the directories in them that are
    mounted.

    :param document: of a pod that is on disk, so that its volumes are not removed.
    :param rendered: gives the images of the apps; called only if a volume may have to be filled.
    :raises VolumeError: a volume is damaged, or cannot be filled.
    """
    make_missing(services, document.manifest)
    store = services.volumes
    for name in document.manifest.named_volumes:
        store.directory_status(name)  # an error, if someone has removed it
        if not store.get(name).filled:
            mine = {
                volume.name
                for volume in document.manifest.volumes
                if volume.volume == name and not volume.sub_path
            }
            places = [
                (app, mount.path)
                for app, some in document.mounts.items()
                for mount in some
                if mount.volume in mine
            ]
            try:
                _fill(store, name, places, rendered)
            except OSError as error:
                on = f"{error.filename}: " if isinstance(error.filename, str) else ""
                raise VolumeError(
                    f"volume {name}: cannot be filled with the files of an image: {on}{error.strerror}",
                    volume=name,
                    errno=error.errno,
                ) from None

    make_parts(store, document.manifest.volumes)


def make_parts(store: VolumeStore, volumes: Iterable[Volume]) -> None:
    """Makes the missing sub paths of named volumes: directories with the owner and the mode of the volume's own.

    Apps may have changed the volume: no link is followed, and a path that leads over one is an error.

    :raises VolumeError: a sub path cannot be made.
    """
    from kurma_core.linux.beneath import open_beneath
    from kurma_core.trees.mount_targets import make_dirs

    for volume in volumes:
        if volume.volume is None or not volume.sub_path:
            continue
        try:
            with contextlib.ExitStack() as held:
                data = _opened(held, store.path(volume.volume))
                try:
                    fd = open_beneath(data, volume.sub_path, os.O_PATH)
                except FileNotFoundError:
                    like = os.fstat(data)
                    mode = stat.S_IMODE(like.st_mode)
                    fd = make_dirs(data, volume.sub_path, mode, like.st_uid, like.st_gid)
                os.close(fd)
        except OSError as error:
            reason = os.strerror(error.errno or 0).lower()
            if error.errno == errno.ELOOP:
                reason = "a symbolic link is on the way"
            raise VolumeError(
                f"volume {volume.volume}: cannot mount {volume.sub_path} of it: {reason}",
                volume=volume.volume,
                path=volume.sub_path,
                errno=error.errno,
            ) from None


def _fill(
    store: VolumeStore,
    name: str,
    places: Iterable[tuple[str, str]],
    rendered: Callable[[], Mapping[str, RenderedImage]],
) -> None:
    """:param places: apps, and the paths at which they mount the volume."""
    from kurma_core.volume_store import FILLED, FILLING

    with store.filling(name), contextlib.ExitStack() as held:
        volume = store.get(name)
        if volume.filled:
            return  # another pod was faster
        place = _opened(held, os.path.dirname(store.path(name)))
        data = _opened(held, "data", place)
        try:
            os.stat(FILLED, dir_fd=place, follow_symlinks=False)
        except FileNotFoundError:
            if os.listdir(data):
                store.set_filled(volume)
                return
            source = _first_directory(held, places, rendered)
            if source is None:
                return
            _copy(source, place, FILLING)
            os.rename(FILLING, FILLED, src_dir_fd=place, dst_dir_fd=place)
        _move_in(volume, _opened(held, FILLED, place), data)
        os.rmdir(FILLED, dir_fd=place)
        store.set_filled(volume)


def _opened(held: contextlib.ExitStack, path: str, directory: int | None = None) -> int:
    fd = os.open(path, _DIRECTORY, dir_fd=directory)
    held.callback(os.close, fd)
    return fd


def _first_directory(
    held: contextlib.ExitStack,
    places: Iterable[tuple[str, str]],
    rendered: Callable[[], Mapping[str, RenderedImage]],
) -> int | None:
    """The first directory of an image at which an app mounts the volume; None: no image has one."""
    from kurma_core.linux.beneath import open_in_root
    from kurma_core.trees.overlay import mount_overlay

    images = rendered()
    for app, path in places:
        tree = mount_overlay([layer.path for layer in images[app].layers])
        held.callback(os.close, tree)
        try:
            fd = open_in_root(tree, path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            if error.errno not in _NO_DIRECTORY:
                raise
            continue
        held.callback(os.close, fd)
        return fd
    return None


class _Directory:
    """A directory to copy, as :func:`kurma_core.trees.merging.merge` wants it."""

    root = ""
    filter = None
    removed = ()
    opaque = ()
    implied = ()

    def __init__(self, fd: int) -> None:
        self.path = f"/proc/self/fd/{fd}"


def _copy(source: int, place: int, name: str) -> None:
    """Copies the directory ``source``, with owners, modes and attributes, to a new one in ``place``, and syncs it:
    after a power cut, a complete copy has its content."""
    from kurma_core.cancellation import check
    from kurma_core.image_store.durable import sync_file_system
    from kurma_core.linux.beneath import remove_tree
    from kurma_core.trees.merging import merge

    remove_tree(place, name)  # of a process that died
    os.mkdir(name, 0o700, dir_fd=place)
    merge(f"/proc/self/fd/{place}/{name}", [_Directory(source)], copy=True, check=check)
    sync_file_system(place)


def _move_in(volume: StoredVolume, source: int, data: int) -> None:
    """Moves all entries of ``source`` to the volume's directory, and gives it the attributes of ``source``.
    Repeatable. Where a running app has made a file of that name meanwhile, that file stays."""
    from kurma_core.linux.beneath import remove_tree
    from kurma_core.linux.libc import syscall
    from kurma_core.trees.copying import copy_directory_attributes

    for name in os.listdir(source):
        try:
            syscall("renameat2", source, os.fsencode(name), data, os.fsencode(name), _NOREPLACE)
        except OSError as error:
            if error.errno != errno.EEXIST:
                raise
            remove_tree(source, name)
    copy_directory_attributes(source, data)
    if volume.owner is not None:
        os.fchown(data, *volume.owner)
    if volume.mode is not None:
        os.fchmod(data, volume.mode)
