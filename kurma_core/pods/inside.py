"""What people do inside a running pod, by a call-in of its stager: to its end, or the pod's (G5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.errors import HostError, PodEndedError, PodStateError, StagerError
from kurma_core.linux import process
from kurma_core.linux.held_process import is_killed
from kurma_core.pods import recovery
from kurma_core.staging.relay import CallerRelay

if TYPE_CHECKING:
    from kurma_core.hookspecs.stager import RunningStager
    from kurma_core.models.pod import PodRecord
    from kurma_core.models.streams import Stdio
    from kurma_core.pods.services import Services

_KILLED = 137
# Seconds in which the stager ends that was killed together with the call-in.
_TOGETHER = 0.3


def check_runs(record: PodRecord, what: str) -> None:
    """:raises PodStateError: it does not."""
    if record.state != "running":
        raise PodStateError(f"cannot {what} pod {record.name}: it is {record.state}", pod=record.uuid)


def call(
    services: Services,
    record: PodRecord,
    verb: str,
    arguments: tuple[str, ...],
    stdio: Stdio,
    document: bytes | None = None,
    *,
    what: str,
    terminal: bool,
    reads_input: bool = True,
) -> int:
    """The call-in's exit code.

    :param terminal: the call-in serves a terminal in the pod. :param reads_input: it reads standard input.
    :param what: is done, for messages: ``enter``, ``attach to``.
    :raises PodStateError: the pod does not run.
    :raises PodEndedError: the pod ended meanwhile, and whatever the call-in did was killed; or it could not start.
    """
    directory = services.store.directory(record.uuid)
    check_runs(record, what)
    stager = recovery.find_stager(services, directory)
    if stager is None:
        raise _ended(record)
    try:
        driver = services.stagers.of_pod(record.stager)

        def run(given: Stdio) -> int:
            try:
                return driver.call(directory.path, stager, verb, arguments, given, document)
            except (HostError, StagerError):
                if not _ends(stager):
                    raise
                raise _ended(record) from None

        if stdio.relayed:
            code = run(stdio)
        else:
            with CallerRelay(stdio, wants_terminal=terminal, reads_input=reads_input) as relay:
                code = run(relay.stdio)
        # It was killed and says nothing, and nobody could tell that from a command that was killed.
        if code == _KILLED and _ends(stager):
            raise _ended(record)
        return code
    finally:
        stager.close()


def _ends(stager: RunningStager) -> bool:
    """Whether the pod ends, or has ended. On a busy machine, a killed stager may take long to end."""
    return process.wait_pidfd(stager.fileno(), _TOGETHER) or is_killed(stager.pid)


def _ended(record: PodRecord) -> PodEndedError:
    return PodEndedError(f"pod {record.name} has ended", pod=record.uuid)
