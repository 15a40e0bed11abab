"""What people do inside a running pod, by a call-in of its stager: to its end, or the pod's (G5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.errors import PodEndedError, PodStateError
from kurma_core.linux import process
from kurma_core.pods import recovery
from kurma_core.staging.relay import CallerRelay

if TYPE_CHECKING:
    from kurma_core.hookspecs import Stdio
    from kurma_core.models.pod import PodRecord
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
    :raises PodEndedError: the pod ended meanwhile, and whatever the call-in did was killed.
    """
    directory = services.store.directory(record.uuid)
    check_runs(record, what)
    stager = recovery.find_stager(services, directory)
    if stager is None:
        raise PodStateError(f"cannot {what} pod {record.name}: it has just ended", pod=record.uuid)
    try:
        driver = services.stagers.of_pod(record.stager)
        if stdio.relayed:
            code = driver.call(directory.path, stager, verb, arguments, stdio, document)
        else:
            with CallerRelay(stdio, wants_terminal=terminal, reads_input=reads_input) as relay:
                code = driver.call(directory.path, stager, verb, arguments, relay.stdio, document)
        # It was killed and says nothing, and nobody could tell that from a command that was killed.
        if code == _KILLED and process.wait_pidfd(stager.fileno(), _TOGETHER):
            raise PodEndedError(f"pod {record.name} has ended", pod=record.uuid)
        return code
    finally:
        stager.close()
