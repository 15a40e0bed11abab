"""The root that a stager finds itself in (Kurma Stager Specification, Filesystem Configuration; G2)."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from kurma_core.errors import VolumeError
from kurma_core.spawn_plan import (
    Bind,
    Directory,
    File,
    FileSystemMount,
    Operation,
    Overlay,
    RootPlan,
    cgroups,
    proc,
    sysfs,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kurma_core.errors import HostError, KurmaError
    from kurma_core.hookspecs.pod_setup import PodSetup, VolumeSetup
    from kurma_core.linux.cgroups import CgroupTree
    from kurma_core.models.image import RenderedLayer

#: What a stager writes to its root besides ``/pod`` is kept in memory, and no more of it than this.
SCRATCH_SIZE = "64m"
#: Where the pod's user namespace is, if it has one (H9).
USER_NAMESPACE = "/userns"
LAYERS, VOLUMES = "/layers", "/volumes"


def stager_root(image: str, pod: PodSetup, manifest: bytes, tree: CgroupTree) -> RootPlan:
    """:param image: the stager image's tree, shared by all its pods and never written to.
    :param manifest: the stager manifest.
    """
    places = places_of_pod(pod.directory, tree)
    return RootPlan((*waiting_root(image).operations, *places, *pod_parts(pod, manifest)))


def waiting_root(image: str) -> RootPlan:
    """What every stager finds, whatever its pod; :func:`pod_parts` make it whole (G10)."""
    return RootPlan(
        (
            # The rest of the root may be written to as well, and is thrown away with the mount namespace.
            Overlay((image,), scratch=True, scratch_size=SCRATCH_SIZE),
            Directory(LAYERS),
            Directory(VOLUMES),
            *_programs(image),
            Bind("/dev", "/dev"),
            proc(),
            sysfs(),
        )
    )


def places_of_pod(directory: str, tree: CgroupTree) -> list[Operation]:
    """Where a stager writes of its pod, and the pod's cgroup: what there can be before it is known what it runs.

    :param directory: the pod's, which has a ``pod``. :param tree: made already.
    """
    return [Bind(f"{directory}/pod", "/pod", recursive=False), *cgroups(tree)]


def pod_parts(pod: PodSetup, manifest: bytes) -> list[Operation]:
    """What is one pod's own besides, for a root that is made or one that is lived in already."""
    return [
        *layer_binds(layer for app in pod.apps for layer in app.layers),
        *volume_mounts(pod.volumes, links=pod.volume_links),
        *([] if pod.userns is None else [Bind(pod.userns.path, USER_NAMESPACE)]),
        File("/manifest", manifest, 0o600),
    ]


def layer_binds(layers: Iterable[RenderedLayer]) -> list[Operation]:
    """Each layer once, read-only."""
    paths = {layer.id: layer.path for layer in layers}
    return [Bind(path, f"{LAYERS}/{name}", read_only=True, recursive=False) for name, path in paths.items()]


def volume_mounts(volumes: Iterable[VolumeSetup], *, links: bool) -> list[Operation]:
    """:param links: their sources may lead over symbolic links."""
    return [_volume_mount(volume, links) for volume in volumes]


def _volume_mount(volume: VolumeSetup, links: bool) -> Operation:
    target = f"{VOLUMES}/{volume.name}"
    if volume.tmpfs is not None:
        read_only = ("ro",) if volume.read_only else ()
        return FileSystemMount("tmpfs", target, volume.tmpfs, ("nosuid", "nodev", "noexec", *read_only))
    return Bind(volume.source, target, read_only=volume.read_only, recursive=volume.recursive, links=links)


def of_volume(error: HostError, volumes: Iterable[VolumeSetup]) -> KurmaError:
    """What is to be raised where a mount of the root has failed: of a volume, with its name (V1).

    Its source was there when it was looked at, and is bound as it is now, without following links.
    """
    for volume in volumes:
        if volume.tmpfs is not None and error.data.get("path") == f"{VOLUMES}/{volume.name}":
            reason = os.strerror(int(str(error.data["errno"]))).lower()
            return VolumeError(f"volume {volume.name}: cannot be made in memory: {reason}", volume=volume.name)
        if error.data.get("path") == f"{volume.source} on {VOLUMES}/{volume.name}":
            number = int(str(error.data["errno"]))
            reason = os.strerror(number).lower()
            if number == errno.ELOOP:
                reason = "a symbolic link has come to stand there, or on the way"
            return VolumeError(
                f"volume {volume.name}: source {volume.source}: {reason}",
                hint="it was changed while the pod was being started",
                volume=volume.name,
                path=volume.source,
            )
    return error


def _programs(image: str) -> tuple[Operation, ...]:
    """The call-ins' directory, read-only, without the overlay.

    A process that the stager makes can be had to execute the stager's own program once more, by ``/proc/self/exe``
    in an app's root, and that link leads back to the file: it must not be one to write to.
    """
    path = image
    for name in ("opt", "stager"):
        path = f"{path}/{name}"
        if os.path.islink(path) or not os.path.isdir(path):
            return ()
    return (Bind(path, "/opt/stager", read_only=True, recursive=False),)
