"""Converts image manifests of early documents (0.1.0) to the late form.

Implements App Container Specification 0.1.0, App Manifest Schema and Fileset Manifest. It refuses other documents;
it keeps keys that are not in the draft, and warns about them. Pods: :mod:`.early_pod`.
"""

from __future__ import annotations

from collections.abc import Mapping

from kurma_core.appc import types
from kurma_core.appc.early_parts import (
    Names,
    read_annotation_map,
    read_early_isolators,
    read_name,
    read_versions,
    refuse_late,
)
from kurma_core.appc.image import (
    ARCHITECTURES,
    App,
    Dependency,
    ImageManifest,
    NameValue,
    decode,
    read_exec,
    read_handlers,
    read_mount_points,
    read_ports,
)
from kurma_core.appc.manifest_reader import Reader
from kurma_core.errors import ManifestError
from kurma_core.schema import child, describe
from kurma_core.value import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from kurma_core.appc.manifest_reader import Warn

APP_MANIFEST = "AppManifest"
FILESET_MANIFEST = "FilesetManifest"
POD_MANIFEST = "ContainerRuntimeManifest"
#: The draft's text has this kind for app manifests, its example has AppManifest.
_LATE_KIND = "ImageManifest"
#: Keys of the late form at the top of an image manifest that the early one does not have.
_LATE_KEYS = ("labels", "app", "pathWhitelist")


# --- recognizing -------------------------------------------------------------------------------------------------


def is_early_image(document: object) -> bool:
    """Whether the decoded ``document`` is meant as an app or a fileset manifest; it may be malformed otherwise."""
    if not isinstance(document, Mapping):
        return False
    kind = document.get("acKind")
    if kind in (APP_MANIFEST, FILESET_MANIFEST):
        return True
    version = document.get("acVersion")
    early = isinstance(version, str) and version.startswith("0.1.")
    return kind == _LATE_KIND and early and not any(key in document for key in _LATE_KEYS)


def is_early_pod(document: object) -> bool:
    """Whether the decoded ``document`` is meant as a container runtime manifest; it may be malformed otherwise."""
    return isinstance(document, Mapping) and document.get("acKind") == POD_MANIFEST


# --- converting --------------------------------------------------------------------------------------------------


def convert_image(app: object | None, fileset: object | None, *, warn: Warn | None = None) -> ImageManifest:
    """Converts an image's early manifests to one late manifest.

    If both give name and annotations, the app manifest's count.

    :param app: the app manifest, ``fileset``: the fileset manifest: JSON text (bytes or str), or the decoded
        object; None: the image has none. At least one is required.
    :param warn: called with one line for each harmless deviation.
    :raises ManifestError: a manifest is malformed, or breaks the draft; if both are given, it names the manifest.
    """
    if app is None and fileset is None:
        raise ManifestError("$", "an app manifest or a fileset manifest", "neither")
    if app is None:
        return _read_fileset(fileset, warn)
    if fileset is None:
        return _read_app(app, warn)
    of_app = _named("app manifest", lambda: _read_app(app, warn))
    of_fileset = _named("fileset manifest", lambda: _read_fileset(fileset, warn))
    if warn is not None:
        _tell_of_differences(of_app, of_fileset, warn)
    annotations = {each.name: each for each in (*of_fileset.annotations, *of_app.annotations)}
    return replace(
        of_app,
        dependencies=of_fileset.dependencies,
        path_whitelist=of_fileset.path_whitelist,
        annotations=tuple(annotations.values()),
        extra={**of_fileset.extra, **of_app.extra},
    )


def convert_any(document: object, *, warn: Warn | None = None) -> ImageManifest:
    """Reads one manifest of an image, early or late. Arguments and errors as for :func:`convert_image`."""
    value = decode(document, "the image manifest")
    if not is_early_image(value):
        return ImageManifest.parse(value, warn=warn)
    if isinstance(value, Mapping) and value.get("acKind") == FILESET_MANIFEST:
        return convert_image(None, value, warn=warn)
    return convert_image(value, None, warn=warn)


# --- the app manifest --------------------------------------------------------------------------------------------


