"""Compiles the isolators of a pod and of its apps; decides which namespaces the pod shares with the host, and
gives apps the parts of the host that their isolators allow: files, and the socket of kurmad's API.

For namespaces, the caller's options and the pod's file decide first (``--net``, ``--userns``, ``networks``), then
the pod's isolators, then those of its apps, which must agree with each other, since they share one pod.

For each app with ``host/api-access``, kurmad makes a socket while it serves the state directory. The socket's
directory is an empty volume of the pod: it is made and removed with the pod, only root can reach it on the host,
and the app has it read-only. The app's isolators and the grants of ``kurma.yml`` decide what the app may request.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kurma_core.appc.pod import Mount, Volume
from kurma_core.appc.reify import effective_app
from kurma_core.errors import IsolatorError
from kurma_core.isolation import Rules, check_held, compile_isolators, host_facts, merged, namespaces
from kurma_core.models.isolator import HostMount, IsolatorPlan
from kurma_core.models.pod import MountSetup
from kurma_core.value import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kurma_core.api.pods import PodRequest
    from kurma_core.appc.image import ImageManifest, Isolator
    from kurma_core.appc.pod import PodApp, PodManifest
    from kurma_core.hookspecs.isolator import IsolatorHost
    from kurma_core.isolation import Isolation, IsolatorPlugin
    from kurma_core.pods.record.document import PodDocument
    from kurma_core.pods.services import Services


def isolation(
    services: Services,
    pod: tuple[Isolator, ...],
    apps: Mapping[str, tuple[Isolator, ...]],
    shared: frozenset[str],
    stager: str,
    request: PodRequest,
    *,
    fewer_capabilities: frozenset[str],
    there: bool = False,
) -> Isolation:
    """Compiles the isolators of a pod, or of an app that is added to one, to plans.

    :param apps: all isolators of each app.
    :param shared: the namespaces that the pod shares with the host.
    :param stager: the stager that will apply them.
    :param request: tells which isolators the user typed, and whether all must be enforced.
    :param there: the pod runs already: its own isolators are in force, and limit what its apps can get.
    :param fewer_capabilities: the apps whose images expect fewer default capabilities.
    :raises IsolatorError: as :func:`kurma_core.isolation.compile_isolators`.
    :raises KurmaError: the stager's image is not available.
    """
    plugins = services.isolators
    host = host_of(services, shared, api=_api(services, pod, apps))
    if there:
        host = replace(host, pod={isolator.name: isolator.value for isolator in pod})
    found = compile_isolators(
        None if there else pod,
        apps,
        plugins,
        host,
        strict=request.strict_isolators,
        rules=Rules(_typed(request), _required(services, stager), services.registry.absent("kurma.isolators")),
        unapplied=services.stagers.unapplied(stager),
        partly=services.stagers.applied_in_part(stager),
        fewer_capabilities=fewer_capabilities,
    )
    services.registry.tell_broken("kurma.isolators")
    if there:
        return found
    # The shared namespaces were not decided by isolators alone.
    return replace(found, pod=merged(found.pod, namespace_plan(shared), NAMESPACES))


def check_start(services: Services, document: PodDocument, app: str | None = None) -> None:
    """Checks, before a start, isolators that the configuration requires now: it may have changed since the pod was
    made.

    :param app: the app that is started; None: all.
    :raises IsolatorError: an app lacks a required isolator.
    """
    apps = document.app_names if app is None else [app]
    check_held(apps, document.held, sorted(services.config.required_under(document.stager)), document.stager)


def _typed(request: PodRequest) -> dict[str | None, frozenset[str]]:
    """Names of the isolators that the user typed, by app; None: for the pod."""
    typed: dict[str | None, frozenset[str]] = {None: frozenset(name for name, _ in request.isolators)}
    for app, overrides in request.overrides.items():
        typed[app] = frozenset(name for name, _ in overrides.isolators)
    return typed


def _required(services: Services, stager: str) -> dict[str, bool]:
    """The isolators of ``required_isolators``, and whether every app under that stager must have each."""
    required = services.config.required_under(stager)
    return {name: name in required for name in services.config.required_isolators}


def host_of(services: Services, shared: frozenset[str] = frozenset(), *, api: bool = False) -> IsolatorHost:
    """The host's properties that isolator plugins need; see :func:`kurma_core.isolation.host_facts`."""
    return host_facts(services.cgroup_versions(), shared, services.store.root, api=api)


