"""Prepares a pod from a request: finds images, reifies the manifest, compiles isolators, plans networks.

Nothing here changes the host outside the state directory, and a failure leaves no pod behind.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from kurma_core.api.network_options import parse_net
from kurma_core.api.pods import AppOverrides
from kurma_core.appc.image import lookup
from kurma_core.appc.pod import PodManifest
from kurma_core.appc.reify import effective_app, idle_volumes, reify
from kurma_core.appc.template import locator_of, without_passwords
from kurma_core.errors import UsageError
from kurma_core.image_store.records import is_hex
from kurma_core.isolation import scopes
from kurma_core.models.image import Conventions
from kurma_core.models.network import NetworkRequest, PortMapping
from kurma_core.models.pod import GROUP_POLICY, PID, PID_HOST, MountSetup, stop_timeout_of
from kurma_core.models.summary import DISPLAY_NAME, MANAGER
from kurma_core.pods import log_places
from kurma_core.pods.network import port_claims
from kurma_core.pods.prepare import app_settings, isolators, pid_modes, volumes
from kurma_core.pods.prepare.app_settings import overridden, with_isolators
from kurma_core.pods.record import cgroup_parent
from kurma_core.pods.record.document import PodDocument
from kurma_core.pods.run import pod_limits, pod_restarts
from kurma_core.value import frozen, replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kurma_core.api.operations import Progress
    from kurma_core.api.pods import PodRequest
    from kurma_core.appc.image import ImageManifest, Isolator
    from kurma_core.appc.pod import Mount, PodApp, Volume
    from kurma_core.appc.reify import Reified
    from kurma_core.appc.template import PodTemplate
    from kurma_core.isolation import Isolation, IsolatorPlugin
    from kurma_core.models.image import RenderedImage
    from kurma_core.models.isolator import IdRange
    from kurma_core.models.network import Attachment
    from kurma_core.pods.record.document import Need
    from kurma_core.pods.services import Services

_HOSTNAME_LIMIT = 63
#: Most characters of a manager's name, and of a display name.
_LONGEST_NAME = 512
#: Prefix of annotations that only kurmad may set on a pod.
_KURMADS = "kurma.io/daemon/"
#: The words of isolators for the user namespace, translated to those of ``--userns``.
_WORDS = {"private": "auto", "host": "none"}


def pod_document(
    request: PodRequest,
    uuid: str,
    name: str,
    created_at: str,
    services: Services,
    progress: Progress | None,
    rendered: dict[str, RenderedImage],
) -> PodDocument:
    """Decides everything about the pod.

    A pod without apps is kept until it is stopped, since apps may be added and removed.

    :param rendered: is filled with each app's rendered image: all images are rendered here, so that one that
        cannot be is found early.
    :raises KurmaError: an image is not available, the manifest is invalid, a volume has no source, a network,
        isolator, stager or renderer is unknown …
    """
    renderer = services.config.renderer if request.renderer is None else request.renderer
    stager = request.stager or services.config.stager
    services.stagers.check(stager)
    request = _placed(_with_template(request), services.isolators)
    if request.grants:
        from kurma_core.pods.prepare import grants

        grants.check_grants(request.grants, services.isolators)
    resolved = _images(request, services, progress)
    request = with_found_volumes(request, services, progress)
    template, reified = _reified(request, resolved, services)
    pod_restarts.check(reified.pod, ephemeral=request.ephemeral)
    if not request.configured:
        _refuse_kurmads_annotations(reified.pod)
    _check_manager(reified.pod)
    cgroup_parent.parent_of(reified.pod)
    stop_timeout_of(reified.pod)
    notes = _looked_at(request, reified, resolved, services)
    declared = _isolators(reified.pod, resolved)
    conventions = {app: services.images.conventions(image_id) for app, (image_id, _) in resolved.items()}
    fewer_capabilities = frozenset(app for app, expected in conventions.items() if expected.fewer_capabilities)
    place = _place(request, template, reified, declared, fewer_capabilities, uuid, services)
    isolation = isolators.isolation(
        services,
        reified.pod.isolators,
        declared,
        place.shared,
        stager,
        request,
        fewer_capabilities=fewer_capabilities,
    )
    limits = pod_limits.lasting_limits(isolation.pod, isolation.apps)
    attachments = services.networking.limited(place.attachments, limits)
    port_claims.check_free(services.store, uuid, port_claims.published(attachments))
    log_places.check_directory(reified.pod, services.config.state_dir)
    app_settings.check_kept_root(reified.pod, ephemeral=request.ephemeral)
    for app in reified.pod.apps:
        app_settings.check_annotations(reified.pod, app, conventions[app.name], ephemeral=request.ephemeral)
        pid_modes.check(app, effective_app(app, resolved[app.name][1]), reified.pod.apps)
        rendered[app.name] = services.images.render(
            str(app.image.id), renderer, verify=request.verify, insecure=request.insecure
        )
    ids = _ids(place.userns, reified.pod, uuid, services)
    manifest, mounts, environment = _with_host_mounts(reified, isolation, resolved)
    volumes.check_stager(manifest, mounts.values(), stager, lambda: services.stagers.get(stager).features())
    app_settings.check_secrets(manifest.apps, ids, services, stager)
    checks = (request.verify, request.insecure)
    rendered.update(volumes.render_images(manifest, mounts.values(), services.images, renderer, *checks))
    return PodDocument(
        uuid=uuid,
        name=name,
        created_at=created_at,
        manifest=manifest,
        mounts=mounts,
        plans=isolation.apps,
        pod_plan=isolation.pod,
        isolators=isolation.reports,
        held=isolation.held,
        notes=(*reified.notes, *notes, *place.granted),
        stager=stager,
        renderer=renderer,
        attachments=attachments,
        host_network=place.host_network,
        hostname=request.hostname
        or services.stagers.hostname(stager, uuid)
        or name[:_HOSTNAME_LIMIT].rstrip("-."),
        interactive=request.interactive,
        terminal=request.terminal,
        dns=request.dns.by_name if request.dns is not None else None,
        dns_exact=request.dns is not None and request.dns.exact,
        hosts=request.hosts,
        ephemeral=request.ephemeral,
        foreground=request.foreground,
        verify=request.verify,
        insecure=tuple(sorted(request.insecure)),
        volume_links=request.allow_volume_links,
        environment=environment,
        ids=ids,
        keep=not template.pod.apps,
        needs=place.needs,
        grants=_grants(request),
        own_networks=services.stagers.joins_networks(stager),
        stager_plugin=services.stagers.plugin(stager),
        image_names={app.name: image_name(app, resolved[app.name][1]) for app in request.template.pod.apps},
        conventions={app: expected for app, expected in conventions.items() if expected != Conventions()},
    )


def _with_template(request: PodRequest) -> PodRequest:
    """The request, with the settings of its template that it does not replace."""
    template = request.template
    return replace(
        request,
        hostname=request.hostname or template.hostname,
        dns=request.dns or template.dns,
        hosts=(*template.hosts, *request.hosts),
    )


def with_found_volumes(request: PodRequest, services: Services, progress: Progress | None) -> PodRequest:
    """The request, with the IDs of the images of its volumes, and the directories of named ones. Volumes of single
    apps are included."""
    pod = request.template.pod
    own = [mount.app_volume for app in pod.apps for mount in app.mounts if mount.app_volume is not None]
    if not any(volume.kind == "image" or volume.volume is not None for volume in (*pod.volumes, *own)):
        return request
    from kurma_core.pods.prepare import named_volumes

    def found(some: tuple[Volume, ...]) -> tuple[Volume, ...]:
        of_images = volumes.find_images(some, services.images, request.pull, request.insecure, progress)
        return named_volumes.found(of_images, services.volumes)

    def mount(one: Mount) -> Mount:
        return one if one.app_volume is None else replace(one, app_volume=found((one.app_volume,))[0])

    apps = tuple(replace(app, mounts=tuple(mount(one) for one in app.mounts)) for app in pod.apps)
    pod = replace(pod, apps=apps, volumes=found(pod.volumes))
    return replace(request, template=replace(request.template, pod=pod))


def image_name(app: PodApp, manifest: ImageManifest) -> str:
    """The image as the caller named it, without passwords; the image's own name if the caller gave its ID."""
    text = locator_of(app.image)
    if is_hex(text.removeprefix("sha512-").removeprefix("sha256-")):
        version = lookup(manifest.labels, "version")
        return f"{manifest.name}:{version}" if version else str(manifest.name)
    return without_passwords(text)


