"""Prepares an app that is added to a running pod: its image, its part of the manifest, its isolators.

Nothing here changes the host outside the state directory, or what was decided for the pod's other apps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.appc.reify import effective_app
from kurma_core.errors import PodStateError, UsageError
from kurma_core.formats.timestamps import timestamp
from kurma_core.models.image import Conventions
from kurma_core.pods.prepare import app_settings, grants, isolators, pid_modes, volumes
from kurma_core.pods.prepare.prepare_pod import checked_manifest, image_name, mount_setups, noted, overridden_app
from kurma_core.value import frozen, replace

if TYPE_CHECKING:
    from kurma_core.api.operations import Progress
    from kurma_core.api.pods import PodRequest
    from kurma_core.appc.image import ImageManifest
    from kurma_core.appc.pod import PodApp, Volume
    from kurma_core.models.image import RenderedImage
    from kurma_core.pods.record.document import PodDocument
    from kurma_core.pods.services import Services


@frozen
class NewApp:
    """An app that can be added.

    :param document: the pod's, with the app in it.
    :param part: the same with that app alone.
    :param rendered: the images of the app and of the image volumes that it mounts, by app and
        :func:`~kurma_core.pods.prepare.volumes.key_of`.
    :param volumes: names of those that the pod did not have.
    """

    name: str
    document: PodDocument
    part: PodDocument
    rendered: dict[str, RenderedImage]
    volumes: tuple[str, ...]


def wanted_app(request: PodRequest) -> PodApp:
    """:raises UsageError: the request is not for exactly one app."""
    apps = request.template.pod.apps
    if len(apps) != 1:
        raise UsageError(f"one app is added at a time, not {len(apps)}")
    for name in request.overrides:
        if name != apps[0].name:
            raise UsageError(f"no app {name} is added", hint=f"the app to add: {apps[0].name}")
    return apps[0]


def find_image(services: Services, request: PodRequest, progress: Progress | None) -> tuple[str, ImageManifest]:
    """ID and manifest of the app's image; fetched if needed. The caller protects it from garbage collection."""
    app = wanted_app(request)
    record = services.images.of_app(app.image, pull=request.pull, insecure=request.insecure, progress=progress)
    return record.id, services.images.manifest(record.id)


def new_app(
    services: Services, document: PodDocument, request: PodRequest, image: tuple[str, ImageManifest]
) -> NewApp:
    """Decides everything about the app.

    :param request: with the IDs of the images of its volumes.

    :param document: the pod's present definition.
    :raises PodStateError: it has an app of that name.
    :raises KurmaError: the manifest is invalid, a volume has no source, an isolator is unknown …
    """
    app = wanted_app(request)
    check_name(document, app.name)
    app = overridden_app(request, app, image, services)
    manifest = document.manifest
    resolved = {name: (ident, services.images.manifest(ident)) for name, ident in document.images.items()}
    whole = replace(manifest, apps=(*manifest.apps, app), volumes=_volumes(document, request.template.pod.volumes))
    reified = checked_manifest(whole, {**resolved, app.name: image}, request)
    noted(services, reified.notes)
    pid_modes.check(reified.pod.apps[-1], effective_app(reified.pod.apps[-1], image[1]), manifest.apps)
    # The pod's old volumes are mounted already, whatever has happened to their sources: only new ones are checked.
    had = {volume.name for volume in manifest.volumes}
    come = [volume for volume in reified.pod.volumes if volume.name not in had]
    links = document.volume_links or request.allow_volume_links
    dangers = noted(services, volumes.look_at(come, services.config.state_dir, links))
    if document.ids is not None:
        volumes.check_owners(reified.pod, document.ids)
    declared = effective_app(reified.pod.apps[-1], image[1]).isolators
    plugins = services.isolators
    grants.check_grants(request.grants, plugins)
    expected = services.images.conventions(image[0])
    app_settings.check_annotations(reified.pod, reified.pod.apps[-1], expected, ephemeral=document.ephemeral)
    host, fewer = isolators.host_of(services), expected.fewer_capabilities
    own = grants.needs_of_new(request, reified.pod, declared, plugins, host, fewer_capabilities=fewer)
    needs, all_grants = {**document.needs, **own.needs}, {**document.grants, app.name: request.grants}
    granted = grants.check_app(needs, app.name, image[0], services, request.insecure, all_grants)
    noted(services, granted := (*granted, *own.notes(configured=False)))
    isolation = isolators.isolation(
        services,
        manifest.isolators,
        {app.name: declared},
        document.shared,
        document.stager,
        request,
        there=True,
        fewer_capabilities=frozenset([app.name] if fewer else []),
    )
    added = {app.name: mount_setups(reified)[app.name]}
    stager = services.stagers.of_pod(document)
    volumes.check_stager(reified.pod, added.values(), document.stager, stager.features)
    app_settings.check_secrets(reified.pod.apps[-1:], document.ids, services, document.stager)
    pod, mounts = isolators.with_host_mounts(reified.pod, added, replace(isolation, pod=document.pod_plan))
    pod, mounts = isolators.with_api(pod, mounts, isolation.apps)
    told = isolators.environment(reified.pod.apps[-1], image[1], isolation.apps[app.name])
    new = tuple(volume.name for volume in pod.volumes if volume.name not in had)
    changed = replace(
        document,
        manifest=pod,
        mounts={**document.mounts, **mounts},
        plans={**document.plans, app.name: isolation.apps[app.name]},
        isolators=(*document.isolators, *isolation.reports),
        held={**document.held, **isolation.held},
        notes=(*document.notes, *dangers, *granted),
        needs=needs,
        grants={name: some for name, some in all_grants.items() if some},
        added_volumes=(*document.added_volumes, *new),
        volume_links=links,
        environment={**document.environment, **({app.name: told} if told else {})},
        image_names={**document.image_names, app.name: image_name(wanted_app(request), image[1])},
        conventions={**document.conventions, **({app.name: expected} if expected != Conventions() else {})},
        added_at={**document.added_at, app.name: timestamp()},
    )
    rendered = services.images.render(
        image[0], document.renderer, verify=request.verify, insecure=request.insecure
    )
    part = only(changed, app.name)
    return NewApp(app.name, changed, part, {app.name: rendered, **volumes.rendered_of(services.images, part)}, new)


