"""Public: converts a Docker or OCI image configuration to an App Container image manifest.

A fetcher of another distribution may depend on kurma-fetch-docker and use this module: :func:`image_manifest` and
:func:`diff_ids` make its ``RemoteLayers``, and its hook ``complete_manifest`` calls :func:`complete_manifest`. The
hook ``conventions`` is answered by this distribution's fetchers, for they declare the annotations.

The conversion is deterministic: the same configuration under the same name gives the same manifest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kurma_core.appc import types
from kurma_core.appc.image import App, ImageManifest, MountPoint, NameValue, Port
from kurma_core.errors import FetchError, FetchNotFoundError, ImageError, ManifestError
from kurma_core.hookspecs.fetcher import FetchRequest, ImageFiles
from kurma_core.models.health import HealthCheck
from kurma_core.models.image import Conventions
from kurma_core.value import frozen, replace
from kurma_fetch_docker.oci_documents import appc_arch, platform_text, told

__all__ = ("ImageOrigin", "complete_manifest", "conventions", "diff_ids", "image_manifest")

Json = Any

#: Prefixes of annotations: docker2aci's, and our own for values that have no key in an image manifest.
DOCKER = "appc.io/docker"
OURS = "kurma.io/docker"
#: Further architectures that a processor runs, for images that exist for one platform only.
_ALSO_RUN = {"amd64": ("i386",), "aarch64": ("armv7l", "armv6l"), "armv7l": ("armv6l",)}
#: Keys of the configuration that are converted, or have no meaning here.
_PLACED = frozenset(
    (
        *("Entrypoint", "Cmd", "User", "Env", "WorkingDir", "Volumes", "ExposedPorts", "Labels"),
        *("Image", "Hostname", "Domainname", "AttachStdin", "AttachStdout", "AttachStderr"),
        *("Tty", "OpenStdin", "StdinOnce", "ArgsEscaped", "NetworkDisabled", "MacAddress"),
    )
)


@frozen
class ImageOrigin:
    """The origin of an image, for its name and annotations.

    :param registry: host[:port]; "" for an image from a file.
    :param manifest_digest: ``sha256:…`` of the image's manifest in the registry; "": unknown.
    :param config_digest: ``sha256:…`` of its configuration; "": unknown.
    """

    registry: str
    repository: str
    tag: str | None
    manifest_digest: str = ""
    config_digest: str = ""


def image_manifest(config: Mapping[str, Json], origin: ImageOrigin, request: FetchRequest) -> ImageManifest:
    """Converts an image configuration to an image manifest.

    If the configuration names a user and no group, ``app.group`` is empty: the user's own groups are in the
    image's files. :func:`complete_manifest` fills it in.

    :param config: the JSON document, checked against its digest by the caller.
    :raises FetchError: the configuration is malformed, or for a platform without an App Container name.
    """
    where = "/".join(part for part in (origin.registry, origin.repository) if part)
    section = config.get("config") or {}
    if not isinstance(section, dict):
        raise FetchError(f"{where}: the image's configuration is malformed")
    try:
        document = ImageManifest(
            name=types.sanitize_identifier(where),
            labels=_labels(config, origin, request, where),
            app=_app(section, where),
            annotations=_annotations(config, section, origin),
        )
        # Checks the manifest by parsing it, with a placeholder for an empty group.
        probe = document.to_json()
        probe["app"]["group"] = probe["app"]["group"] or "0"
        ImageManifest.parse(probe)
    except ManifestError as error:
        raise FetchError(f"{where}: cannot convert the image's configuration: {error.message}") from None
    return document


def diff_ids(config: Mapping[str, Json], where: str) -> tuple[str, ...]:
    """Digests of the uncompressed layers, lowest first. :raises FetchError: they are missing."""
    rootfs = config.get("rootfs")
    found = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    if not isinstance(found, list) or not all(
        isinstance(item, str) and item.startswith("sha256:") for item in found
    ):
        raise FetchError(f"{where}: the image's configuration does not list its layers")
    return tuple(found)


def complete_manifest(manifest: ImageManifest, files: ImageFiles) -> ImageManifest:
    """Fills in an empty ``app.group``, and the user's supplementary groups, by the image's ``/etc/passwd`` and
    ``/etc/group``, as Docker and podman do when a container starts."""
    app = manifest.app
    if app is None or app.group:
        return manifest
    group, gids = files.groups_of(app.user)
    return replace(manifest, app=replace(app, group=group, supplementary_gids=gids))


def conventions(annotations: Mapping[str, str]) -> Conventions:
    """The conventions that a converted image relies on, by docker2aci's annotations or this module's.

    :raises ImageError: Entrypoint or Cmd is not a list of words; or Healthcheck is malformed.
    """
    entrypoint, cmd = (_command(annotations, which) for which in ("entrypoint", "cmd"))
    return Conventions(
        entrypoint=None if entrypoint is None and cmd is None else entrypoint or (),
        stop_signal=_signal(annotations.get(f"{OURS}/stopsignal", "")),
        make_working_directory=True,
        replace_files=True,
        fewer_capabilities=True,
        health_check=_health_check(annotations),
    )


def _health_check(annotations: Mapping[str, str]) -> HealthCheck | None:
    """``Healthcheck``; None: the image has none."""
    text = annotations.get(f"{OURS}/healthcheck")
    if text is None:
        return None
    from kurma_core.json_text import loads
    from kurma_fetch_docker.health_check import health_check

    try:
        return health_check(loads(text), loads(annotations.get(f"{OURS}/shell", "null")))
    except ValueError:
        raise ImageError(f"annotation {OURS}/healthcheck or {OURS}/shell is malformed: it is not JSON") from None


def _command(annotations: Mapping[str, str], which: str) -> tuple[str, ...] | None:
    """Entrypoint or Cmd, a JSON list or words as a shell reads them; None: the image has none."""
    text = annotations.get(f"{DOCKER}/{which}")
    if text is None:
        return None
    from kurma_core.json_text import loads

    try:
        words = loads(text)
    except ValueError:
        import shlex

        return tuple(shlex.split(text))
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ImageError(f"annotation {DOCKER}/{which} is not a list of words: {text}")
    return tuple(words)


def _signal(text: str) -> int:
    """The number of ``StopSignal``, else of SIGTERM. A name that this machine does not know is ignored: it came
    with the image, so the user cannot correct it."""
    import signal

    word = text.upper()
    if word.isascii() and word.isdigit() and 1 <= int(word) < signal.NSIG:
        return int(word)
    name, _, offset = (word if word.startswith("SIG") else f"SIG{word}").partition("+")
    if name == "SIGRTMIN" and offset.isascii() and offset.isdigit():
        return min(signal.SIGRTMIN + int(offset), signal.SIGRTMAX)
    return int(signal.Signals.__members__.get(name, signal.SIGTERM))


def _labels(
    config: Mapping[str, Json], origin: ImageOrigin, request: FetchRequest, where: str
) -> tuple[NameValue, ...]:
    system = str(config.get("os") or request.os)
    architecture = str(config.get("architecture") or "")
    arch = appc_arch(architecture, str(config.get("variant") or "")) if architecture else request.arch
    if system != request.os:
        raise FetchError(f"{where}: the image is for {told(system)}, not for {request.os}")
    made = f"{told(system)}/{told(architecture)}"
    if arch is None:
        raise FetchError(f"{where}: the image is for {made}, which has no App Container name")
    if arch != request.arch and arch not in _ALSO_RUN.get(request.arch, ()):
        raise FetchNotFoundError(
            f"{where}: the image is not made for {request.os}/{platform_text(request.arch)}",
            hint=f"it is made for {made}",
        )
    found = [("version", origin.tag), ("os", system), ("arch", arch)]
    return tuple(NameValue(name, value) for name, value in found if value)


def _app(section: Mapping[str, Json], where: str) -> App:
    entrypoint, cmd = _words(section, "Entrypoint", where), _words(section, "Cmd", where)
    user, colon, group = _user(section), *str(section.get("User") or "").partition(":")[1:]
    directory = str(section.get("WorkingDir") or "")
    return App(
        exec=(*entrypoint, *cmd),
        user=user,
        group=group if colon and group else "",
        working_directory=_absolute(directory) if directory else None,
        environment=_environment(section, where),
        mount_points=_mount_points(section, where),
        ports=_ports(section, where),
        user_labels=_texts(section, "Labels", where),
    )


def _user(section: Mapping[str, Json]) -> str:
    """The image's user, a name or a number."""
    return str(section.get("User") or "").partition(":")[0] or "0"


