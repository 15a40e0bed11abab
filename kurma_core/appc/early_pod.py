"""Converts pods of early documents (0.1.0), the container runtime manifests, to the late form.

Implements App Container Specification 0.1.0, Container Runtime Manifest Schema. Isolators and mount points of an
early pod add to those of the images. So :func:`convert_pod` makes a template, which :func:`with_images` completes
once the images are known.
"""

from __future__ import annotations

from collections.abc import Mapping

from kurma_core.appc import types
from kurma_core.appc.early_image import POD_MANIFEST
from kurma_core.appc.early_parts import (
    NAMESPACES,
    Names,
    overriding,
    read_annotation_map,
    read_early_isolators,
    read_name,
    read_versions,
    refuse_late,
)
from kurma_core.appc.image import App, decode
from kurma_core.appc.manifest_reader import Reader
from kurma_core.appc.pod import Mount, PodApp, PodManifest, RuntimeImage, Volume
from kurma_core.appc.reify import normal_path
from kurma_core.appc.template import PodTemplate
from kurma_core.errors import ManifestError
from kurma_core.schema import describe
from kurma_core.value import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.appc.image import ImageManifest, Isolator
    from kurma_core.appc.manifest_reader import Warn

_LATE_OF_POD = ("ports", "userAnnotations", "userLabels", "networks", "kurma.io/uuid")
_LATE_OF_APP = ("name", "image", "mounts", "readOnlyRootFS", "kurma.io/isolators")
_LATE_OF_VOLUME = (
    "name",
    "recursive",
    "mode",
    "uid",
    "gid",
    "kurma.io/seed",
    "kurma.io/fulfills",
    "kurma.io/volume",
)


def convert_pod(document: object, *, warn: Warn | None = None) -> PodTemplate:
    """Converts a container runtime manifest to a template.

    An app's name is the last part of its image's name, without the version; if two apps would have the same name,
    the whole name. ``privateNetwork`` "false", of the pod or of an app, asks for the host's network like the late
    isolator: the images need a grant.

    :param document: the JSON text (bytes or str), or the decoded object.
    :param warn: called with one line for each harmless deviation.
    :raises ManifestError: it is malformed, or breaks the draft.
    """
    reader = Reader(decode(document, "the container runtime manifest"), "$", warn)
    read_versions(reader, POD_MANIFEST)
    refuse_late(reader, _LATE_OF_POD)
    uuid = reader.optional("uuid", types.pod_uuid)
    reader.need("apps", "a list of apps")
    names = _app_names(reader)
    apps = tuple(_read_app(item, name) for item, name in zip(reader.objects("apps"), names, strict=True))
    volumes = _read_volumes(reader, Names(warn))
    isolators = read_early_isolators(reader)
    pod = PodManifest(
        apps=apps,
        volumes=volumes,
        isolators=isolators,
        annotations=read_annotation_map(reader),
        extra=reader.extra(),
    )
    _check_network(pod)
    return PodTemplate(pod, None, uuid)


def with_images(template: PodTemplate, images: Mapping[str, ImageManifest]) -> PodTemplate:
    """Completes a template of an early document by its images: puts its isolators over those of each app, one by
    one, and adds a mount for each mount point that a volume of another name fulfils. Other templates are returned
    unchanged.

    :param images: by app; an app whose image is missing here stays unfinished.
    """
    if not template.unfinished:
        return template
    volumes = {point: volume.name for volume in template.pod.volumes for point in volume.fulfills}
    apps = tuple(
        _with_image(app, images[app.name], volumes) if app.name in images else app for app in template.pod.apps
    )
    left = any(app.name not in images for app in apps)
    kept = template.pod.volumes if left else tuple(replace(volume, fulfills=()) for volume in template.pod.volumes)
    return replace(template, pod=replace(template.pod, apps=apps, volumes=kept))


def _with_image(app: PodApp, image: ImageManifest, volumes: Mapping[str, str]) -> PodApp:
    base = app.app or image.app or App(user="0", group="0")
    if app.isolators:
        merged = replace(base, isolators=overriding(base.isolators, app.isolators))
        app = replace(app, app=merged, isolators=())
    taken = {normal_path(mount.path) for mount in app.mounts}
    mounts = [
        Mount(volumes[point.name], point.path)
        for point in base.mount_points
        if point.name in volumes and normal_path(point.path) not in taken
    ]
    return replace(app, mounts=(*app.mounts, *mounts))


