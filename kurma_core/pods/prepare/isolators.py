"""Compiles the isolators of a pod and of its apps, and decides which namespaces a pod shares with the host.

Of namespaces, root's word comes first (``--net``, ``--userns``, and the ``networks`` of the pod's file), then the
pod's isolators, then its apps': they share one pod and must agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.errors import IsolatorError
from kurma_core.isolation import Rules, check_held, compile_isolators, host_facts, merged, namespaces
from kurma_core.models.isolator import HostMount, IsolatorPlan
from kurma_core.pods.prepare import host_access
from kurma_core.value import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kurma_core.api.pods import PodRequest
    from kurma_core.appc.image import Isolator
    from kurma_core.hookspecs.isolator import Isolator as IsolatorDriver
    from kurma_core.hookspecs.isolator import IsolatorHost
    from kurma_core.isolation import Isolation
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
    there: bool = False,
    registry_images: frozenset[str] = frozenset(),
) -> Isolation:
    """:param apps: all isolators of each app.
    :param shared: the namespaces that the pod shares with the host.
    :param stager: that is to apply them.
    :param request: says which of them the user typed, and whether all must be enforced.
    :param there: the pod runs: its own isolators hold already, and bound what the apps get.
    :param registry_images: the apps whose images came from a registry.
    :raises IsolatorError: as :func:`kurma_core.isolation.compile_isolators`.
    :raises KurmaError: the stager's image cannot be had.
    """
    drivers = services.isolators()
    host = host_of(services, shared, api=_api(services, pod, apps))
    if there:
        host = replace(host, pod={isolator.name: isolator.value for isolator in pod})
    found = compile_isolators(
        None if there else pod,
        apps,
        drivers,
        host,
        strict=request.strict_isolators,
        rules=Rules(_typed(request), _required(services, stager), services.registry.absent("kurma.isolators")),
        unapplied=services.stagers.unapplied(stager),
        partly=services.stagers.applied_in_part(stager),
        registry_images=registry_images,
    )
    # What does not work was not needed for this pod: it is told, and no more.
    services.registry.drivers("kurma.isolators")
    if there:
        return found
    # What it shares with the host was decided by more than its isolators.
    return replace(found, pod=merged(found.pod, namespace_plan(shared), NAMESPACES))


def check_start(services: Services, document: PodDocument, app: str | None = None) -> None:
    """Before a start: the configuration may require more than when the pod was made.

    :param app: the one that is started; None: all.
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
    """Isolators that the configuration speaks of, and whether every app under that stager must have them."""
    required = services.config.required_under(stager)
    return {name: name in required for name in services.config.required_isolators}


def host_of(services: Services, shared: frozenset[str] = frozenset(), *, api: bool = False) -> IsolatorHost:
    """What the isolators' plugins must know of this host; see :func:`kurma_core.isolation.host_facts`."""
    return host_facts(services.cgroup_versions(), shared, services.store.root, api=api)


def _api(services: Services, pod: tuple[Isolator, ...], apps: Mapping[str, tuple[Isolator, ...]]) -> bool:
    """Whether there is a daemon, where somebody wants to know."""
    wanted = any(one.name == host_access.API_ACCESS for some in (pod, *apps.values()) for one in some)
    return wanted and services.served()


#: Those that the stager makes; the core makes the network's and the user namespace.
STAGER_NAMESPACES = ("ipc", "pid", "uts")
#: The isolator that people ask by.
NAMESPACES = "os/linux/namespaces"
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the host's shared memory, which is meant


def namespace_wishes(
    pod: Iterable[Isolator],
    apps: Mapping[str, Iterable[Isolator]],
    drivers: tuple[IsolatorDriver, ...],
) -> Mapping[str, str]:
    """What the isolators of a pod ask for: ``host`` or ``private`` by kind of namespace.

    :raises IsolatorError: apps contradict each other, and the pod does not decide; or a value is wrong."""
    decided = namespaces(pod, drivers)
    said: dict[str, tuple[str, str]] = {}
    for app, own in apps.items():
        for kind, word in namespaces(own, drivers).items():
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
    """The pod's plan, as far as its namespaces go. :param shared: those of the host's."""
    kinds = [kind for kind in STAGER_NAMESPACES if kind in shared]
    # What is shared in memory by name is a file there: it belongs to the IPC namespace as people know it.
    memory = (HostMount(_SHARED_MEMORY, _SHARED_MEMORY),) if "ipc" in kinds else ()
    return IsolatorPlan(namespaces=dict.fromkeys(kinds, "host"), mounts=memory)