def _environment(section: Mapping[str, Json], where: str) -> tuple[NameValue, ...]:
    """Converts the environment. If a variable is set twice, the last counts; a variable whose name a manifest
    cannot hold is left out (an annotation keeps it)."""
    values: dict[str, str] = {}
    for line in _words(section, "Env", where):
        name, _, value = line.partition("=")
        if types.fits(types.environment_name, name):
            values[name] = value
    return tuple(NameValue(name, value) for name, value in values.items())


def _mount_points(section: Mapping[str, Json], where: str) -> tuple[MountPoint, ...]:
    names: set[str] = set()
    points = []
    for path in sorted({_absolute(path) for path in _keys(section, "Volumes", where)}):
        try:
            name = _unique(types.sanitize_name(f"volume-{path.strip('/')}"), names)
        except ManifestError:
            continue
        points.append(MountPoint(name, path))
    return tuple(points)


def _ports(section: Mapping[str, Json], where: str) -> tuple[Port, ...]:
    ports = []
    for text in _keys(section, "ExposedPorts", where):
        span, _, protocol = text.partition("/")
        first, dash, last = span.partition("-")
        if not _is_port(first) or (dash and not _is_port(last)):
            raise FetchError(f"{where}: the image exposes {text!r}, which is not a port")
        count = int(last) - int(first) + 1 if dash else 1
        protocol = protocol or "tcp"
        ports.append(Port(types.sanitize_name(f"{span}-{protocol}"), protocol, int(first), max(count, 1)))
    return tuple(sorted(ports, key=lambda port: (port.port, port.protocol, port.count)))


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5