@frozen
class _Place:
    """The namespaces of a pod: its networks, the namespaces that it shares with the host, and the grants for
    these.

    :param attachments: empty: the pod is in the host's network. Even a pod on "none" has its loopback.
    """

    attachments: tuple[Attachment, ...]
    userns: str
    shared: frozenset[str]
    needs: Mapping[str, tuple[Need, ...]]
    granted: tuple[str, ...]

    @property
    def host_network(self) -> bool:
        return not self.attachments


def _place(
    request: PodRequest,
    template: PodTemplate,
    reified: Reified,
    declared: Mapping[str, tuple[Isolator, ...]],
    fewer_capabilities: frozenset[str],
    uuid: str,
    services: Services,
) -> _Place:
    """:raises KurmaError: a network is unknown, a grant is missing …"""
    pod = reified.pod
    wishes = isolators.namespace_wishes(pod.isolators, declared, services.isolators)
    networks, userns = _networks(request, template), _userns(request, pod)
    # A namespace that the caller or the pod's file decides: isolators have no influence on it.
    decided = {kind for kind, word in (("net", networks), ("user", userns)) if word is not None}
    shared = frozenset(kind for kind, word in wishes.items() if word == "host" and kind not in decided)
    of_file = _hosts_by_file(request, networks, userns, services)
    needs, granted = _judged(request, pod, declared, shared, services, fewer_capabilities, of_file)
    if networks is None and "net" in shared:
        networks = [NetworkRequest("host")]
    dns = None if request.dns is None else request.dns.by_name
    attachments = services.networking.plan(networks, _ports(request, reified), uuid, dns)
    userns = userns or _WORDS.get(wishes.get("user", "")) or services.config.userns
    return _Place(attachments, userns, _shared(shared, not attachments, userns), needs, granted)