# --- apps --------------------------------------------------------------------------------------------------------


def _app_names(reader: Reader) -> list[str]:
    """Returns an ACName for each app."""
    long: list[str] = []
    short: list[str] = []
    seen: set[str] = set()
    for item in reader.objects("apps"):
        written = item.string("app", types.ac_identifier, "the app's name")
        if written in seen:
            raise ManifestError(item.at("app"), "each app once", f"{describe(written)} again")
        seen.add(written)
        long.append(types.sanitize_name(written))
        short.append(types.sanitize_name(read_name(item, "app", "the app's name").name.rpartition("/")[2]))
    names = [one if short.count(one) == 1 else other for one, other in zip(short, long, strict=True)]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ManifestError(
                f"{reader.at('apps')}[{index}].app",
                f"a name that differs from app {names.index(name)}'s as {name} does not",
                f"a name that becomes {name}",
            )
    return names


def _read_app(reader: Reader, name: str) -> PodApp:
    refuse_late(reader, _LATE_OF_APP)
    image = read_name(reader, "app", "the app's name")
    return PodApp(
        name=name,
        image=RuntimeImage(
            reader.string("imageID", types.content_id, 'an image ID ("sha256-" and hex digits)'),
            image.name,
            image.labels,
        ),
        annotations=read_annotation_map(reader),
        isolators=read_early_isolators(reader),
        extra=reader.extra(),
    )


# --- volumes -----------------------------------------------------------------------------------------------------


def _read_volumes(reader: Reader, names: Names) -> tuple[Volume, ...]:
    read: list[tuple[Reader, tuple[str, ...]]] = []
    fulfilled: set[str] = set()
    for item in reader.objects("volumes"):
        refuse_late(item, _LATE_OF_VOLUME)
        points = item.strings("fulfills", names)
        for index, point in enumerate(points):
            if point in fulfilled:
                path = f"{item.at('fulfills')}[{index}]"
                raise ManifestError(path, "each mount point once", f"{describe(point)} again")
            fulfilled.add(point)
        read.append((item, points))
    return tuple(
        _read_volume(item, points, _free_name(number, fulfilled)) for number, (item, points) in enumerate(read, 1)
    )


def _free_name(number: int, taken: set[str]) -> str:
    """Returns a name that no mount point has, for a volume that fulfils no mount point."""
    name = f"volume-{number}"
    while name in taken:
        name += "-unused"
    return name


def _read_volume(reader: Reader, points: tuple[str, ...], otherwise: str) -> Volume:
    kind = reader.string("kind", types.text, '"host" or "empty"')
    if kind not in ("host", "empty"):
        raise ManifestError(reader.at("kind"), '"host" or "empty"', describe(kind))
    source = reader.take("source")
    if kind == "empty" and source is not None:
        raise ManifestError(reader.at("source"), "no source in a volume of kind empty", describe(source))
    if kind == "host":
        source = reader.string("source", types.absolute_path, "an absolute path on the host")
    return Volume(
        points[0] if points else otherwise,
        kind,
        source=source,
        read_only=reader.boolean("readOnly", False),
        fulfills=points if len(points) > 1 else (),
        extra=reader.extra(),
    )


# --- the network -------------------------------------------------------------------------------------------------


def _check_network(pod: PodManifest) -> None:
    """Refuses contradicting settings of the host's network: the pod and its apps share one network."""
    said: tuple[bool, str] | None = None
    places = [("$.isolators", pod.isolators)]
    places += [(f"$.apps[{index}].isolators", app.isolators) for index, app in enumerate(pod.apps)]
    for path, isolators in places:
        host = _says_host(isolators)
        if host is None:
            continue
        if said is not None and said[0] != host:
            raise ManifestError(
                path,
                f"what {said[1]} says of the private network, for the apps of a pod share one",
                "privateNetwork " + ('"false"' if host else '"true"'),
            )
        said = said or (host, path)


def _says_host(isolators: tuple[Isolator, ...]) -> bool | None:
    for isolator in isolators:
        if isolator.name == NAMESPACES and isinstance(isolator.value, Mapping):
            return bool(isolator.value.get("net") == "host")
    return None
