"""HTTP status of each error of kurmad; errors of requests; errors that no operation expects."""

from __future__ import annotations

import logging

from kurma_core import errors
from kurma_core.errors import HostError, KurmaError

_LOG = logging.getLogger("kurmad")


class Gone(Exception):
    """The client has disconnected, or does not read or write in time."""


class LateError(KurmaError):
    """A request did not arrive in time."""


class TooLargeError(KurmaError):
    """A request's body is longer than it may be."""


#: The first kind that an error is of has its status; an error of no kind has 500.
_STATUS: tuple[tuple[type[errors.KurmaError], int], ...] = (
    (TooLargeError, 413),
    (LateError, 408),
    (errors.BusyError, 503),
    (errors.PodNotFoundError, 404),
    (errors.ImageNotFoundError, 404),
    (errors.AppNotFoundError, 404),
    (errors.PluginNotFoundError, 404),
    (errors.NetworkNotFoundError, 404),
    (errors.VolumeNotFoundError, 404),
    (errors.StagerNotFoundError, 404),
    (errors.FetchNotFoundError, 404),
    (errors.SecretNotFoundError, 404),
    (errors.UsageError, 400),
    (errors.ManifestError, 400),
    (errors.ArchiveError, 400),
    (errors.AmbiguousReferenceError, 400),
    (errors.ConfigError, 400),
    (errors.PodExistsError, 409),
    (errors.PodStateError, 409),
    (errors.SecretExistsError, 409),
    (errors.VolumeStateError, 409),
    (errors.PodEndedError, 409),
    (errors.CommandTimeoutError, 408),
    (errors.PowerError, 403),
    (errors.IsolatorError, 400),
    (errors.PrivilegeError, 403),
    (errors.TrustError, 403),
)


def status_of(error: KurmaError) -> int:
    """The HTTP status for an error."""
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return status
    return 500


def internal_error(error: Exception) -> KurmaError:
    """The error to send for an exception that no operation declares: an error of the host, or a mistake in Kurma
    or a plugin."""
    known = HostError.of_shortage(error)
    if known is not None:
        return known
    if isinstance(error, OSError):
        return HostError(f"{error.strerror or error}: {error.filename or ''}".removesuffix(": "))
    return KurmaError(
        f"internal error: {type(error).__name__}: {' '.join(str(error).split())}",
        hint="this is a mistake in Kurma or a plugin; the daemon's log shows where",
    )


def told_error(error: Exception, method: str, path: str) -> KurmaError:
    """The error to send to the client. Called while the exception is handled.

    Logs one that no operation declares: a mistake with its trace, an error of the host in one line.
    """
    if isinstance(error, KurmaError):
        return error
    found = internal_error(error)
    if isinstance(found, HostError):
        _LOG.error("%s %s failed: %s", method, path, found.message)
        _LOG.debug("where it failed", exc_info=True)
    else:
        _LOG.exception("%s %s failed", method, path)
    return found
