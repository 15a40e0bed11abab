"""Decides what an update of an app's resources makes of the pod's definition; changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kurma_core.appc.image import Isolator
from kurma_core.appc.reify import effective_app
from kurma_core.errors import UsageError
from kurma_core.models.isolator import IsolatorPlan
from kurma_core.pods.prepare import isolators
from kurma_core.value import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kurma_core.api.pods import PodRequest
    from kurma_core.isolation import Isolation
    from kurma_core.pods.record.document import PodDocument
    from kurma_core.pods.services import Services

Json = Any


def updated(services: Services, document: PodDocument, app: str, changes: Mapping[str, Json]) -> PodDocument:
    """The pod's definition with an app whose isolators are changed.

    :param changes: isolators by name: each replaces the app's of that name, or what its plugin makes of both.
    :raises AppNotFoundError: the pod has no such app.
    :raises UsageError: an isolator sets more than a running app can be given.
    :raises IsolatorError: a value is wrong, or this host cannot enforce it.
    """
    from kurma_core.isolation import changed

    manifest = document.manifest
    own = manifest.app(app)
    before = effective_app(own, services.images.manifest(document.images[app]))
    now = {one.name: one for one in before.isolators}
    for name, value in changes.items():
        old = now.get(name)
        whole = value if old is None else changed(name, old.value, value, services.isolators)
        now[name] = Isolator(name, whole)
    old_plan = _compiled(services, document, app, before.isolators, ()).apps[app]
    found = _compiled(services, document, app, tuple(now.values()), tuple(changes))
    plan = found.apps[app]
    if _other(plan) != _other(old_plan):
        raise UsageError(
            f"app {app}: {', '.join(changes)}: an update changes limits of processors, memory, processes and "
            "devices, and the OOM score",
            hint="add the app again with the other isolators",
        )
    entry = replace(own, app=replace(before, isolators=tuple(now.values())))
    apps = tuple(entry if one.name == app else one for one in manifest.apps)
    merged = replace(document.plans[app], cgroup=plan.cgroup, oom_score_adj=plan.oom_score_adj)
    others = tuple(report for report in document.isolators if report.scope != app)
    return replace(
        document,
        manifest=replace(manifest, apps=apps),
        plans={**document.plans, app: merged},
        isolators=(*others, *found.reports),
        held={**document.held, **found.held},
    )


def _compiled(
    services: Services, document: PodDocument, app: str, wanted: tuple[Isolator, ...], typed: tuple[str, ...]
) -> Isolation:
    fewer = services.images.conventions(document.images[app]).fewer_capabilities
    return isolators.isolation(
        services,
        document.manifest.isolators,
        {app: wanted},
        document.shared,
        document.stager,
        _request(app, typed),
        there=True,
        fewer_capabilities=frozenset([app] if fewer else []),
    )


def _request(app: str, typed: tuple[str, ...]) -> PodRequest:
    """A request by which the caller has typed those isolators: one that cannot be enforced is an error."""
    from kurma_core.api.pods import AppOverrides, PodRequest
    from kurma_core.appc.template import PodTemplate

    overrides = AppOverrides(isolators=tuple((name, None) for name in typed))
    return PodRequest(PodTemplate.parse({"apps": []}), overrides={app: overrides})


def _other(plan: IsolatorPlan) -> IsolatorPlan:
    return replace(plan, cgroup=(), oom_score_adj=None)