def _annotations(
    config: Mapping[str, Json], section: Mapping[str, Json], origin: ImageOrigin
) -> tuple[NameValue, ...]:
    found: dict[str, str] = {}
    created = str(config.get("created") or "")
    if created:
        found["created" if types.fits(types.timestamp, created) else f"{OURS}/created"] = created
    if config.get("author"):
        found["authors"] = str(config["author"])
    found |= {
        f"{DOCKER}/registryurl": origin.registry,
        f"{DOCKER}/repository": origin.repository,
        f"{DOCKER}/imageid": origin.config_digest,
        f"{DOCKER}/manifesthash": origin.manifest_digest,
        f"{DOCKER}/tag": origin.tag or "",
    }
    if _user(section) == "0" and section.get("User"):
        # Else it would be like an image without a user.
        found[f"{OURS}/user"] = "0"
    for key in ("Entrypoint", "Cmd"):
        if section.get(key):
            found[f"{DOCKER}/{key.lower()}"] = _dump(section[key])
    odd = [
        line
        for line in _words(section, "Env", origin.repository)
        if not types.fits(types.environment_name, line.partition("=")[0])
    ]
    if odd:
        found[f"{OURS}/env"] = _dump(odd)
    for key, value in sorted(section.items()):
        if key not in _PLACED and value not in (None, "", [], {}, False):
            found[f"{OURS}/{types.sanitize_identifier(key)}"] = value if isinstance(value, str) else _dump(value)
    return tuple(NameValue(name, value) for name, value in found.items() if value)


def _words(section: Mapping[str, Json], key: str, where: str) -> tuple[str, ...]:
    value = section.get(key) or []
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise FetchError(f"{where}: the image's configuration is malformed: {key} is not a list of texts")
    return tuple(value)


def _texts(section: Mapping[str, Json], key: str, where: str) -> dict[str, str]:
    value = section.get(key) or {}
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise FetchError(f"{where}: the image's configuration is malformed: {key} does not map to texts")
    return dict(sorted(value.items()))


def _keys(section: Mapping[str, Json], key: str, where: str) -> tuple[str, ...]:
    value = section.get(key) or {}
    if not isinstance(value, dict):
        raise FetchError(f"{where}: the image's configuration is malformed: {key} is not an object")
    return tuple(value)


def _absolute(path: str) -> str:
    import posixpath

    return posixpath.normpath("/" + path.lstrip("/"))


def _unique(name: str, taken: set[str]) -> str:
    number, result = 2, name
    while result in taken:
        number, result = number + 1, f"{name}-{number}"
    taken.add(result)
    return result


def _dump(value: Json) -> str:
    import json

    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
