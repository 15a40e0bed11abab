"""Errors as JSON: kurmad tells a client what went wrong, and the client raises it again as what it was."""

from __future__ import annotations

from kurma_core import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Json = Any


def error_to_json(error: errors.KurmaError) -> dict[str, Json]:
    """Of its data, what is text, a number, or true or false."""
    plain = {name: value for name, value in error.data.items() if isinstance(value, str | int | float | bool)}
    return {
        "error": {
            "kind": type(error).__name__,
            "message": error.message,
            "hint": error.hint,
            "exitCode": error.exit_code,
            "data": plain,
        }
    }


def error_from_json(value: Mapping[str, Json]) -> errors.KurmaError:
    """The error of :func:`error_to_json`; of a kind that this Kurma does not know, a plain :class:`KurmaError`."""
    said = value["error"]
    kind = getattr(errors, said["kind"], errors.KurmaError)
    if not (isinstance(kind, type) and issubclass(kind, errors.KurmaError)):
        kind = errors.KurmaError
    found: errors.KurmaError = kind.__new__(kind)
    # Some kinds put their message together from parts of it.
    errors.KurmaError.__init__(found, said["message"], hint=said.get("hint"), **said.get("data", {}))
    found.exit_code = said.get("exitCode", found.exit_code)
    return found


__all__ = ["error_from_json", "error_to_json"]
