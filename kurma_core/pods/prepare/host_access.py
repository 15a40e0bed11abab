"""Adds to a pod what isolators let apps access on the host: parts of its file system, and the socket of kurmad's
API.

For each app with ``host/api-access``, kurmad makes a socket while it serves the state directory. The socket's
directory is an empty volume of the pod: it is made and removed with the pod, only root can reach it on the host,
and the app has it read-only. The app's isolators and the grants of ``kurma.yml`` decide what the app may request.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kurma_core.appc.pod import Mount, Volume
from kurma_core.errors import IsolatorError
from kurma_core.models.pod import MountSetup
from kurma_core.value import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kurma_core.appc.pod import PodApp, PodManifest
    from kurma_core.isolation import Isolation
    from kurma_core.models.isolator import HostMount, IsolatorPlan
    from kurma_core.pods.record.document import PodDocument


API_ACCESS = "host/api-access"
#: Path in the app: the same as of kurmad's socket on a host, so that ``kurma`` finds it.
API_PLACE, API_SOCKET = "/run/kurma", "kurmad.sock"
#: Environment variable of such an app: without it, `kurma` would work without a daemon if kurmad does not answer.
API_VARIABLE = ("KURMA_HOST", f"unix:{API_PLACE}/{API_SOCKET}")


def api_volume(app: str) -> str:
    """The name of the volume that contains the app's socket."""
    return f"kurma-api-{app}"


def api_directory(pod: str, app: str) -> str:
    """The directory of that volume on the host. :param pod: the pod's directory."""
    return f"{pod}/volumes/{api_volume(app)}"


def with_api(
    pod: PodManifest, mounts: Mapping[str, tuple[MountSetup, ...]], plans: Mapping[str, IsolatorPlan]
) -> tuple[PodManifest, dict[str, tuple[MountSetup, ...]]]:
    """The manifest and the apps' mounts, with the socket directories of apps that may use the API.

    :param mounts: of the apps to be changed.
    :raises IsolatorError: a volume of that name, or a mount at that path, exists already.
    """
    volumes = {one.name: one for one in pod.volumes}
    found = dict(mounts)
    apps = []
    for app in pod.apps:
        if app.name in mounts and plans[app.name].api is not None:
            name = api_volume(app.name)
            own = Volume(name, "empty")
            if volumes.setdefault(name, own) != own:
                raise IsolatorError(f"app {app.name}: the pod has another volume {name}", hint="call it otherwise")
            if any(mount.path.rstrip("/") == API_PLACE for mount in mounts[app.name]):
                raise IsolatorError(
                    f"app {app.name} mounts something at {API_PLACE}, where the API's socket is to be",
                    hint=f"mount that elsewhere, or leave {API_ACCESS} away",
                )
            found[app.name] = (*mounts[app.name], MountSetup(name, API_PLACE, True))
            app = replace(app, mounts=(*app.mounts, Mount(name, API_PLACE)))
        apps.append(app)
    return replace(pod, apps=tuple(apps), volumes=tuple(volumes.values())), found


def api_environment(names: Iterable[str], plan: IsolatorPlan) -> tuple[tuple[str, str], ...]:
    """Environment variables for an app with the API. :param names: variables that the app sets itself; they are
    not changed."""
    return () if plan.api is None or API_VARIABLE[0] in names else (API_VARIABLE,)


def api_users(document: PodDocument) -> tuple[str, ...]:
    """The apps of a pod that get the API."""
    return tuple(app for app in document.app_names if document.plans[app].api is not None)


def with_host_mounts(
    pod: PodManifest, mounts: Mapping[str, tuple[MountSetup, ...]], isolation: Isolation
) -> tuple[PodManifest, dict[str, tuple[MountSetup, ...]]]:
    """The manifest and the apps' mounts, with the host's files that isolator plans show to apps. A mount that the
    user has made at the same path stays instead.

    :param mounts: of the apps to be changed.
    :raises IsolatorError: the pod has a different volume of the same name.
    """
    volumes = {volume.name: volume for volume in pod.volumes}
    found = dict(mounts)
    apps: list[PodApp] = []
    for app in pod.apps:
        more: dict[str, HostMount] = {}
        if app.name in mounts:
            taken = {mount.path for mount in mounts[app.name]}
            shown = (*isolation.pod.mounts, *isolation.apps[app.name].mounts)
            more = {_volume_name(mount): mount for mount in shown if mount.target not in taken}
        for name, mount in more.items():
            volume = Volume(name, "host", source=os.path.realpath(mount.source), read_only=mount.read_only)
            if volumes.setdefault(name, volume) != volume:
                raise IsolatorError(
                    f"app {app.name}: volume {name} is another one than what it is to see of the host"
                )
        if more:
            found[app.name] = (*mounts[app.name], *(_mount_setup(name, mount) for name, mount in more.items()))
            entries = tuple(Mount(name, mount.target) for name, mount in more.items())
            app = replace(app, mounts=(*app.mounts, *entries))
        apps.append(app)
    return replace(pod, apps=tuple(apps), volumes=tuple(volumes.values())), found


def _volume_name(mount: HostMount) -> str:
    """``/host/root`` as ``kurma-host-root``."""
    return "kurma" + mount.target.replace("/", "-")


def _mount_setup(name: str, mount: HostMount) -> MountSetup:
    return MountSetup(name, mount.target, mount.read_only)