def _hosts_by_file(
    request: PodRequest, networks: list[NetworkRequest] | None, userns: str | None, services: Services
) -> tuple[str, ...]:
    """Namespaces of the host that the pod shares because its file says so, by ``networks`` or an annotation."""
    found = []
    if request.networks is None and any(one.name == "host" for one in networks or ()):
        found.append("net")
    # A range that the pod's file chooses may include ids of the host's users; a range of the pool never does.
    if request.userns is None and services.config.userns != "none" and userns not in (None, "auto"):
        found.append("user")
    return tuple(found)


def _refuse_kurmads_annotations(pod: PodManifest) -> None:
    """Refuses annotations that only kurmad may set: kurmad finds the pods of ``initial_pods`` by them, so it would
    take this pod for one of those.

    :raises UsageError: the pod has such an annotation.
    """
    for annotation in pod.annotations:
        if annotation.name.startswith(_KURMADS):
            raise UsageError(f"the pod's annotation {annotation.name} is reserved for kurmad", hint="leave it out")


def _check_manager(pod: PodManifest) -> None:
    """Checks the annotations of the pod's manager and display name.

    :raises UsageError: one is empty, too long, or not printable on one line.
    """
    for name in (MANAGER, DISPLAY_NAME):
        value = pod.annotation(name)
        if value is not None and not (0 < len(value) <= _LONGEST_NAME and value.isprintable()):
            raise UsageError(
                f"the pod's annotation {name}: {value[:40]!r} is not a name",
                hint=f"write one line of 1 to {_LONGEST_NAME} printable characters",
            )


def _grants(request: PodRequest) -> dict[str, tuple[str, ...]]:
    """The caller's grants by app, as the pod's document has them."""
    names = ["", *(app.name for app in request.template.pod.apps)]
    return dict.fromkeys(names, request.grants) if request.grants else {}


def _looked_at(
    request: PodRequest,
    reified: Reified,
    resolved: Mapping[str, tuple[str, ImageManifest]],
    services: Services,
) -> tuple[str, ...]:
    """Checks the pod's volumes. :returns: the notes on them. :raises KurmaError: one has no source, or an unsafe
    one."""
    idle = noted(services, idle_volumes(request.template, reified, resolved))
    links = request.allow_volume_links
    return (*idle, *noted(services, volumes.look_at(reified.pod.volumes, services.config.state_dir, links)))


