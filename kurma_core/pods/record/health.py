"""``health.json``: the health of a pod's apps, by the checks of their last executions.

It is apart from ``state.json``, since checks are many. Each process that has run a check writes it, under the
pod's op lock. A power cut may lose the newest results.
"""

from __future__ import annotations

from kurma_core.errors import KurmaError
from kurma_core.json_text import loads
from kurma_core.linux.files import replace_file
from kurma_core.models.health import HEALTHY, STARTING, UNHEALTHY, AppHealth
from kurma_core.pods.record.state import numbered
from kurma_core.schema import Count, JsonValue, SchemaError
from kurma_core.value import field, frozen, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from kurma_core.models.pod import AppStatus
    from kurma_core.pods.record.document import PodDocument
    from kurma_core.pods.record.pod_directory import PodDirectory
    from kurma_core.pods.record.state import PodState

FILE = "health.json"
_VERSION = 1


@frozen
class HealthRecord(JsonValue):
    """:param instance: the execution of the app that was checked."""

    instance: Count
    health: AppHealth = field(inline=True)


def read(directory: PodDirectory) -> dict[str, HealthRecord]:
    """By app. Of a missing file, a damaged one, or one of a newer version: nothing, so that checks begin anew."""
    try:
        with open(directory.file(FILE), "rb") as file:
            value = loads(file.read(), own=True)
        if value["version"] != _VERSION:
            return {}
        return {app: HealthRecord.from_json(one) for app, one in value["apps"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, SchemaError):
        return {}


def write(directory: PodDirectory, records: Mapping[str, HealthRecord]) -> None:
    """The caller holds the op lock. :raises OSError: the file cannot be written."""
    from json import dumps

    value = {"version": _VERSION, "apps": {app: one.to_json() for app, one in records.items()}}
    replace_file(directory.file(FILE), f"{dumps(value)}\n".encode(errors="surrogateescape"))


def forget(directory: PodDirectory, app: str) -> None:
    """Forgets an app that was removed: an app of the same name begins anew. Repeatable, and never fails."""
    try:
        with directory.op_lock():
            known = read(directory)
            if known.pop(app, None) is not None:
                write(directory, known)
    except (OSError, KurmaError):
        return


def with_health(
    directory: PodDirectory, document: PodDocument, statuses: tuple[AppStatus, ...]
) -> tuple[AppStatus, ...]:
    """The statuses of a pod's apps with their health."""
    checked = document.health_checks
    if not checked:
        return statuses
    known = read(directory)
    return tuple(
        replace(one, health=_health(one, known.get(one.name))) if one.name in checked else one for one in statuses
    )


def _health(status: AppStatus, known: HealthRecord | None) -> AppHealth | None:
    if known is not None and known.instance == status.instance:
        return known.health
    # Its present execution was not checked yet.
    return AppHealth() if status.state == "running" else None


def word(directory: PodDirectory, document: PodDocument, state: PodState) -> str | None:
    """The health of a running pod: the worst of its running apps'; None: none of them has a health check."""
    if state.state != "running" or not document.health_checks:
        return None
    from kurma_core.staging.stager_status import read_status_file  # few pods have checks

    try:
        found = (read_status_file(directory.path) or ({}, ()))[0]
    except KurmaError:
        return None
    return worst(with_health(directory, document, tuple(numbered(state, one) for one in found.values())))


def worst(apps: tuple[AppStatus, ...]) -> str | None:
    """The worst health of the apps that run; None: none of them has a health check."""
    found = {one.health.status for one in apps if one.health is not None and one.state == "running"}
    return next((each for each in (UNHEALTHY, STARTING, HEALTHY) if each in found), None)
