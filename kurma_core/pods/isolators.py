"""The isolators of a pod, and of an app that comes to one, compiled for the pod as it is to be (X1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.isolation import Rules, check_held, compile_isolators, host_facts, merged
from kurma_core.pods import api, namespaces
from kurma_core.value import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kurma_core.api.pods import PodRequest
    from kurma_core.appc.image import Isolator
    from kurma_core.hookspecs.isolator import IsolatorHost
    from kurma_core.isolation import Isolation
    from kurma_core.pods.document import PodDocument
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
    return replace(found, pod=merged(found.pod, namespaces.plan(shared), namespaces.NAME))


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
    wanted = any(one.name == api.ISOLATOR for some in (pod, *apps.values()) for one in some)
    return wanted and services.served()
