"""Checks the sources of host volumes, and makes empty volumes (App Container Executor, Volume Setup)."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING

from kurma_core.errors import StagerError, VolumeError
from kurma_core.hookspecs.pod_setup import VolumeSetup, needed_kind
from kurma_core.value import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from kurma_core.api.operations import Progress
    from kurma_core.appc.pod import PodManifest, Volume
    from kurma_core.hookspecs.stager import StagerFeatures
    from kurma_core.images.manager import ImageManager
    from kurma_core.models.image import RenderedImage
    from kurma_core.models.isolator import IdRange
    from kurma_core.models.pod import MountSetup
    from kurma_core.pods.record.document import PodDocument


#: Of a source that is made.
_MODE = 0o755
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def check_sources(volumes: Iterable[Volume], *, allow_links: bool) -> None:
    """Checks that every host volume's source exists, has no symbolic link in its path, and is on a mount that
    propagates if the volume needs that. The sources of named volumes are Kurma's own, and made later.

    Only a volume with ``create`` gets a missing source: a directory. The stager later mounts the file at that
    path, resolved in the same way.

    :param allow_links: the pod may use links as sources.
    :raises VolumeError: names the volume, the path and the reason.
    """
    for volume in volumes:
        if volume.kind == "host" and volume.volume is None:
            if volume.create:
                _create(volume, allow_links=allow_links)
            _check(volume, allow_links=allow_links)
            if volume.propagation != "private":
                _check_propagation(volume)


def _create(volume: Volume, *, allow_links: bool) -> None:
    """Makes a missing source and its parents, owned by root, with mode 0755. Links are followed only if the pod
    may use them: a dangling one's target is made."""
    source = volume.source or "/"
    path = os.path.realpath(source) if allow_links else source
    parts = [part for part in path.split("/") if part not in ("", ".")]
    try:
        with contextlib.ExitStack() as held:
            here = os.open("/", _DIRECTORY)
            held.callback(os.close, here)
            for number, part in enumerate(parts, 1):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, _MODE, dir_fd=here)
                    os.chmod(part, _MODE, dir_fd=here)  # despite the umask
                if number < len(parts):
                    here = os.open(part, _DIRECTORY, dir_fd=here)
                    held.callback(os.close, here)
    except OSError as error:
        # A link or a file on the way: the check after this says so.
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            return
        raise VolumeError(
            f"volume {volume.name}: source {source} cannot be made: {os.strerror(error.errno or 0).lower()}",
            volume=volume.name,
            path=source,
        ) from None


def _check_propagation(volume: Volume) -> None:
    """:raises VolumeError: the mount of its source does not propagate mounts as the volume needs it."""
    from kurma_core.linux.mounts import mount_of

    source = volume.source or "/"
    mount = mount_of(source)
    shared = any(field.startswith("shared:") for field in mount.propagation)
    slave = any(field.startswith("master:") for field in mount.propagation)
    if shared or (slave and volume.propagation == "rslave"):
        return
    needs = "shared" if volume.propagation == "rshared" else "shared or a slave"
    raise VolumeError(
        f"volume {volume.name}: source {source}: propagation {volume.propagation} needs a {needs} mount, and "
        f"{mount.target}, where the source is, is {'a slave' if slave else 'private'}",
        hint=f"make it shared: mount --make-rshared {mount.target}",
        volume=volume.name,
        path=source,
    )


def check_stager(
    pod: PodManifest, mounts: Iterable[Iterable[MountSetup]], stager: str, features: Callable[[], StagerFeatures]
) -> None:
    """:param mounts: of each app. :raises StagerError: the stager cannot mount one of the volumes so."""
    needed = needed_kind({one.name: one for one in setups(pod, "")}, mounts)
    if needed is not None and not features().volume_kinds:
        raise StagerError(
            f"stager {stager} cannot mount such volumes: {needed}",
            hint="run the pod with another stager",
        )


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
    _mode(volume, path, os.stat)


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
            hint="create it first; or kurma.io/create of the volume (-v …:create) makes a directory"
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
        if volume.kind == "host" and volume.volume is None:
            what = _danger(_leads(volume), os.path.realpath(state_dir), volume.read_only)
            if _is_device(volume):
                notes.append(
                    f"volume {volume.name}: {volume.source} is a device: its apps cannot open it unless they are "
                    "privileged; --device gives access"
                )
            if what:
                how = "read" if volume.read_only else "change"
                notes.append(f"volume {volume.name}: {volume.source} is {what}: its apps may {how} that")
    return tuple(notes)


def _is_device(volume: Volume) -> bool:
    mode = _mode(volume, volume.source or "/", os.stat)
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)


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


# --- volumes of images ----------------------------------------------------------------------------------------


def key_of(volume: Volume) -> str:
    """The key of an image volume among rendered images, which are listed by app otherwise: no app has such a
    name."""
    return f"volume/{volume.name}"


