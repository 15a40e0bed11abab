"""Parts of the host's file system that isolators show apps (X6): volumes of the pod, as those that it names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kurma_core.appc.pod import Mount, Volume
from kurma_core.errors import IsolatorError
from kurma_core.models.pod import MountSetup
from kurma_core.value import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kurma_core.appc.pod import PodApp, PodManifest
    from kurma_core.isolation import Isolation
    from kurma_core.models.isolator import HostMount


def added(
    pod: PodManifest, mounts: Mapping[str, tuple[MountSetup, ...]], isolation: Isolation
) -> tuple[PodManifest, dict[str, tuple[MountSetup, ...]]]:
    """The manifest and the apps' mounts, with what the plans show of the host in them. Where somebody has mounted
    something himself, that stays.

    :param mounts: of the apps to be looked at.
    :raises IsolatorError: the pod has a volume of such a name already, and another one.
    """
    volumes = {volume.name: volume for volume in pod.volumes}
    found = dict(mounts)
    apps: list[PodApp] = []
    for app in pod.apps:
        more: dict[str, HostMount] = {}
        if app.name in mounts:
            taken = {mount.path for mount in mounts[app.name]}
            shown = (*isolation.pod.mounts, *isolation.apps[app.name].mounts)
            more = {_name(mount): mount for mount in shown if mount.target not in taken}
        for name, mount in more.items():
            volume = Volume(name, "host", source=os.path.realpath(mount.source), read_only=mount.read_only)
            if volumes.setdefault(name, volume) != volume:
                raise IsolatorError(
                    f"app {app.name}: volume {name} is another one than what it is to see of the host"
                )
        if more:
            found[app.name] = (*mounts[app.name], *(_setup(name, mount) for name, mount in more.items()))
            entries = tuple(Mount(name, mount.target) for name, mount in more.items())
            app = replace(app, mounts=(*app.mounts, *entries))
        apps.append(app)
    return replace(pod, apps=tuple(apps), volumes=tuple(volumes.values())), found


def _name(mount: HostMount) -> str:
    """``/host/root`` as ``kurma-host-root``."""
    return "kurma" + mount.target.replace("/", "-")


def _setup(name: str, mount: HostMount) -> MountSetup:
    return MountSetup(name, mount.target, mount.read_only)
