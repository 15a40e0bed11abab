"""Reifies a template or a pod manifest: fills in images, volumes, mounts and ports.

It does no I/O: the caller has found the images, and makes the volumes later. Implements App Container Executor,
Volume Setup, as far as names and paths are concerned.
"""

from __future__ import annotations

from collections.abc import Mapping

from kurma_core.appc.image import App, ImageManifest, Port
from kurma_core.appc.pod import ExposedPort, Mount, PodApp, PodManifest, RuntimeImage, Volume
from kurma_core.appc.template import PodTemplate
from kurma_core.errors import ImageError, ImageNotFoundError, ManifestError, SecretError, VolumeError
from kurma_core.models.network import MOST_PORTS, PROTOCOLS
from kurma_core.value import frozen, replace


@frozen
class AppMount:
    """A mounted volume of an app. ``path`` is absolute, without ``.``, ``..`` or doubled slashes."""

    volume_name: str
    path: str
    read_only: bool


@frozen
class PublishedPort:
    """One port of the host and its port in the pod; ``host_ip`` "" is any."""

    host_ip: str
    host_port: int
    pod_port: int
    protocol: str


@frozen
class Reified:
    """The result of :func:`reify`.

    :param pod: every image has id, name and labels; every mount point has a volume and a mount; apps' own volumes
        have become the pod's; every exposed port has its ``podPort``, also in the ports of the apps that declare
        the name.
    :param mounts: by app.
    :param ports: the published ports of ``pod.ports``, one for each port of a range.
    :param notes: one line for people about each addition.
    """

    pod: PodManifest
    mounts: Mapping[str, tuple[AppMount, ...]]
    ports: tuple[PublishedPort, ...]
    notes: tuple[str, ...]


def reify(
    source: PodTemplate | PodManifest,
    resolved: Mapping[str, tuple[str, ImageManifest]],
    *,
    strict_volumes: bool = False,
) -> Reified:
    """Fills in the missing parts of ``source``.

    A mount point without a volume gets an empty volume of its own, ``APP-MOUNTPOINT``, whose
    :attr:`~kurma_core.appc.pod.Volume.seed` names the directory of the image with its initial content.

    :param resolved: image ID and manifest by app.
    :param strict_volumes: a mount point without a volume is an error instead.
    :raises VolumeError: a volume is missing, two targets are equal, or one is reserved.
    :raises ImageError: an app has no command.
    :raises ManifestError: an image has another ID than the manifest says, or port names conflict.
    """
    pod = source.pod if isinstance(source, PodTemplate) else source
    volumes = {volume.name: volume for volume in pod.volumes}
    notes: list[str] = []
    apps: list[PodApp] = []
    given = {port.name: port.pod_port for port in pod.ports if port.pod_port is not None}
    for index, app in enumerate(pod.apps):
        identity, manifest = _resolved(app, index, resolved)
        image = RuntimeImage(identity, manifest.name, manifest.labels, extra=app.image.extra)
        found = replace(app, image=image)
        if given:
            found = _with_pod_ports(found, manifest, given, notes)
        apps.append(replace(found, mounts=_reify_mounts(found, manifest, volumes, strict_volumes, notes)))
    ports, published = _reify_ports(pod, {app.name: effective_app(app, resolved[app.name][1]) for app in apps})
    result = replace(pod, apps=tuple(apps), volumes=tuple(volumes.values()), ports=ports)
    seen = {app.name: mounts_of(result, app, resolved[app.name][1]) for app in apps}
    return Reified(result, seen, published, tuple(notes))


def idle_volumes(
    template: PodTemplate, reified: Reified, resolved: Mapping[str, tuple[str, ImageManifest]]
) -> tuple[str, ...]:
    """Returns a note for people about each volume of the template that no app mounts, or that fulfils a mount
    point which no app has: that is allowed, but probably a mistyped name. A pod without apps gets no notes, since
    apps may be added later.

    :param template: the original template, with the ``fulfills`` of an early document's volumes.
    """
    if not reified.pod.apps:
        return ()
    points = {
        point.name for app in reified.pod.apps for point in effective_app(app, resolved[app.name][1]).mount_points
    }
    used = {mount.volume_name for mounts in reified.mounts.values() for mount in mounts}
    notes = []
    for volume in template.pod.volumes:
        missing = [point for point in volume.fulfills if point not in points]
        if missing:
            notes.append(f"volume {volume.name}: no app has the mount point {' or '.join(missing)} to fulfil")
        elif volume.name not in used:
            notes.append(
                f"volume {volume.name}: stands nowhere: no app has a mount, or a mount point, of that name"
            )
    return tuple(notes)