def noted(services: Services, notes: tuple[str, ...]) -> tuple[str, ...]:
    """Tells the user these notes, and returns them."""
    for note in notes:
        services.note(note)
    return notes


def _placed(request: PodRequest, plugins: tuple[IsolatorPlugin, ...]) -> PodRequest:
    """The request, with isolators that only a pod can have moved from its apps to the pod."""
    overrides, pods = dict(request.overrides), list(request.isolators)
    for app, given in request.overrides.items():
        pods_own = [pair for pair in given.isolators if scopes(pair[0], plugins) == ("pod",)]
        if pods_own:
            kept = tuple(pair for pair in given.isolators if pair not in pods_own)
            overrides[app] = replace(given, isolators=kept)
            pods += pods_own
    return replace(request, overrides=overrides, isolators=tuple(pods)) if pods else request


def _reified(
    request: PodRequest, resolved: Mapping[str, tuple[str, ImageManifest]], services: Services
) -> tuple[PodTemplate, Reified]:
    """The template with all changes of the request, and the manifest that it makes of these images."""
    template = request.template
    if template.unfinished:
        from kurma_core.appc.early_pod import with_images

        template = with_images(template, {app: manifest for app, (_, manifest) in resolved.items()})
    template = _override(request, template, resolved, services)
    return template, checked_manifest(template, resolved, request)


def checked_manifest(
    template: PodTemplate | PodManifest, resolved: Mapping[str, tuple[str, ImageManifest]], request: PodRequest
) -> Reified:
    """The manifest that a template with these images makes. :raises ManifestError: it is invalid."""
    reified = reify(template, resolved, strict_volumes=request.strict_volumes)
    # Parsed again: no parser has seen the overridden values yet, and each later reader of the pod parses this
    # manifest.
    PodManifest.parse(reified.pod.to_json())
    return reified


def _isolators(
    pod: PodManifest, resolved: Mapping[str, tuple[str, ImageManifest]]
) -> dict[str, tuple[Isolator, ...]]:
    """All isolators of each app."""
    return {app.name: effective_app(app, resolved[app.name][1]).isolators for app in pod.apps}


def _judged(
    request: PodRequest,
    pod: PodManifest,
    apps: Mapping[str, tuple[Isolator, ...]],
    shared: frozenset[str],
    services: Services,
    fewer_capabilities: frozenset[str],
    of_file: tuple[str, ...],
) -> tuple[dict[str, tuple[Need, ...]], tuple[str, ...]]:
    """Checks the grants of the pod's images. :returns: the powers that they need, and a note on each power they
    have. :raises PowerError: a grant is missing."""
    host_pids = any(app.annotation(PID) == PID_HOST for app in pod.apps)
    shares = any(volume.propagation == "rshared" for volume in pod.volumes)
    if not (pod.isolators or any(apps.values()) or of_file or host_pids or shares):
        return {}, ()
    from kurma_core.pods.prepare import grants

    host = isolators.host_of(services)
    found = grants.needs(request, pod, apps, services.isolators, shared, host, fewer_capabilities, of_file)
    images = {app.name: str(app.image.id) for app in pod.apps}
    granted = grants.check_pod(found.needs, images, services, request.insecure, _grants(request))
    return found.needs, noted(services, (*granted, *found.notes(request.configured)))


def _with_host_mounts(
    reified: Reified, isolation: Isolation, resolved: Mapping[str, tuple[str, ImageManifest]]
) -> tuple[PodManifest, Mapping[str, tuple[MountSetup, ...]], dict[str, tuple[tuple[str, str], ...]]]:
    """The manifest and the mounts with those that isolators add, and the environment variables of isolators, by
    app."""
    pod, mounts = reified.pod, mount_setups(reified)
    if any(plan.mounts for plan in (isolation.pod, *isolation.apps.values())):
        pod, mounts = isolators.with_host_mounts(pod, mounts, isolation)
    if not any(plan.api or plan.environment for plan in isolation.apps.values()):
        return pod, mounts, {}
    manifest, mounts = isolators.with_api(pod, mounts, isolation.apps)
    told = {
        app.name: isolators.environment(app, resolved[app.name][1], isolation.apps[app.name]) for app in pod.apps
    }
    return manifest, mounts, {app: pairs for app, pairs in told.items() if pairs}


