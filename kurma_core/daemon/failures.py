"""What went wrong, as a caller is told of it."""

from __future__ import annotations

from typing import Any

from kurma_core import errors

Json = Any


def error_json(error: errors.KurmaError) -> dict[str, Json]:
    """What went wrong, so that a client can raise it again (:func:`kurma_core.client.values.error`)."""
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


def internal(error: Exception) -> errors.KurmaError:
    """A mistake in Kurma or a plugin, as a caller is told of it."""
    if isinstance(error, OSError):
        return errors.HostError(f"{error.strerror or error}: {error.filename or ''}".removesuffix(": "))
    return errors.KurmaError(
        f"internal error: {type(error).__name__}: {' '.join(str(error).split())}",
        hint="this is a mistake in Kurma or a plugin; the daemon's log shows where",
    )


__all__ = ["error_json", "internal"]
