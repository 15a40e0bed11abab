"""Operations on the daemon itself, and what this host and installation are."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from kurma_core.daemon.operations import Call, operation
from kurma_core.errors import KurmaError
from kurma_core.version import VERSION

if TYPE_CHECKING:
    from kurma_core.daemon.http.daemon import Daemon

Json = Any


@operation(
    "GET",
    "/healthz",
    "Whether the daemon is well: 200, or 503 with what is wrong.",
    rights="read",
    kind="bytes",
    gives=("application/json",),
    result="Health",
)
def healthz(call: Call) -> None:
    found = problems(call.daemon)
    value = {"status": "failing" if found else "ok", "version": VERSION, "problems": found}
    call.exchange.respond_json(503 if found else 200, value)


def problems(daemon: Daemon) -> list[str]:
    """What keeps it from its work, a line for each."""
    found = []
    if not daemon.owners.alive():
        found.append("nobody looks after its pods: the thread that waits for their ends has ended")
    try:
        _try_to_write(daemon.config.state_dir)
    except OSError as error:
        found.append(f"the state directory {daemon.config.state_dir} cannot be written: {error.strerror}")
    try:
        daemon.client.probe()
    except (KurmaError, OSError) as error:
        found.append(f"programs cannot be started: {error}")
    return found


def _try_to_write(directory: str) -> None:
    """A file without a name: nothing is left of it, whatever happens."""
    fd = os.open(directory, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, b"0" * 4096)
    finally:
        os.close(fd)


@operation("GET", "/v1/info", "What this host and this installation are.", rights="read", result="Info")
def info(call: Call) -> Json:
    daemon = {"pid": os.getpid(), "recovered": call.daemon.recovery.done.is_set(), **call.daemon.initial.to_json()}
    return {**call.client.info(), "daemon": daemon}


@operation("GET", "/v1/version", "Kurma's version.", rights="read", result="Version")
def version(call: Call) -> Json:
    return {"version": VERSION}
