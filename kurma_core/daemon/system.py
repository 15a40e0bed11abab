"""Operations on the daemon itself, and what this host and installation are."""

from __future__ import annotations

import os
from typing import Any

from kurma_core.daemon.operations import Call, operation
from kurma_core.version import VERSION

Json = Any


@operation("GET", "/healthz", "Whether the daemon is well.", rights="read", result="Health")
def healthz(call: Call) -> Json:
    return {"status": "ok", "version": VERSION}


@operation("GET", "/v1/info", "What this host and this installation are.", rights="read", result="Info")
def info(call: Call) -> Json:
    daemon = {"pid": os.getpid(), "recovered": call.daemon.recovery.done.is_set(), **call.daemon.initial.to_json()}
    return {**call.client.info(), "daemon": daemon}


@operation("GET", "/v1/version", "Kurma's version.", rights="read", result="Version")
def version(call: Call) -> Json:
    return {"version": VERSION}