def _read_app(document: object, warn: Warn | None) -> ImageManifest:
    reader = Reader(decode(document, "the app manifest"), "$", warn)
    read_versions(reader, APP_MANIFEST, _LATE_KIND)
    refuse_late(reader, (*_LATE_KEYS, "dependencies"))
    name = read_name(reader, "name", "the image's name")
    app = App(
        exec=read_exec(reader),
        user=reader.string("user", types.nonempty, "a user (number, name, or absolute path)"),
        group=reader.string("group", types.nonempty, "a group (number, name, or absolute path)"),
        environment=_read_environment(reader),
        event_handlers=read_handlers(reader),
        mount_points=read_mount_points(reader, Names(warn)),
        ports=read_ports(reader, Names(warn)),
        isolators=read_early_isolators(reader),
    )
    return ImageManifest(
        name=name.name,
        labels=(*name.labels, *_read_platform(reader)),
        app=app,
        annotations=read_annotation_map(reader),
        extra=reader.extra(),
    )


def _read_platform(reader: Reader) -> tuple[NameValue, ...]:
    """Reads ``os`` and ``arch``; ``os`` is required, for it determines the valid architectures."""
    system = reader.string("os", types.text, f"one of {', '.join(ARCHITECTURES)}")
    if system not in ARCHITECTURES:
        raise ManifestError(reader.at("os"), f"one of {', '.join(ARCHITECTURES)}", describe(system))
    expected = f"an architecture of {system}: one of {', '.join(ARCHITECTURES[system])}"
    arch = reader.string("arch", types.text, expected)
    if arch not in ARCHITECTURES[system]:
        raise ManifestError(reader.at("arch"), expected, describe(arch))
    return NameValue("os", system), NameValue("arch", arch)


def _read_environment(reader: Reader) -> tuple[NameValue, ...]:
    path = reader.at("environment")
    return tuple(
        NameValue(
            types.environment_name(name, child(path, name)),
            types.word(value, child(path, name)),
        )
        for name, value in reader.string_map("environment").items()
    )


# --- the fileset manifest ----------------------------------------------------------------------------------------


def _read_fileset(document: object, warn: Warn | None) -> ImageManifest:
    reader = Reader(decode(document, "the fileset manifest"), "$", warn)
    read_versions(reader, FILESET_MANIFEST)
    refuse_late(reader, _LATE_KEYS)
    name = read_name(reader, "name", "the image's name")
    # The draft's fileset manifest has no platform; some real manifests have one.
    platform = _read_platform(reader) if reader.has("os") or reader.has("arch") else ()
    return ImageManifest(
        name=name.name,
        labels=(*name.labels, *platform),
        dependencies=tuple(_read_dependency(item) for item in reader.objects("dependencies")),
        path_whitelist=reader.strings("files", types.inner_path),
        annotations=read_annotation_map(reader),
        extra=reader.extra(),
    )


def _read_dependency(reader: Reader) -> Dependency:
    refuse_late(reader, ("imageName", "imageID", "labels", "size", "kurma.io/root"))
    name = read_name(reader, "name", "the fileset's name")
    return Dependency(
        image_name=name.name,
        image_id=reader.optional("hash", types.content_id),
        labels=name.labels,
        root=reader.optional("root", types.inner_path) or "/",
        extra=reader.extra(),
    )


# --- both --------------------------------------------------------------------------------------------------------


def _named(what: str, read: Callable[[], ImageManifest]) -> ImageManifest:
    """Calls ``read``, and puts the manifest's name before the message of its errors."""
    try:
        return read()
    except ManifestError as error:
        error.message = f"{what}: {error.message}"
        raise


def _tell_of_differences(app: ImageManifest, fileset: ImageManifest, warn: Warn) -> None:
    for key in ("name", "version"):
        ours, theirs = getattr(app, key) or "(none)", getattr(fileset, key) or "(none)"
        if ours != theirs:
            warn(f"{key}: the app manifest's, {ours}, counts, and not the fileset manifest's, {theirs}")
    for label in fileset.labels:
        if label.name != "version" and app.label(label.name) != label.value:
            warn(f"{label.name}: the app manifest's, {app.label(label.name)}, counts, and not {label.value}")
    for key in sorted(set(app.extra) & set(fileset.extra)):
        if app.extra[key] != fileset.extra[key]:
            warn(f"unknown key {child('$', key)}: the app manifest's counts, and not the fileset manifest's")
