"""Converts an App Container image manifest to the configuration of an OCI image.

OCI Image Format Specification, Image Configuration. It is the reverse of :mod:`kurma_fetch_docker.conversion`: the
same manifest and layers give the same configuration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kurma_core.errors import UsageError
from kurma_core.json_text import loads
from kurma_core.value import replace
from kurma_fetch_docker.conversion import DOCKER, OURS
from kurma_fetch_docker.oci_documents import platform_of
from kurma_fetch_docker.reference import Reference, parse_reference

if TYPE_CHECKING:
    from kurma_core.appc.image import App, ImageManifest

Json = Any

#: Keys of a configuration that :mod:`kurma_fetch_docker.conversion` keeps in annotations, by their names there;
#: whether the value is text, and not JSON.
_KEPT = {
    "stopsignal": ("StopSignal", True),
    "stoptimeout": ("StopTimeout", False),
    "healthcheck": ("Healthcheck", False),
    "onbuild": ("OnBuild", False),
    "shell": ("Shell", False),
}


def configuration(manifest: ImageManifest, diff_ids: Sequence[str], arch: str) -> dict[str, Json]:
    """Makes the configuration of an image.

    :param diff_ids: digests of the uncompressed layers, lowest first.
    :param arch: the App Container architecture of an image whose labels name none.
    """
    notes = {note.name: note.value for note in manifest.annotations}
    created = notes.get("created") or notes.get(f"{OURS}/created")
    found: dict[str, Json] = {
        "created": created,
        "author": notes.get("authors"),
        **platform_of(manifest.label("arch") or arch),
        "os": manifest.label("os") or "linux",
        "config": _section(manifest.app, notes),
        "rootfs": {"type": "layers", "diff_ids": list(diff_ids)},
    }
    return {key: value for key, value in found.items() if value is not None}


def left_out(manifest: ImageManifest) -> tuple[str, ...]:
    """Parts of the manifest that a configuration cannot hold, in words."""
    app = manifest.app
    if app is None:
        return ()
    parts = {
        "isolators": app.isolators,
        "event handlers": app.event_handlers,
        "sockets to be opened for the app": any(port.socket_activated for port in app.ports),
    }
    return tuple(name for name, value in parts.items() if value)


def own_name(manifest: ImageManifest) -> Reference | None:
    """The image's name as registries write it; None: it cannot be written so. The host of a name without one is
    ``localhost``."""
    notes = {note.name: note.value for note in manifest.annotations}
    name = notes.get(f"{DOCKER}/repository", "")
    if name:
        name = f"{notes.get(f'{DOCKER}/registryurl') or 'localhost'}/{name}"
    else:
        first, slash, _ = manifest.name.partition("/")
        name = manifest.name if slash and "." in first else f"localhost/{manifest.name}"
    tag = notes.get(f"{DOCKER}/tag") or manifest.version
    try:
        found = parse_reference(name)
    except UsageError:
        return None
    try:
        return parse_reference(f"{name}:{tag}") if tag else found
    except UsageError:  # a version may hold what a tag cannot
        return replace(found, tag="latest")


def _section(app: App | None, notes: Mapping[str, str]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for key, (name, text) in _KEPT.items():
        value = notes.get(f"{OURS}/{key}")
        if value is not None:
            found[name] = value if text else _json(value)
    if app is None:
        return found
    entrypoint, cmd = _command(app, notes)
    found |= {
        "Entrypoint": list(entrypoint),
        "Cmd": list(cmd),
        "User": _user(app, notes),
        "Env": list(_environment(app, notes)),
        "WorkingDir": app.working_directory,
        "Volumes": {point.path: {} for point in app.mount_points},
        "ExposedPorts": {
            f"{_span(port.port, port.count)}/{port.protocol}": {} for port in app.ports if port.protocol
        },
        "Labels": dict(app.user_labels),
    }
    return {key: value for key, value in found.items() if value}


def _command(app: App, notes: Mapping[str, str]) -> tuple[Sequence[str], Sequence[str]]:
    """Entrypoint and Cmd. The command of an image that came from no registry is all Entrypoint, since arguments
    follow it."""
    found = [_words(notes.get(f"{DOCKER}/{key}")) for key in ("entrypoint", "cmd")]
    if any(found) and (*found[0], *found[1]) == tuple(app.exec):
        return found[0], found[1]
    return app.exec, ()


def _user(app: App, notes: Mapping[str, str]) -> str:
    """``USER[:GROUP]``; without a group the image's own files name the groups."""
    if (app.user, app.group) == ("0", "0"):
        return notes.get(f"{OURS}/user", "")
    if app.supplementary_gids or not app.group or app.user.startswith("/"):
        return app.user
    return f"{app.user}:{app.group}"


def _environment(app: App, notes: Mapping[str, str]) -> Iterator[str]:
    for pair in app.environment:
        yield f"{pair.name}={pair.value}"
    yield from _words(notes.get(f"{OURS}/env"))


def _span(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first}-{first + count - 1}"


def _words(text: str | None) -> tuple[str, ...]:
    value = None if text is None else _json(text)
    return tuple(value) if isinstance(value, list) and all(isinstance(word, str) for word in value) else ()


def _json(text: str) -> Json:
    """The value; None: the text is not JSON."""
    try:
        return loads(text)
    except ValueError:
        return None