def check_name(document: PodDocument, app: str) -> None:
    """:raises PodStateError: the pod has an app of that name."""
    if app in document.app_names:
        raise PodStateError(
            f"pod {document.name} has an app {app} already",
            hint=f"choose another --name, or: kurma app rm {document.name} {app}",
            pod=document.uuid,
        )


def only(document: PodDocument, app: str) -> PodDocument:
    """The pod with that app alone."""
    apps = tuple(one for one in document.manifest.apps if one.name == app)
    return replace(
        document,
        manifest=replace(document.manifest, apps=apps),
        mounts={app: document.mounts[app]},
        plans={app: document.plans[app]},
    )


def without(document: PodDocument, app: str) -> tuple[PodDocument, tuple[str, ...]]:
    """The pod without that app, and the names of the volumes that are removed with it: those that came with an
    app, or that Kurma made for a mount point of an image, if no other app mounts them. Volumes of the original pod
    stay."""
    apps = tuple(one for one in document.manifest.apps if one.name != app)
    mounts = {name: found for name, found in document.mounts.items() if name != app}
    used = {mount.volume for found in mounts.values() for mount in found}
    gone = tuple(
        volume.name
        for volume in document.manifest.volumes
        if volume.name not in used and (volume.name in document.added_volumes or volume.seed is not None)
    )
    kept = tuple(volume for volume in document.manifest.volumes if volume.name not in gone)
    return (
        replace(
            document,
            manifest=replace(document.manifest, apps=apps, volumes=kept),
            mounts=mounts,
            plans={name: plan for name, plan in document.plans.items() if name != app},
            environment={name: pairs for name, pairs in document.environment.items() if name != app},
            image_names={name: text for name, text in document.image_names.items() if name != app},
            conventions={name: expected for name, expected in document.conventions.items() if name != app},
            added_at={name: at for name, at in document.added_at.items() if name != app},
            isolators=tuple(report for report in document.isolators if report.scope != app),
            notes=tuple(note for note in document.notes if not note.startswith(grants.note_of(app))),
            needs={name: some for name, some in document.needs.items() if name != app},
            grants={name: some for name, some in document.grants.items() if name != app},
            added_volumes=tuple(name for name in document.added_volumes if name not in gone),
            interactive=None if document.interactive == app else document.interactive,
            terminal=None if document.terminal == app else document.terminal,
        ),
        gone,
    )


def _volumes(document: PodDocument, more: tuple[Volume, ...]) -> tuple[Volume, ...]:
    """The pod's volumes and the new ones. :raises UsageError: a new one has the name of a different volume of the
    pod."""
    found = {volume.name: volume for volume in document.manifest.volumes}
    for volume in more:
        if found.get(volume.name, volume) != volume:
            raise UsageError(
                f"pod {document.name} has another volume {volume.name}",
                hint="mount that one with --mount, or choose another name",
            )
        found[volume.name] = volume
    return tuple(found.values())