def effective_app(pod_app: PodApp, image: ImageManifest) -> App:
    """Returns the app that runs: the pod's ``app``, else the image's.

    :raises ImageError: it has no command.
    """
    app = pod_app.app if pod_app.app is not None else image.app
    if app is None or not app.exec:
        whose = (
            f"image {image.name}"
            if pod_app.app is None
            else f'the pod\'s "app" (it replaces that of {image.name})'
        )
        raise ImageError(
            f"app {pod_app.name} has nothing to run: {whose} gives no command",
            hint="give one: `kurma run IMAGE -- COMMAND ARG…`, or app.exec in the pod manifest",
            app=pod_app.name,
            image=image.name,
        )
    return app


def mounts_of(pod: PodManifest, app: PodApp, image: ImageManifest) -> tuple[AppMount, ...]:
    """Returns the mounts of ``app``, in the order of its mount points, then of its further mounts; a mount comes
    before those below it.

    For a mount point, a mount with the same path counts, else the pod's volume of the mount point's name. A mount
    is read-only if the mount point or the volume says so.

    :raises VolumeError: a volume is missing, two targets are equal, one is reserved, or the file of a secret.
    :raises SecretError: the place of a secret's file is reserved.
    """
    found: list[AppMount] = []
    placed: dict[str, Mount] = {}
    for mount in app.mounts:
        placed.setdefault(normal_path(mount.path), mount)
    # A second mount of the same path is kept, so that the check for overlaps finds it.
    doubled = [mount for mount in app.mounts if placed[normal_path(mount.path)] is not mount]
    points = [(normal_path(point.path), point) for point in effective_app(app, image).mount_points]
    for target, point in points:
        mount = placed.get(target) or Mount(point.name, target)
        volume = _volume_of(pod, app, mount, None if target in placed else point.name)
        found.append(AppMount(volume.name, target, point.read_only or volume.read_only))
    pointed = {target for target, _ in points}
    further = [mount for target, mount in placed.items() if target not in pointed]
    for mount in further + doubled:
        volume = _volume_of(pod, app, mount, None)
        found.append(AppMount(volume.name, normal_path(mount.path), volume.read_only))
    kinds = {volume.name: volume.kind for volume in pod.volumes}
    ordered = tuple(_in_order(app, found, kinds))
    if app.secrets:
        _check_secrets(app, ordered)
    return ordered


def normal_path(path: str) -> str:
    """``path`` without ``.`` and doubled or trailing slashes (``..`` is refused on reading)."""
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def _resolved(
    app: PodApp, index: int, resolved: Mapping[str, tuple[str, ImageManifest]]
) -> tuple[str, ImageManifest]:
    if app.name not in resolved:
        raise ImageNotFoundError(f"no image was found for app {app.name}", app=app.name)
    identity, manifest = resolved[app.name]
    # An early document's ID is another digest of the same archive; the image was found by it.
    if app.image.id not in (None, identity) and not str(app.image.id).startswith("sha256-"):
        raise ManifestError(f"$.apps[{index}].image.id", f"the ID of the image, {identity}", str(app.image.id))
    return identity, manifest


def _reify_mounts(
    app: PodApp,
    image: ImageManifest,
    volumes: dict[str, Volume],
    strict: bool,
    notes: list[str],
) -> tuple[Mount, ...]:
    """Returns the app's mounts, one for every mount point; adds new volumes to ``volumes``."""
    mounts = [_adopt(app, mount, volumes, notes) for mount in app.mounts]
    taken = {normal_path(mount.path) for mount in mounts}
    for point in effective_app(app, image).mount_points:
        target = normal_path(point.path)
        if target in taken:
            continue
        if point.name in volumes:
            mounts.append(Mount(point.name, point.path))
            continue
        if strict:
            raise _missing(app, point.name, target, point.name)
        name = _free_name(f"{app.name}-{point.name}", volumes)
        volumes[name] = Volume(name, "empty", seed=(app.name, target))
        mounts.append(Mount(name, point.path))
        notes.append(
            f"app {app.name}: no volume for mount point {point.name} ({target}): "
            f"an empty one, {name}, is added, with what the image has there"
        )
    return tuple(mounts)


