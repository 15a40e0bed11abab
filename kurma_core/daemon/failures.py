"""Errors that no operation expects, as a client is told of them."""

from __future__ import annotations

import logging

from kurma_core import errors
from kurma_core.shortage import shortage

_LOG = logging.getLogger("kurmad")


def internal(error: Exception) -> errors.KurmaError:
    """Makes the error to tell of one that no operation expects: the host's, or a mistake of Kurma or a plugin."""
    known = shortage(error)
    if known is not None:
        return known
    if isinstance(error, OSError):
        return errors.HostError(f"{error.strerror or error}: {error.filename or ''}".removesuffix(": "))
    return errors.KurmaError(
        f"internal error: {type(error).__name__}: {' '.join(str(error).split())}",
        hint="this is a mistake in Kurma or a plugin; the daemon's log shows where",
    )


def logged(error: Exception, method: str, path: str) -> errors.KurmaError:
    """As :func:`internal`, and puts it into the log: a mistake with its trace, an error of the host in one line.

    Called while the error is handled.
    """
    found = internal(error)
    if isinstance(found, errors.HostError):
        _LOG.error("%s %s failed: %s", method, path, found.message)
        _LOG.debug("where it failed", exc_info=True)
    else:
        _LOG.exception("%s %s failed", method, path)
    return found


__all__ = ["internal", "logged"]
