"""One tree of errors. Each carries data; its message says what failed, on what, and why, in lower case.

The command line prints ``kurma: MESSAGE`` on one line, then the hint (what to do) where there is one, and exits
with :attr:`KurmaError.exit_code` (124 killed at a time limit, 125 Kurma failed, 126 not executable, 127 not found,
137 killed with its pod, 2 usage).
"""

from __future__ import annotations


class KurmaError(Exception):
    """Base of everything that Kurma raises on purpose.

    :param message: the failed action, its object and the reason; one line, lower case, no full stop.
    :param hint: the reader's next step, if there is one.
    :param data: the facts as values (``pod=``, ``path=``, ``plugin=``, ``errno=`` …), kept in :attr:`data`.
    """

    exit_code = 125

    def __init__(self, message: str, *, hint: str | None = None, **data: object) -> None:
        # The kernel returns ENOSPC and EAGAIN for several limits: the module finds out which.
        if data.get("errno") in (28, 11):
            from kurma_core import shortage

            message, hint = shortage.explained(message, hint, data["errno"], data.get("path"))
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.data = data

    def __str__(self) -> str:
        return self.message

    def prefix(self, what: str) -> None:
        """Names the object of the failed action, for a caller that knows it: ``WHAT: MESSAGE``. :param what: the
        object."""
        self.message = f"{what}: {self.message}"


class Cancelled(BaseException):
    """The operation was cancelled (:mod:`kurma_core.cancellation`); its unfinished work is undone as the exception
    propagates. It is not a :class:`KurmaError`, so that no handler of failures retries or ignores it.

    :param message: why, for people.
    """

    def __init__(self, message: str = "given up") -> None:
        super().__init__(message)


class Interrupted(Cancelled):
    """A signal asked this process to end.

    :param number: the signal number.
    """

    def __init__(self, number: int) -> None:
        import signal

        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.number = number


class UsageError(KurmaError):
    """The caller's input is wrong: a bad option, a malformed locator. Exit code 2."""

    exit_code = 2


class PrivilegeError(KurmaError):
    """The operation needs root."""


class BusyError(KurmaError):
    """The daemon is at its limit of requests; try again in a moment."""


class HostError(KurmaError):
    """A system call failed. ``data`` has ``errno`` and, where there is one, ``path``."""

    @classmethod
    def of(
        cls, what: str, error: OSError, *, hint: str | None = None, beneath: str = "", **data: object
    ) -> HostError:
        """The error ``WHAT: FILE: REASON``, with the error's number and path.

        :param what: the beginning of the message, for example ``pod X: cannot read pod.json``.
        :param hint: the reader's next step.
        :param beneath: the directory that a relative path of ``error`` is in.
        """
        name = error.filename if isinstance(error.filename, str) else ""
        on = f"{name}: " if name else ""
        path = f"{beneath}/{name}" if beneath and name and not name.startswith("/") else name or None
        return cls(f"{what}: {on}{error.strerror or error}", hint=hint, errno=error.errno, path=path, **data)

    @staticmethod
    def of_shortage(error: BaseException) -> HostError | None:
        """Converts an error that a limit of the host caused (see :mod:`.shortage`); None for other errors."""
        from kurma_core import shortage

        found = shortage.described(error)
        return None if found is None else HostError(found[0], **found[1])


class DaemonGoneError(HostError):
    """The daemon did not answer: it does not run, or it died during the request. The request may still have been
    carried out: check before you repeat it (docs/reference/api.md)."""


class FormatVersionError(KurmaError):
    """A file on disk was written by a newer Kurma than this one."""


class ConfigError(KurmaError):
    """``kurma.yml`` is wrong. ``data``: ``file``, ``path`` (where in it)."""


class ManifestError(KurmaError):
    """A manifest breaks the specification.

    :param path: JSON path of the offending value, e.g. ``$.app.ports[0].port``.
    :param expected: the form that the specification requires.
    :param found: the value found.
    :param hint: the reader's next step, if there is one.
    """

    def __init__(self, path: str, expected: str, found: str, *, hint: str | None = None, **data: object) -> None:
        super().__init__(
            f"invalid manifest: {path}: expected {expected}, found {found}",
            hint=hint,
            path=path,
            expected=expected,
            found=found,
            **data,
        )


# --- plugins ---------------------------------------------------------------------------------------------------


class PluginError(KurmaError):
    """A plugin is broken or broke its contract. ``data``: ``plugin`` (``group/name``)."""


class PluginNotFoundError(PluginError):
    """No plugin of that kind and name is installed or enabled."""


class PluginCollisionError(PluginError):
    """Two distributions claim one name. The message names both."""


class PluginSkipped(Exception):
    """Raised by a plugin while it is loaded: this host lacks something it needs. The text names it."""


