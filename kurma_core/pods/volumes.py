"""Volumes, the host's side: sources that exist, empty ones made (App Container Executor, Volume Setup; V1, V2)."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from kurma_core.errors import VolumeError
from kurma_core.hookspecs import VolumeSetup

if TYPE_CHECKING:
    from kurma_core.appc.pod import PodManifest, Volume
    from kurma_core.models import IdRange


def check_sources(pod: PodManifest, *, allow_links: bool) -> None:
    """Every host volume's source is there, and neither it nor a directory on the way is a symbolic link.

    Nothing is created. The stager binds what it finds at that path later, resolved the same way.

    :param allow_links: the pod may use links as sources.
    :raises VolumeError: names the volume, the path and the reason.
    """
    for volume in pod.volumes:
        if volume.kind == "host":
            _check(volume, allow_links=allow_links)


def _check(volume: Volume, *, allow_links: bool) -> None:
    source = volume.source or ""
    path = ""
    for part in [part for part in source.split("/") if part not in ("", ".")]:
        path = f"{path}/{part}"
        try:
            mode = os.lstat(path).st_mode
        except OSError as error:
            raise VolumeError(
                f"volume {volume.name}: source {source}: "
                + (f"{path}: " if path != source else "")
                + os.strerror(error.errno or 0).lower(),
                hint="kurma makes no volume sources: create it first" if error.errno == errno.ENOENT else None,
                volume=volume.name,
                path=path,
            ) from None
        if (mode & 0o170000) == 0o120000 and not allow_links:
            raise VolumeError(
                f"volume {volume.name}: source {source}: {path} is a symbolic link",
                hint=f"name the place it leads to ({os.path.realpath(path)}), or pass --allow-volume-links",
                volume=volume.name,
                path=path,
            )


def make_empty(pod: PodManifest, directory: str, ids: IdRange | None = None) -> None:
    """Makes the pod's empty volumes anew below ``directory/volumes``. Runs as root, on the host.

    :param ids: of the pod's user namespace, which the volumes' owners are users and groups of.
    """
    for volume in pod.volumes:
        if volume.kind == "empty":
            path = f"{directory}/volumes/{volume.name}"
            os.makedirs(f"{directory}/volumes", mode=0o711, exist_ok=True)
            if not os.path.isdir(path):
                os.mkdir(path, 0o700)
                first = 0 if ids is None else ids.first
                os.chown(path, first + volume.uid, first + volume.gid)
                os.chmod(path, volume.mode_bits)


def check_owners(pod: PodManifest, ids: IdRange) -> None:
    """:raises VolumeError: an empty volume is to belong to somebody whom the user namespace does not have."""
    for volume in pod.volumes:
        if volume.kind == "empty" and max(volume.uid, volume.gid) >= ids.count:
            raise VolumeError(
                f"volume {volume.name}: its owner {volume.uid}:{volume.gid} is outside of the pod's user "
                f"namespace, which has the ids 0 to {ids.count - 1}",
                volume=volume.name,
            )


def remove_empty(names: tuple[str, ...], directory: str) -> None:
    """What empty volumes of these names hold is gone with them; others have nothing here. Repeatable."""
    from kurma_core.linux.beneath import remove_tree

    try:
        fd = os.open(f"{directory}/volumes", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        for name in names:
            remove_tree(fd, name)
    finally:
        os.close(fd)


def setups(pod: PodManifest, directory: str) -> tuple[VolumeSetup, ...]:
    """The volumes as a stager driver gets them."""
    return tuple(
        VolumeSetup(
            name=volume.name,
            source=volume.source or "" if volume.kind == "host" else f"{directory}/volumes/{volume.name}",
            read_only=volume.read_only,
            recursive=volume.recursive if volume.kind == "host" else False,
            idmap=volume.idmap,
        )
        for volume in pod.volumes
    )