def _adopt(app: PodApp, mount: Mount, volumes: dict[str, Volume], notes: list[str]) -> Mount:
    """Makes an app's own volume a volume of the pod, since stagers look volumes up among the pod's."""
    own = mount.app_volume
    if own is None:
        return mount
    name = own.name
    if volumes.get(name, own) != own or (name not in volumes and own.kind == "empty"):
        # Under its own name an empty volume would also be used for other apps' mount points of that name.
        name = _free_name(f"{app.name}-{own.name}", volumes)
    if name not in volumes:
        volumes[name] = replace(own, name=name)
        if name != own.name:
            notes.append(f"app {app.name}: its own volume {own.name} is the pod's volume {name}")
    return replace(mount, volume=name, app_volume=None)


def _free_name(name: str, volumes: Mapping[str, Volume]) -> str:
    free, number = name, 2
    while free in volumes:
        free, number = f"{name}-{number}", number + 1
    return free


def _volume_of(pod: PodManifest, app: PodApp, mount: Mount, point: str | None) -> Volume:
    """Returns the volume of ``mount``. :param point: name of its mount point, if there is no explicit mount."""
    volume = mount.app_volume or pod.volume(mount.volume)
    if volume is None:
        raise _missing(app, mount.volume, normal_path(mount.path), point)
    return volume


def _missing(app: PodApp, volume: str, target: str, point: str | None) -> VolumeError:
    where = f"to be mounted at {target}" if point is None else f"for mount point {point} ({target})"
    return VolumeError(
        f"app {app.name}: the pod has no volume {volume} {where}",
        hint=f"add a volume named {volume} to the pod",
        app=app.name,
        volume=volume,
        path=target,
    )


#: Files of ``/proc`` over which a volume of the host may be mounted.
PROC_FILES = tuple(
    f"/proc/{name}"
    for name in ("cpuinfo", "diskstats", "loadavg", "meminfo", "slabinfo", "stat", "swaps", "uptime")
)


def _in_order(app: PodApp, mounts: list[AppMount], kinds: Mapping[str, str]) -> list[AppMount]:
    """Returns the mounts, those with fewer parents first if some are below others.

    :param kinds: of the volumes, by name.
    :raises VolumeError: two targets are equal, or one is reserved. A stager checks again, after it has resolved
        the image's links.
    """
    ordered = sorted(mounts, key=lambda mount: mount.path.split("/"))
    for mount in ordered:
        if _reserved(mount.path, kinds.get(mount.volume_name, "host")):
            raise VolumeError(
                f"app {app.name}: volume {mount.volume_name} cannot be mounted over {mount.path}: "
                "kurma reserves this path",
                app=app.name,
                volume=mount.volume_name,
                path=mount.path,
            )
    nested = False
    for index, inner in enumerate(ordered[1:]):
        outer = ordered[index]
        if inner.path == outer.path:
            raise VolumeError(
                f"app {app.name}: volumes overlap: {outer.volume_name} and {inner.volume_name} "
                f"are both mounted at {inner.path}",
                app=app.name,
                path=inner.path,
            )
        nested = nested or inner.path.startswith(outer.path + "/")
    return sorted(mounts, key=lambda mount: mount.path.count("/")) if nested else mounts


def _check_secrets(app: PodApp, mounts: tuple[AppMount, ...]) -> None:
    """Checks where the files of secrets are mounted: a file may be in a volume, and no volume at or below a file.

    :raises VolumeError: a volume is. :raises SecretError: the place of a secret's file is reserved.
    """
    for secret in app.secrets:
        target = secret.target
        if target is None:
            continue
        if _reserved(target, "empty"):
            raise SecretError(
                f"app {app.name}: secret {secret.name} cannot be mounted at {target}: kurma reserves this path",
                hint="give it another path: --secret NAME,target=PATH, or target in the pod file",
                secret=secret.name,
            )
        for mount in mounts:
            if mount.path == target or mount.path.startswith(f"{target}/"):
                raise VolumeError(
                    f"app {app.name}: volume {mount.volume_name} cannot be mounted at {mount.path}: "
                    f"{target} is the file of secret {secret.name}",
                    hint="mount one of them elsewhere",
                    app=app.name,
                    volume=mount.volume_name,
                    path=mount.path,
                )


