"""The root that a stager finds itself in (Kurma Stager Specification, Filesystem Configuration; G2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.spawn_plan import (
    Bind,
    Directory,
    File,
    Operation,
    Overlay,
    RootPlan,
    cgroups,
    proc,
    sysfs,
)

if TYPE_CHECKING:
    from kurma_core.hookspecs import PodSetup
    from kurma_core.linux.cgroups import CgroupTree

#: What a stager writes to its root besides ``/pod`` is kept in memory, and no more of it than this.
SCRATCH_SIZE = "64m"


def stager_root(image: str, pod: PodSetup, manifest: bytes, tree: CgroupTree) -> RootPlan:
    """:param image: the stager image's tree, shared by all its pods and never written to.
    :param manifest: the stager manifest.
    """
    operations: list[Operation] = [
        # The rest of the root may be written to as well, and is thrown away with the mount namespace.
        Overlay((image,), scratch=True, scratch_size=SCRATCH_SIZE),
        File("/manifest", manifest, 0o600),
        Directory("/layers"),
        Directory("/volumes"),
        Bind(f"{pod.directory}/pod", "/pod", recursive=False),
        Bind("/dev", "/dev"),
        proc(),
        sysfs(),
    ]
    layers = {layer.id: layer.path for app in pod.apps for layer in app.layers}
    operations += [Bind(path, f"/layers/{name}", read_only=True, recursive=False) for name, path in layers.items()]
    operations += [
        Bind(
            volume.source,
            f"/volumes/{volume.name}",
            read_only=volume.read_only,
            recursive=volume.recursive,
            links=pod.volume_links,
        )
        for volume in pod.volumes
    ]
    operations += cgroups(tree)
    return RootPlan(tuple(operations))
