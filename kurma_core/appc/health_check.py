"""Reads the health check of an app: from a pod file, or from its annotation and its image."""

from __future__ import annotations

from kurma_core.appc.manifest_reader import Reader, fitted
from kurma_core.errors import ManifestError
from kurma_core.models.health import DISABLED, HEALTH_CHECK, WAYS, HealthCheck
from kurma_core.schema import Object, describe, members

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.appc.manifest_reader import Json, Warn

_DURATIONS = ("interval", "timeout", "startPeriod", "startInterval")
#: The shell that runs a command that is one text.
_SHELL = ("/bin/sh", "-c")
_SHAPE = Object(HealthCheck)


def annotation_of(value: Json, path: str, warn: Warn | None) -> str:
    """The annotation for the key ``healthCheck`` of a pod file.

    :param value: false, or an object in which a duration may be a text such as ``30s``, and the command may be one
        text, for a shell.
    :param path: of the value, for errors.
    :raises ManifestError: it is neither, has another key, or says several ways to check the app.
    """
    if value is False:
        return DISABLED
    if not isinstance(value, dict):
        raise ManifestError(path, "false, or an object", describe(value))
    reader = Reader(value, path, warn)
    keys = [str(one.key) for one in members(HealthCheck)]
    said = {key: _plain(key, reader.take(key), reader.at(key)) for key in keys}
    _SHAPE.find_unknown(value, path, reader.warn_unknown)
    check = _checked(said, path)
    if any("\0" in word for word in check.command or ()):
        raise ManifestError(f"{path}.command", "text without NUL", describe(value["command"]))
    return written(check)


def written(check: HealthCheck) -> str:
    """The value of the annotation."""
    from json import dumps  # few apps have one

    return dumps(check.to_said(), separators=(",", ":"), sort_keys=True)


def of_app(app: str, text: str | None, image: HealthCheck | None) -> HealthCheck | None:
    """The health check of an app of a pod, with all defaults; None: it has none.

    :param app: its name. :param text: its annotation. :param image: the image's health check.
    :raises ManifestError: the annotation is malformed, or neither it nor the image says how to check the app.
    """
    if text is None:
        # An image can declare a command alone.
        return None if image is None or not image.command else image.completed()
    if text == DISABLED:
        return None
    path = f"app {app}: annotation {HEALTH_CHECK}"
    from kurma_core.json_text import loads

    try:
        value = loads(text)
    except ValueError:
        raise ManifestError(path, f"an object, or {DISABLED}", describe(text)) from None
    check = _checked(value, path).over(image or HealthCheck())
    if not check.ways or (check.command is not None and not (check.command and check.command[0])):
        raise ManifestError(
            f"app {app}: its health check",
            "a command, http or tcp",
            "none: the image has no health check",
            hint="give --health-cmd, --health-http or --health-tcp, or healthCheck in the pod file",
        )
    return check.completed()


def _checked(value: Json, path: str) -> HealthCheck:
    found: HealthCheck = fitted(value, _SHAPE, path)
    if len(found.ways) > 1:
        raise ManifestError(path, f"one of {', '.join(WAYS)}", " and ".join(found.ways))
    if found.http is not None and sum(name.lower() == "host" for name, _ in found.http.headers) > 1:
        raise ManifestError(f"{path}.http.headers", "one header Host", "several")
    return found


def _plain(key: str, value: Json, path: str) -> Json:
    if isinstance(value, str) and key == "command":
        if not value.strip():
            # The shell would end with exit code 0: healthy, whatever the app does.
            raise ManifestError(path, "a command", describe(value))
        return [*_SHELL, value]
    if isinstance(value, str) and key in _DURATIONS:
        return seconds(value, path)
    return value


def seconds(text: str, path: str) -> float:
    """Seconds of a duration such as ``30s`` or ``1m30s``. :raises ManifestError: it is none."""
    from kurma_core.formats.timestamps import duration

    try:
        return duration(text) / 1e9
    except ValueError:
        raise ManifestError(path, 'seconds, or a duration such as "30s"', describe(text)) from None