def find_images(
    volumes: Iterable[Volume],
    images: ImageManager,
    pull: str,
    insecure: Collection[str],
    progress: Progress | None,
) -> tuple[Volume, ...]:
    """The volumes, with the ID of the image in place of its locator; images are fetched if needed. The caller
    protects them from garbage collection.

    :raises KurmaError: an image is not available, or not trusted.
    """
    from kurma_core.appc.pod import RuntimeImage

    found = []
    for volume in volumes:
        if volume.kind == "image":
            image = RuntimeImage(None, locator=volume.image)
            record = images.of_app(image, pull=pull, insecure=insecure, progress=progress)
            found.append(replace(volume, image=record.id))
        else:
            found.append(volume)
    return tuple(found)


def render_images(
    pod: PodManifest,
    mounts: Iterable[Iterable[MountSetup]],
    images: ImageManager,
    renderer: str,
    verify: bool,
    insecure: Collection[str],
) -> dict[str, RenderedImage]:
    """The rendered images of the volumes that are mounted, by :func:`key_of`.

    :param mounts: of each app.
    :raises VolumeError: an image lacks the volume's sub path. :raises KurmaError: one cannot be rendered.
    """
    mounted = {mount.volume for of_app in mounts for mount in of_app}
    found = {}
    for volume in pod.volumes:
        if volume.kind == "image" and volume.name in mounted:
            image = images.render(str(volume.image), renderer, verify=verify, insecure=insecure)
            if volume.sub_path:
                _check_sub_path(volume, image)
            found[key_of(volume)] = image
    return found


def rendered_of(images: ImageManager, document: PodDocument) -> dict[str, RenderedImage]:
    """As :func:`render_images`, for all apps of a document."""
    if not any(volume.kind == "image" for volume in document.manifest.volumes):
        return {}
    return render_images(
        document.manifest,
        document.mounts.values(),
        images,
        document.renderer,
        document.verify,
        document.insecure,
    )


def _check_sub_path(volume: Volume, image: RenderedImage) -> None:
    from kurma_core.linux.beneath import open_in_root
    from kurma_core.trees.overlay import mount_overlay

    try:
        tree = mount_overlay([layer.path for layer in image.layers])
        try:
            os.close(open_in_root(tree, volume.sub_path, os.O_PATH | os.O_CLOEXEC))
        finally:
            os.close(tree)
    except OSError as error:
        raise VolumeError(
            f"volume {volume.name}: its image has no {volume.sub_path}: {os.strerror(error.errno or 0).lower()}",
            volume=volume.name,
            path=volume.sub_path,
        ) from None


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
    """:raises VolumeError: the owner of an empty volume is outside of the user namespace, or mounts of apps would
    have to leave it."""
    for volume in pod.volumes:
        if volume.propagation == "rshared":
            # The kernel makes each shared mount a slave in a mount namespace of another user namespace.
            raise VolumeError(
                f"volume {volume.name}: the propagation rshared is not possible in a pod with a user namespace",
                hint="use rslave, or run the pod with --userns none",
                volume=volume.name,
            )
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


def setups(
    pod: PodManifest,
    directory: str,
    ids: IdRange | None = None,
    rendered: Mapping[str, RenderedImage] | None = None,
) -> tuple[VolumeSetup, ...]:
    """The volumes in the form for stager drivers.

    :param ids: as for :func:`make_empty`. :param rendered: as from :func:`render_images`.
    """
    return tuple(_setup(volume, directory, ids, rendered or {}) for volume in pod.volumes)


def _setup(
    volume: Volume, directory: str, ids: IdRange | None, rendered: Mapping[str, RenderedImage]
) -> VolumeSetup:
    if volume.kind == "host":
        return VolumeSetup(
            volume.name,
            _source(volume, directory),
            volume.read_only,
            volume.recursive,
            idmap=volume.idmap,
            sub_path=volume.sub_path,
            propagation=volume.propagation,
            read_only_submounts=volume.recursive_read_only,
            attributes=volume.options,
        )
    if volume.kind == "image":
        image = rendered.get(key_of(volume))
        return VolumeSetup(
            volume.name,
            "",
            True,
            idmap=True,
            image=volume.image,
            layers=() if image is None else image.layers,
            sub_path=volume.sub_path,
            attributes=volume.options,
        )
    if volume.memory:
        return VolumeSetup(volume.name, "", volume.read_only, recursive=False, tmpfs=_tmpfs(volume, ids))
    return VolumeSetup(volume.name, f"{directory}/volumes/{volume.name}", volume.read_only, recursive=False)


def _source(volume: Volume, directory: str) -> str:
    """The path of a host volume. That of a named volume is found anew: the state directory may have moved."""
    if volume.volume is None:
        return volume.source or ""
    from kurma_core.volume_store import VolumeStore

    return VolumeStore(os.path.dirname(os.path.dirname(directory))).path(volume.volume)


def _tmpfs(volume: Volume, ids: IdRange | None) -> dict[str, str]:
    """Mount options of a volume in memory."""
    from kurma_core.appc.quantity import parse_quantity

    first = 0 if ids is None else ids.first
    options = {"mode": volume.mode, "uid": str(first + volume.uid), "gid": str(first + volume.gid)}
    if volume.size is not None:
        options["size"] = str(parse_quantity(volume.size, "size"))
    return options