def _shared(asked: frozenset[str], host_network: bool, userns: str) -> frozenset[str]:
    """The namespaces that the pod shares with the host. Isolators alone do not decide on the network and user
    namespaces."""
    found = set(asked - {"net", "user"})
    found.update(["net"] if host_network else [], ["user"] if userns == "none" else [])
    return frozenset(found)


def _userns(request: PodRequest, pod: PodManifest) -> str | None:
    """The pod's user namespace, as the caller or the pod's annotation asks for it; None: neither does."""
    if request.userns is None and not pod.annotations:
        return None
    from kurma_core.pods.prepare.id_ranges import wanted

    return wanted(request.userns, pod, "") or None


def _ids(word: str, pod: PodManifest, uuid: str, services: Services) -> IdRange | None:
    """Claims the ids of the pod's user namespace; None: it gets none."""
    if word == "none":
        return None
    ids = services.id_ranges.claim(uuid, word, managed=pod.annotation(MANAGER) is not None)
    volumes.check_owners(pod, ids)
    return ids


def _images(
    request: PodRequest, services: Services, progress: Progress | None
) -> dict[str, tuple[str, ImageManifest]]:
    """Image ID and manifest by app; an image that several apps name is looked up once."""
    found: dict[str, tuple[str, ImageManifest]] = {}
    known: dict[object, tuple[str, ImageManifest]] = {}
    for app in request.template.pod.apps:
        image = app.image
        labels = tuple((label.name, label.value) for label in image.labels)
        meant = (image.locator, image.id, image.name, labels)
        if meant not in known:
            record = services.images.of_app(image, pull=request.pull, insecure=request.insecure, progress=progress)
            known[meant] = (record.id, services.images.manifest(record.id))
        found[app.name] = known[meant]
    return found


def _override(
    request: PodRequest,
    template: PodTemplate,
    resolved: Mapping[str, tuple[str, ImageManifest]],
    services: Services,
) -> PodTemplate:
    names = [app.name for app in template.pod.apps]
    for name in [*request.overrides, *filter(None, (request.interactive, request.terminal))]:
        if name not in names:
            raise UsageError(f"the pod has no app {name}", hint="its apps: " + (", ".join(names) or "none"))
    apps = [overridden_app(request, app, resolved[app.name], services) for app in template.pod.apps]
    isolators = with_isolators(template.pod.isolators, request.isolators)
    return replace(template, pod=replace(template.pod, apps=tuple(apps), isolators=isolators))


def overridden_app(
    request: PodRequest, app: PodApp, image: tuple[str, ImageManifest], services: Services
) -> PodApp:
    """The app with the request's overrides. :param image: ID and manifest of its image."""
    overrides = app_settings.joined(app.overrides, request.overrides.get(app.name))
    app = replace(app, overrides=None)
    if not overrides and app.annotation(GROUP_POLICY) is None:
        return app
    overrides = overrides or AppOverrides()
    image_id, manifest = image
    groups_of = functools.partial(services.images.groups_of, image_id)
    entrypoint = services.images.conventions(image_id).entrypoint
    changed = overridden(app.app or manifest.app, overrides, entrypoint, groups_of)
    return replace(app, app=app_settings.with_group_policy(app, changed, overrides, groups_of))


def _networks(request: PodRequest, template: PodTemplate) -> list[NetworkRequest] | None:
    if request.networks is not None:
        return list(request.networks)
    if template.networks is not None:
        # A template with an empty list of networks asks for no network.
        return [parse_net(text) for text in template.networks or ("none",)]
    return None


def _ports(request: PodRequest, reified: Reified) -> list[PortMapping]:
    return [
        *request.ports,
        *[PortMapping(p.host_port, p.pod_port, p.protocol, p.host_ip) for p in reified.ports],
    ]


def mount_setups(reified: Reified) -> dict[str, tuple[MountSetup, ...]]:
    """By app, the mounts in the order in which they are made."""
    seeds = {volume.name: volume.seed for volume in reified.pod.volumes}
    return {
        app: tuple(
            MountSetup(m.volume_name, m.path, m.read_only, seeds.get(m.volume_name) == (app, m.path))
            for m in mounts
        )
        for app, mounts in reified.mounts.items()
    }
