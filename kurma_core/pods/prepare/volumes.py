"""Checks the sources of host volumes, and makes empty volumes (App Container Executor, Volume Setup)."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from kurma_core.errors import VolumeError
from kurma_core.hookspecs.pod_setup import VolumeSetup

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from kurma_core.appc.pod import PodManifest, Volume
    from kurma_core.models.isolator import IdRange


def check_sources(volumes: Iterable[Volume], *, allow_links: bool) -> None:
    """Checks that every host volume's source exists, is not a device, and has no symbolic link in its path.

    Nothing is created. The stager later mounts the file at that path, resolved in the same way.

    :param allow_links: the pod may use links as sources.
    :raises VolumeError: names the volume, the path and the reason.
    """
    for volume in volumes:
        if volume.kind == "host":
            _check(volume, allow_links=allow_links)


def _check(volume: Volume, *, allow_links: bool) -> None:
    source = volume.source or ""
    path = "/"
    for part in [part for part in source.split("/") if part not in ("", ".")]:
        path = f"{path.rstrip('/')}/{part}"
        if stat.S_ISLNK(_mode(volume, path, os.lstat)) and not allow_links:
            raise VolumeError(
                f"volume {volume.name}: source {source}: {path} is a symbolic link",
                hint=f"name the link's target{_leads_to(path)}, or pass --allow-volume-links",
                volume=volume.name,
                path=path,
            )
    # Follows links: without them, this is the source itself.
    mode = _mode(volume, path, os.stat)
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise VolumeError(
            f"volume {volume.name}: source {source} is a device; volumes give no access to devices",
            hint="give the app the device by --device, or by the isolator kurma.io/devices",
            volume=volume.name,
            path=path,
        )


def _leads_to(link: str) -> str:
    """The link's target in brackets, for a hint; empty if it cannot be resolved, since it may have changed."""
    try:
        return f" ({os.path.realpath(link)})"
    except OSError:
        return ""


def _mode(volume: Volume, path: str, look: Callable[[str], os.stat_result]) -> int:
    try:
        return look(path).st_mode
    except OSError as error:
        raise VolumeError(
            f"volume {volume.name}: source {volume.source}: "
            + (f"{path}: " if path != volume.source else "")
            + os.strerror(error.errno or 0).lower(),
            hint="create the directory first: kurma creates no volume sources"
            if error.errno == errno.ENOENT
            else None,
            volume=volume.name,
            path=path,
        ) from None


def look_at(volumes: Collection[Volume], state_dir: str, allow_links: bool) -> tuple[str, ...]:
    """Checks the volumes of a new pod, or of an app that is added, before anything is made. :returns: as
    :func:`dangers`. :raises VolumeError: as :func:`check_sources`."""
    check_sources(volumes, allow_links=allow_links)
    return dangers(volumes, state_dir)


def dangers(volumes: Iterable[Volume], state_dir: str) -> tuple[str, ...]:
    """One line for people on each volume that gives an app power over the host, which is rarely intended."""
    notes = []
    for volume in volumes:
        if volume.kind == "host":
            what = _danger(_leads(volume), os.path.realpath(state_dir), volume.read_only)
            if what:
                how = "read" if volume.read_only else "change"
                notes.append(f"volume {volume.name}: {volume.source} is {what}: its apps may {how} that")
    return tuple(notes)


def _leads(volume: Volume) -> str:
    """The resolved path of its source. :raises VolumeError: it has changed meanwhile."""
    source = volume.source or "/"
    try:
        return os.path.realpath(source)
    except OSError as error:
        raise VolumeError(
            f"volume {volume.name}: source {source}: {os.strerror(error.errno or 0).lower()}",
            volume=volume.name,
            path=source,
        ) from None


def _danger(source: str, state: str, read_only: bool) -> str | None:
    if source == "/":
        return "the whole host"
    if f"{state}/".startswith(f"{source}/") or f"{source}/".startswith(f"{state}/"):
        return "a place of Kurma's own state, with images and other pods in it"
    # Read-only they are harmless enough, and monitoring programs often get them.
    if not read_only and source.split("/")[1] in ("proc", "sys"):
        return "the host's own view of its kernel and processes"
    return None


def make_empty(pod: PodManifest, directory: str, ids: IdRange | None = None) -> None:
    """Makes the pod's missing empty volumes below ``directory/volumes``. Runs as root, on the host.

    :param ids: host ids of the pod's user namespace, in which the volumes' owners are counted.
    """
    for volume in pod.volumes:
        if volume.kind == "empty" and not volume.memory:
            path = f"{directory}/volumes/{volume.name}"
            os.makedirs(f"{directory}/volumes", mode=0o711, exist_ok=True)
            if not os.path.isdir(path):
                os.mkdir(path, 0o700)
                first = 0 if ids is None else ids.first
                os.chown(path, first + volume.uid, first + volume.gid)
                os.chmod(path, volume.mode_bits)


def check_owners(pod: PodManifest, ids: IdRange) -> None:
    """:raises VolumeError: the owner of an empty volume is outside of the user namespace."""
    for volume in pod.volumes:
        if volume.kind == "empty" and max(volume.uid, volume.gid) >= ids.count:
            raise VolumeError(
                f"volume {volume.name}: its owner {volume.uid}:{volume.gid} is outside the pod's user "
                f"namespace, which has the IDs 0 to {ids.count - 1}",
                volume=volume.name,
            )


def remove_empty(names: tuple[str, ...], directory: str) -> None:
    """Removes the directories of empty volumes of these names; other volumes have none. Repeatable."""
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


def setups(pod: PodManifest, directory: str, ids: IdRange | None = None) -> tuple[VolumeSetup, ...]:
    """The volumes in the form for stager drivers. :param ids: as for :func:`make_empty`."""
    return tuple(_setup(volume, directory, ids) for volume in pod.volumes)


def _setup(volume: Volume, directory: str, ids: IdRange | None) -> VolumeSetup:
    if volume.kind == "host":
        source = volume.source or ""
        return VolumeSetup(volume.name, source, volume.read_only, volume.recursive, idmap=volume.idmap)
    if volume.memory:
        return VolumeSetup(volume.name, "", volume.read_only, recursive=False, tmpfs=_tmpfs(volume, ids))
    return VolumeSetup(volume.name, f"{directory}/volumes/{volume.name}", volume.read_only, recursive=False)


def _tmpfs(volume: Volume, ids: IdRange | None) -> dict[str, str]:
    """Mount options of a volume in memory."""
    from kurma_core.appc.quantity import parse_quantity

    first = 0 if ids is None else ids.first
    options = {"mode": volume.mode, "uid": str(first + volume.uid), "gid": str(first + volume.gid)}
    if volume.size is not None:
        options["size"] = str(parse_quantity(volume.size, "size"))
    return options
