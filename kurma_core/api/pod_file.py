"""Reads pod files: one pod, or several below ``pods``. Relative paths in one are relative to its directory.

A pod of a file has the form of :class:`kurma_core.appc.template.PodTemplate`, and besides, its apps may name files
of environment variables.
"""

from __future__ import annotations

import os

from kurma_core.errors import ConfigError, HostError, ManifestError, UsageError
from kurma_core.schema import ascii_text, describe, writable
from kurma_core.value import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kurma_core.api.pods import PodRequest
    from kurma_core.appc.manifest_reader import Warn

    Json = Any

#: The keys of a file of several pods.
PODS, PROJECT = "pods", "project"
#: The key of an app with files of environment variables.
FILES = "environmentFiles"


@frozen
class PodFile:
    """The pods of a file.

    :param pods: each in the form that :meth:`~kurma_core.appc.template.PodTemplate.parse` reads.
    :param project: name of the file's pods as a whole; None: the file gives none.
    """

    pods: tuple[dict[str, Json], ...]
    project: str | None = None


def read(file: str, option: str = "", warn: Warn | None = None) -> PodFile:
    """Reads a pod file.

    :param file: its path; ``-`` is standard input: relative paths in it are relative to the working directory.
    :param option: that names the file.
    :param warn: called with one line for each deviation of an early document.
    :raises UsageError: the file cannot be read, and an option names it; or it holds no pod.
    :raises ConfigError: it cannot be read, or is neither JSON nor YAML. :raises ManifestError: it is malformed.
    """
    return pods_of(read_value(file, option), file, warn)


def pods_of(value: Json, file: str, warn: Warn | None = None) -> PodFile:
    """The pods of a value that :func:`read_value` has read. See :func:`read`."""
    from kurma_core.appc.manifest_reader import Reader, refuse_unknown
    from kurma_core.appc.types import ac_name
    from kurma_core.named_files import naming

    if is_early(value):
        from kurma_core.appc.early_pod import convert_pod

        return PodFile((convert_pod(value, warn=warn).to_json(),))
    directory = os.getcwd() if file == "-" else os.path.realpath(os.path.dirname(file) or ".")
    name = "standard input" if file == "-" else file
    if not (isinstance(value, dict) and PODS in value):
        _check(value, name)
        return PodFile((_located(value, directory, name),))
    with naming(name):
        reader = Reader(value, "$", refuse_unknown)
        pods = [pod for pod, _ in reader.elements(PODS)]
        project = reader.optional(PROJECT, ac_name)
        reader.extra()
    for index, pod in enumerate(pods):
        _check(pod, f"{name}: $.{PODS}[{index}]")
    return PodFile(tuple(_located(pod, directory, name) for pod in pods), project)


def only_pod(value: Json, file: str, command: str, warn: Warn | None = None) -> dict[str, Json]:
    """The pod of such a value, for a command that takes one. See :func:`read`.

    :param command: its name.
    :raises UsageError: the file has several pods, or none.
    """
    pods = pods_of(value, file, warn).pods
    if len(pods) != 1:
        name = "standard input" if file == "-" else file
        raise UsageError(
            f"{name} has {len(pods)} pods, and {command} takes one", hint=f"run all of them: kurma up {file}"
        )
    return pods[0]


def request_of(pod: dict[str, Json], file: str, warn: Warn, **settings: Any) -> PodRequest:
    """The request for a pod of a file.

    :param pod: in the form of :class:`PodFile`.
    :param file: its path, for errors; ``-`` is standard input.
    :param warn: called with one line for each unknown key of a manifest, which the App Container specification
        keeps. An unknown key of a pod without ``acKind`` is an error.
    :param settings: further fields of the request.
    :raises ManifestError: the pod is malformed.
    """
    from kurma_core.api.pods import PodRequest
    from kurma_core.appc.template import PodTemplate
    from kurma_core.named_files import naming

    with naming("standard input" if file == "-" else file):
        template = PodTemplate.of_file(pod, warn)
    return PodRequest(template, uuid=template.uuid, **settings)


def with_variables(pod: Mapping[str, Json], name: str) -> dict[str, Json]:
    """A copy of the pod with the variables of its files.

    :param pod: a pod in which paths of files are absolute. :param name: what it is called in errors.
    :raises UsageError: a file cannot be read, or contains a line of another form.
    """
    found: dict[str, Json] = _copied(pod)
    for index, app in enumerate(found["apps"]):
        if FILES in app:
            _read_variables(app, "/", f"{name}: $.apps[{index}].{FILES}")
    return found


def digest(pod: Mapping[str, Json]) -> str:
    """A digest of a pod in a file: another one means that the pod has changed."""
    import hashlib
    import json

    return hashlib.sha256(json.dumps(pod, sort_keys=True).encode()).hexdigest()


def marked(pod: Mapping[str, Json], marks: Mapping[str, str]) -> dict[str, Json]:
    """The pod with further annotations. :param marks: their values by name."""
    own = pod.get("annotations") or []
    if not isinstance(own, list):
        return dict(pod)  # the reader of templates reports it
    return {**pod, "annotations": [*own, *({"name": name, "value": value} for name, value in marks.items())]}


