"""The daemon's API for apps (``host/api-access``, X6): for each app that may use it a directory, in which the
daemon makes a socket while it serves the state directory.

The directory is an empty volume of the pod's: it is made and removed with the pod, nobody but root comes by on the
host, and the app has it read-only. What an app may ask for its isolators say, and grants of ``kurma.yml``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.appc.pod import Mount, Volume
from kurma_core.errors import IsolatorError
from kurma_core.models.pod import MountSetup
from kurma_core.value import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kurma_core.appc.pod import PodManifest
    from kurma_core.models.isolator import IsolatorPlan
    from kurma_core.pods.document import PodDocument
    from kurma_core.pods.services import Services

ISOLATOR = "host/api-access"
#: In the app: where the socket of a host's daemon is, too, so that ``kurma`` finds it.
PLACE, SOCKET = "/run/kurma", "kurmad.sock"
#: Of the app's environment: `kurma` does not work in process where nobody answers.
VARIABLE = ("KURMA_HOST", f"unix:{PLACE}/{SOCKET}")


def volume(app: str) -> str:
    """The name of the volume that the app's socket is in."""
    return f"kurma-api-{app}"


def directory(pod: str, app: str) -> str:
    """Where that is on the host. :param pod: the pod's directory."""
    return f"{pod}/volumes/{volume(app)}"


def added(
    pod: PodManifest, mounts: Mapping[str, tuple[MountSetup, ...]], plans: Mapping[str, IsolatorPlan]
) -> tuple[PodManifest, dict[str, tuple[MountSetup, ...]]]:
    """The manifest and the apps' mounts, with the directories of those that may use the API.

    :param mounts: of the apps to be looked at.
    :raises IsolatorError: something else is in its place.
    """
    volumes = {one.name: one for one in pod.volumes}
    found = dict(mounts)
    apps = []
    for app in pod.apps:
        if app.name in mounts and plans[app.name].api is not None:
            name = volume(app.name)
            own = Volume(name, "empty")
            if volumes.setdefault(name, own) != own:
                raise IsolatorError(f"app {app.name}: the pod has another volume {name}", hint="call it otherwise")
            if any(mount.path.rstrip("/") == PLACE for mount in mounts[app.name]):
                raise IsolatorError(
                    f"app {app.name} mounts something at {PLACE}, where the API's socket is to be",
                    hint=f"mount that elsewhere, or leave {ISOLATOR} away",
                )
            found[app.name] = (*mounts[app.name], MountSetup(name, PLACE, True))
            app = replace(app, mounts=(*app.mounts, Mount(name, PLACE)))
        apps.append(app)
    return replace(pod, apps=tuple(apps), volumes=tuple(volumes.values())), found


def environment(names: Iterable[str], plan: IsolatorPlan) -> tuple[tuple[str, str], ...]:
    """What an app is told besides. :param names: of the variables that it has: who has set this one means it."""
    return () if plan.api is None or VARIABLE[0] in names else (VARIABLE,)


def users(document: PodDocument) -> tuple[str, ...]:
    """The apps of a pod that are to have the API."""
    return tuple(app for app in document.app_names if document.plans[app].api is not None)


def rights(document: PodDocument, services: Services, app: str) -> str:
    """What the app may ask for, as its isolators want it and grants give it now: ``full`` or ``read``.

    :raises PowerError: they give its image no power of the sort any more.
    """
    wanted = document.plans[app].api or "read"
    if not document.needs:
        return wanted
    from kurma_core.pods import gate

    return "read" if f"{ISOLATOR}=read" in gate.had(document, services, app) else wanted