def _api(services: Services, pod: tuple[Isolator, ...], apps: Mapping[str, tuple[Isolator, ...]]) -> bool:
    """Whether a daemon serves the state directory; only looked up if an isolator asks for its API."""
    wanted = any(one.name == API_ACCESS for some in (pod, *apps.values()) for one in some)
    return wanted and services.served()


#: Namespaces that the stager makes; the core makes the network and user namespaces.
STAGER_NAMESPACES = ("ipc", "pid", "uts")
#: The isolator by which users choose namespaces.
NAMESPACES = "os/linux/namespaces"
_NAME_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the host's shared memory, which is meant


def namespace_wishes(
    pod: Iterable[Isolator],
    apps: Mapping[str, Iterable[Isolator]],
    plugins: tuple[IsolatorPlugin, ...],
) -> Mapping[str, str]:
    """The isolators' choice of namespaces: ``host`` or ``private`` by kind of namespace.

    :raises IsolatorError: apps contradict each other, and the pod does not decide; or a value is invalid.
    """
    decided = namespaces(pod, plugins)
    said: dict[str, tuple[str, str]] = {}
    for app, own in apps.items():
        for kind, word in namespaces(own, plugins).items():
            other, first = said.setdefault(kind, (app, word))
            if first != word and kind not in decided:
                raise IsolatorError(
                    f"app {app} asks for the {kind} namespace to be {word}, and app {other} for the opposite: the "
                    "apps of a pod share one",
                    hint="say it for the pod, or put them into pods of their own",
                    app=app,
                )
    return {**{kind: word for kind, (_, word) in said.items()}, **decided}


def namespace_plan(shared: frozenset[str]) -> IsolatorPlan:
    """The part of the pod's plan for its namespaces. :param shared: those of the host."""
    kinds = [kind for kind in STAGER_NAMESPACES if kind in shared]
    # POSIX shared memory consists of files in /dev/shm: users expect it to be shared with the IPC namespace.
    memory = (HostMount(_SHARED_MEMORY, _SHARED_MEMORY),) if "ipc" in kinds else ()
    return IsolatorPlan(namespaces=dict.fromkeys(kinds, "host"), mounts=memory)


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


def environment(app: PodApp, image: ImageManifest, plan: IsolatorPlan) -> tuple[tuple[str, str], ...]:
    """The environment variables of an app's plan, and those by which it finds kurmad's API, unless the app sets
    these itself."""
    found = tuple(plan.environment.items())
    if plan.api is None:
        return found
    own = {pair.name for pair in effective_app(app, image).environment}
    return found if API_VARIABLE[0] in own else (*found, API_VARIABLE)


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
            found[app.name] = (
                *mounts[app.name],
                *(MountSetup(name, one.target, one.read_only) for name, one in more.items()),
            )
            entries = tuple(Mount(name, mount.target) for name, mount in more.items())
            app = replace(app, mounts=(*app.mounts, *entries))
        apps.append(app)
    return replace(pod, apps=tuple(apps), volumes=tuple(volumes.values())), found


def _volume_name(mount: HostMount) -> str:
    """``/host/root`` as ``kurma-host-root``; a digest of the path, if that is not a name."""
    name = "kurma" + mount.target.replace("/", "-")
    if _NAME_LETTERS.issuperset(name) and "--" not in name and name[-1] != "-":
        return name
    import hashlib

    return f"kurma-{hashlib.sha256(mount.target.encode()).hexdigest()[:32]}"