def read_value(file: str, option: str = "") -> Any:
    """The value in a pod file, JSON or YAML; ``-`` is standard input. An early document must be JSON.

    :param option: that names the file.
    :raises UsageError: it cannot be read, and an option names it. :raises KurmaError: it cannot be read, or is
        neither.
    """
    from kurma_core.json_text import read_document
    from kurma_core.named_files import called, content, naming

    if "\0" in file or not writable(file):
        raise UsageError(f"{ascii_text(file)}: no file can have this path")
    if file.endswith(".json"):
        data = content(file, option=option, endless=True)
        with naming(file):
            return read_document(data, file)
    from kurma_core.config.files import text_of, value_of

    path = "/dev/stdin" if file == "-" else file
    try:
        text = text_of(path, pipe=True)
    except ConfigError as error:
        if option and isinstance(error.__cause__, HostError):
            raise UsageError(f"{option}: {error.message}", path=path) from None
        raise
    name = called(path)
    value = value_of(name, text)
    return read_document(text, name) if is_early(value) else value


def is_early(document: Any) -> bool:
    """Whether a pod file holds an early document; another one imports nothing for that."""
    if not isinstance(document, dict) or document.get("acKind") in (None, "PodManifest"):
        return False
    from kurma_core.appc.early_image import is_early_pod

    return is_early_pod(document)


def _check(pod: Json, name: str) -> None:
    """:raises ManifestError: it is no object. :raises UsageError: it does not have the outline of a pod."""
    from kurma_core.named_files import naming

    if not isinstance(pod, dict):
        with naming(name):
            raise ManifestError("$", "an object", describe(pod))
    apps = pod.get("apps")
    if not isinstance(apps, list):
        raise UsageError(f"{name} is not a pod: it has no list of apps")
    if not all(isinstance(app, dict) and isinstance(app.get("name"), str) for app in apps):
        raise UsageError(f"{name} is not a pod: an app has no name")


# --- paths -------------------------------------------------------------------------------------------------------


def _located(pod: dict[str, Json], directory: str, name: str) -> dict[str, Json]:
    """A copy of the pod with absolute paths, and with the variables of its files. The reader of templates reports
    whatever has another form.

    :param directory: of the file. :param name: of the file, for errors.
    """
    found: dict[str, Json] = _copied(pod)  # an anchor's value may be in several pods, and callers change them
    volumes = found.get("volumes")
    for volume in volumes if isinstance(volumes, list) else ():
        _locate_volume(volume, directory)
    for index, app in enumerate(found["apps"]):
        _locate(app, "image", directory)
        mounts = app.get("mounts")
        for mount in mounts if isinstance(mounts, list) else ():
            if isinstance(mount, dict):
                _locate_volume(mount.get("appVolume"), directory)
        if FILES in app:
            _read_variables(app, directory, f"{name}: $.apps[{index}].{FILES}")
    return found


def _copied(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    return [_copied(one) for one in value] if isinstance(value, list) else value


def _locate_volume(volume: Json, directory: str) -> None:
    if isinstance(volume, dict):
        for key in ("source", "kurma.io/image"):
            _locate(volume, key, directory)


def _locate(value: dict[str, Json], key: str, directory: str) -> None:
    """Makes a path that begins with ``./`` or ``../`` absolute. Other texts may be names."""
    path = value.get(key)
    if isinstance(path, str) and (path in (".", "..") or path.startswith(("./", "../"))):
        value[key] = os.path.normpath(f"{directory}/{path}")


def _read_variables(app: dict[str, Json], directory: str, place: str) -> None:
    """Adds the variables of the app's files to its ``environment``, which counts more."""
    files = app.pop(FILES)
    if files is None:
        return
    if not isinstance(files, list) or not all(isinstance(file, str) and file for file in files):
        raise ManifestError(place, "a list of paths", describe(files))
    found: dict[str, str] = {}
    for file in files:
        found.update(environment_file(os.path.join(directory, file), place))
    own = app.get("environment")
    if own is None or isinstance(own, list):
        named = {one.get("name") for one in own or () if isinstance(one, dict)}
        added = [{"name": name, "value": value} for name, value in found.items() if name not in named]
        app["environment"] = [*added, *(own or ())]


# --- variables ---------------------------------------------------------------------------------------------------


def environment(texts: tuple[str, ...], place: str = "--env") -> tuple[tuple[str, str], ...]:
    """Variables ``NAME=VALUE``, and ``NAME`` from the caller's environment, unless it is not set there.

    :param place: of the texts, for errors: an option, or a line of a file.
    :raises UsageError: a name that manifests do not allow.
    """
    found = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not name:
            raise UsageError(f"{place}: expected NAME=VALUE or NAME, found {text!r}")
        _check_variable(name, place)
        if equals:
            found.append((name, value))
        elif name in os.environ:
            found.append((name, os.environ[name]))
    return tuple(found)


def environment_file(path: str, place: str = "--env-file") -> tuple[tuple[str, str], ...]:
    """Lines ``NAME=VALUE`` or ``NAME``, taken literally, without quotes; empty lines and lines that begin with
    ``#`` are skipped.

    :param place: that names the file, for errors.
    :raises UsageError: it cannot be read, or contains a line of another form.
    """
    from kurma_core.named_files import content

    try:
        lines = content(path, option=place, endless=True).decode().split("\n")
    except UnicodeDecodeError:
        raise UsageError(f"{place}: {path} is not UTF-8") from None
    found: list[tuple[str, str]] = []
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            found += environment((line.rstrip("\r"),), f"{place}: {path}, line {number}")
    return tuple(found)


def _check_variable(name: str, place: str) -> None:
    from kurma_core.appc.types import environment_name

    try:
        environment_name(name, place)
    except ManifestError:
        hint = "a letter or _, then letters, digits and any of _.-"
        raise UsageError(f"{place}: {name!r} cannot be a variable's name", hint=hint) from None