# --- images ----------------------------------------------------------------------------------------------------


class ImageError(KurmaError):
    """Base of errors about an image."""


class ImageNotFoundError(ImageError):
    """The store holds no such image."""


class AmbiguousReferenceError(KurmaError):
    """A prefix or name fits several things; ``data`` has ``matches``."""


class ArchiveError(ImageError):
    """An archive cannot be read: not an ACI, truncated, corrupt."""


class DecryptionError(ArchiveError):
    """An encrypted archive cannot be opened. ``data``: ``reason``: ``passphrase`` (there is none), ``wrong`` (it
    does not fit), ``damaged``, ``kind`` (not encrypted as an image may be)."""


class HostileArchiveError(ArchiveError):
    """An archive holds an entry that no honest builder writes, or exceeds a limit. ``data``: ``entry``."""


class RenderError(ImageError):
    """An image graph cannot be rendered: a cycle, a missing dependency, a limit."""


class StoreError(ImageError):
    """The image store failed: a full disk, a damaged entry."""


class TrustError(ImageError):
    """A signature is missing, wrong, expired, revoked or by an untrusted key."""


class FetchError(ImageError):
    """Base of errors while an image is fetched. ``data``: ``url``."""


class FetchNotFoundError(FetchError):
    """The source says that it has no such image."""


class FetchRefusedError(FetchError):
    """The source refuses: connection refused, forbidden, or a policy of ours forbids the way."""


class FetchUnauthorizedError(FetchError):
    """The source asks for credentials, or refuses the given ones."""


class FetchTLSError(FetchError):
    """TLS failed: an unknown authority, a wrong name, an expired certificate."""


class FetchTimeoutError(FetchError):
    """The source did not answer in time."""


class FetchTruncatedError(FetchError):
    """The stream ended before its announced end, and could not be resumed."""


class FetchDigestError(FetchError):
    """The content has another digest or size than expected."""


# --- pods ------------------------------------------------------------------------------------------------------


class PodError(KurmaError):
    """Base of errors about a pod. ``data``: ``pod`` (its UUID) where there is one."""


class PodNotFoundError(PodError):
    """No pod has that UUID, prefix or name."""


class PodDamagedError(PodError):
    """A pod's record on disk cannot be read."""


class PodExistsError(PodError):
    """A pod with that UUID or name exists."""


class PodStateError(PodError):
    """The pod's state does not allow the operation."""


class PodManagedError(PodStateError):
    """A program manages the pod, and the caller is another one. ``data``: ``manager``."""


class PodEndedError(PodError):
    """The pod has ended, and the kernel killed the command inside with it. Exit code 137, as after SIGKILL."""

    exit_code = 137


class AppNotFoundError(PodError):
    """The pod has no app of that name."""


class VolumeError(PodError):
    """A volume cannot be mounted: no source, a link in its path, overlapping targets."""


class VolumeNotFoundError(VolumeError):
    """There is no named volume of that name."""


class VolumeStateError(VolumeError):
    """A named volume exists with other properties, or pods use it."""


class IdRangeError(PodError):
    """No range of ids is free for the pod's user namespace, or another pod has the range."""


class IsolatorError(PodError):
    """An isolator's value is wrong, or the isolator cannot be enforced although it must be."""


class PowerError(IsolatorError):
    """An image asks for power over the host that no grant gives it."""


class NetworkError(PodError):
    """A network could not be set up, joined or left. ``data``: ``network``."""


class NetworkNotFoundError(NetworkError):
    """There is no network of that name."""


class SecretError(KurmaError):
    """A secret cannot be used. ``data``: ``secret``. No error has a secret's value."""


class SecretNotFoundError(SecretError):
    """There is no secret of that name."""


class SecretExistsError(SecretError):
    """There is a secret of that name already."""


class StagerError(PodError):
    """A stager failed to start, broke its protocol, or sent a malformed answer."""

    def with_limit(self, directory: str) -> StagerError:
        """Returns the error with data and hint of the limit of the host that its message ends with; without such a
        limit, the error itself.

        :param directory: the pod's directory, which the stager writes to.
        """
        from kurma_core import shortage

        found = shortage.limit_of_stager(self.message, directory)
        if found is None:
            return self
        message, number = found
        return StagerError(message, hint=self.hint, **{**self.data, "errno": number, "path": directory})


class StagerNotFoundError(StagerError):
    """There is no stager of that name."""


class CommandTimeoutError(PodError):
    """A command inside an app ran longer than its time limit, and was killed with all that it had started. Exit
    code 124."""

    exit_code = 124


class CommandNotFoundError(PodError):
    """A command to run inside an app does not exist there. Exit code 127."""

    exit_code = 127


class CommandNotExecutableError(PodError):
    """A command to run inside an app is there, and cannot be executed. Exit code 126."""

    exit_code = 126