def _reserved(path: str, kind: str) -> bool:
    """Whether no volume of that kind may be mounted there."""
    first = path.split("/")[1]
    if path == "/" or first == "proc":
        return not (kind == "host" and path in PROC_FILES)
    # Volumes that an image asks for must not hide the kernel's file systems.
    return kind != "host" and (first == "sys" or path == "/dev")


#: Most sockets that one app gets.
MOST_SOCKETS = 256


def _check_sockets(apps: Mapping[str, App]) -> None:
    """Checks ports with ``socketActivated``: apps share one network, so each such port can belong to one app only.

    :raises ManifestError: two ports are equal, a protocol is neither TCP nor UDP, or there are too many.
    """
    taken: list[tuple[str, Port]] = []
    for app_name, app in apps.items():
        count = 0
        for index, port in enumerate(app.ports):
            if not port.socket_activated:
                continue
            where = f"app {app_name}: $.ports[{index}]"
            if port.protocol not in ("tcp", "udp"):
                raise ManifestError(
                    f"{where}.protocol", "tcp or udp for a socket to be handed over", port.protocol
                )
            count += port.count
            if count > MOST_SOCKETS:
                raise ManifestError(where, f"at most {MOST_SOCKETS} sockets to be handed over", "more")
            for other, known in taken:
                first = max(port.port, known.port)
                both = first < min(port.port + port.count, known.port + known.count)
                if both and port.protocol == known.protocol:
                    raise ManifestError(
                        f"{where}.port",
                        "a port that no other socketActivated port of the pod has",
                        f'{first}/{port.protocol}, which is "{known.name}" of app {other}',
                        hint="apps of a pod share its network: give one of them another port",
                    )
            taken.append((app_name, port))


def _with_pod_ports(app: PodApp, image: ImageManifest, given: Mapping[str, Port], notes: list[str]) -> PodApp:
    """Returns the app with its ports overridden by the pod's ``podPort``.

    :param given: each ``podPort``, by the name of the exposed port.
    """
    effective = effective_app(app, image)
    ports = tuple(
        replace(given[port.name], name=port.name) if port.name in given else port for port in effective.ports
    )
    for old, new in zip(effective.ports, ports, strict=True):
        if old != new:
            notes.append(f"app {app.name}: the pod's podPort overrides its port {old.name}")
    return app if ports == effective.ports else replace(app, app=replace(effective, ports=ports))


def _reify_ports(
    pod: PodManifest, apps: Mapping[str, App]
) -> tuple[tuple[ExposedPort, ...], tuple[PublishedPort, ...]]:
    """Gives every exposed port its ``podPort``. A port's name means the same port in the whole pod."""
    named: dict[str, tuple[str, Port]] = {}
    for app_name, app in apps.items():
        for index, port in enumerate(app.ports):
            other, known = named.setdefault(port.name, (app_name, port))
            # Two apps of one image declare the same port twice, which is no conflict.
            if (known.protocol, known.port, known.count) != (port.protocol, port.port, port.count):
                raise ManifestError(
                    f"app {app_name}: $.ports[{index}].name",
                    "a name that no other app of the pod gives to another port",
                    f'"{port.name}" of app {other}',
                )
    _check_sockets(apps)
    exposed: list[ExposedPort] = []
    published: list[PublishedPort] = []
    for index, port_out in enumerate(pod.ports):
        _, target = named.get(port_out.name, ("", None))
        inside = port_out.pod_port or target
        if inside is None:
            raise ManifestError(
                f"$.ports[{index}].name", "the name of an app's port, or a podPort", f'"{port_out.name}"'
            )
        if inside.protocol not in PROTOCOLS:
            raise ManifestError(
                f"$.ports[{index}].name",
                f"a port of one of the protocols {', '.join(PROTOCOLS)}, which alone can be published",
                f'"{port_out.name}" of protocol "{inside.protocol}"',
            )
        if port_out.host_port + inside.count - 1 > 65535:
            raise ManifestError(
                f"$.ports[{index}].hostPort", f"room for {inside.count} ports", str(port_out.host_port)
            )
        if inside.count > MOST_PORTS:
            raise ManifestError(
                f"$.ports[{index}].name", f"a range of at most {MOST_PORTS} ports to publish", str(inside.count)
            )
        exposed.append(replace(port_out, pod_port=inside))
        published.extend(
            PublishedPort(
                port_out.host_ip or "", port_out.host_port + offset, inside.port + offset, inside.protocol
            )
            for offset in range(inside.count)
        )
    return tuple(exposed), tuple(published)
