"""Reads the health check of a Docker image's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kurma_core.errors import ImageError
from kurma_core.models.health import MOST_RETRIES, HealthCheck
from kurma_core.schema import SchemaError, describe

Json = Any

_DURATIONS = {
    "interval": "Interval",
    "timeout": "Timeout",
    "startPeriod": "StartPeriod",
    "startInterval": "StartInterval",
}
#: Seconds. The author of an image does not know the bounds of Kurma, and must not keep kurmad busy.
_SHORTEST, _LONGEST = 1.0, 604_800.0
_SHELL = ("/bin/sh", "-c")


def health_check(section: Json, shell: Json) -> HealthCheck | None:
    """The health check; None: the image has none.

    :param section: ``Healthcheck``: ``Test`` (``NONE``, ``CMD`` and words, or ``CMD-SHELL`` and one text),
        durations in nanoseconds, of which 0 means the default, and ``Retries``.
    :param shell: ``Shell``; None: ``/bin/sh -c``.
    :raises ImageError: it is malformed.
    """
    try:
        return _read(section, shell)
    except SchemaError as error:
        raise ImageError(f"the image's health check is malformed: {error}") from None


def _read(section: Json, shell: Json) -> HealthCheck | None:
    if not isinstance(section, Mapping):
        raise SchemaError("Healthcheck", "an object", describe(section))
    kind, *words = _words(section.get("Test"), "Healthcheck.Test") or ["NONE"]
    if kind not in ("NONE", "CMD", "CMD-SHELL"):
        raise SchemaError("Healthcheck.Test", "NONE, CMD or CMD-SHELL", describe(kind))
    if kind == "NONE" or not words:
        return None
    if kind == "CMD-SHELL":
        words = [*(_words(shell, "Shell") or _SHELL), words[0]]
    found: dict[str, Json] = {"command": words}
    for key, theirs in _DURATIONS.items():
        given = _count(section, theirs)
        if given:
            found[key] = min(max(given / 1e9, _SHORTEST), _LONGEST)
    retries = _count(section, "Retries")
    if retries:
        found["retries"] = min(retries, MOST_RETRIES)
    return HealthCheck.from_json(found, "Healthcheck")


def _words(value: Json, path: str) -> list[str]:
    found = value or []
    if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        raise SchemaError(path, "a list of texts", describe(value))
    return found


def _count(section: Mapping[str, Json], key: str) -> int:
    given = section.get(key) or 0
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise SchemaError(f"Healthcheck.{key}", "a whole number from 0", describe(given))
    return given
