"""The isolators of a pod, and of an app that comes to one, compiled for the pod as it is to be (X1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.isolation import compile_isolators, host_facts, merged
from kurma_core.pods import api, namespaces
from kurma_core.value import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kurma_core.appc.image import Isolator
    from kurma_core.isolation import Isolation
    from kurma_core.pods.services import Services


def isolation(
    services: Services,
    pod: tuple[Isolator, ...],
    apps: Mapping[str, tuple[Isolator, ...]],
    shared: frozenset[str],
    stager: str,
    *,
    strict: bool,
    there: bool = False,
    registry_images: frozenset[str] = frozenset(),
) -> Isolation:
    """:param apps: all isolators of each app.
    :param shared: the namespaces that the pod shares with the host.
    :param stager: that is to apply them.
    :param there: the pod runs: its own isolators hold already, and bound what the apps get.
    :param registry_images: the apps whose images came from a registry.
    :raises IsolatorError: as :func:`kurma_core.isolation.compile_isolators`.
    """
    host = host_facts(services.cgroup_versions(), shared, services.store.root, api=_api(services, pod, apps))
    if there:
        host = replace(host, pod={isolator.name: isolator.value for isolator in pod})
    found = compile_isolators(
        None if there else pod,
        apps,
        services.isolators(),
        host,
        strict=strict,
        unapplied=services.stagers.unapplied(stager),
        partly=services.stagers.applied_in_part(stager),
        registry_images=registry_images,
    )
    if there:
        return found
    # What it shares with the host was decided by more than its isolators.
    return replace(found, pod=merged(found.pod, namespaces.plan(shared), namespaces.NAME))


def _api(services: Services, pod: tuple[Isolator, ...], apps: Mapping[str, tuple[Isolator, ...]]) -> bool:
    """Whether there is a daemon, where somebody wants to know."""
    wanted = any(one.name == api.ISOLATOR for some in (pod, *apps.values()) for one in some)
    return wanted and services.served()
