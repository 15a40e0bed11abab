"""Values from the JSON in which the daemon says them; errors, raised again as what they were."""

from __future__ import annotations

from kurma_core import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kurma_core.models.pod import PodRecord
    from kurma_core.models.summary import PodSummary

    Json = Any


def failure(value: Mapping[str, Json]) -> BaseException:
    """As :func:`error`; what was given up on the way is no error."""
    return errors.Cancelled(value["message"]) if value["kind"] == "Cancelled" else error(value)


def error(value: Mapping[str, Json]) -> errors.KurmaError:
    """The error that the daemon had; one that this Kurma does not know is a plain :class:`KurmaError`.

    :param value: what stands under ``error``.
    """
    kind = getattr(errors, value["kind"], errors.KurmaError)
    if not (isinstance(kind, type) and issubclass(kind, errors.KurmaError)):
        kind = errors.KurmaError
    found: errors.KurmaError = kind.__new__(kind)
    # Some kinds put their message together from parts of it.
    errors.KurmaError.__init__(found, value["message"], hint=value.get("hint"), **value.get("data", {}))
    found.exit_code = value.get("exitCode", found.exit_code)
    return found


def pod(value: Mapping[str, Json]) -> PodRecord:
    from kurma_core.models.pod import PodRecord

    return PodRecord.from_json(value)


def summary(value: Mapping[str, Json]) -> PodSummary:
    from kurma_core.models.summary import PodSummary  # a list needs no more of the models

    return PodSummary.from_json(value)


__all__ = ["error", "failure", "pod", "summary"]
