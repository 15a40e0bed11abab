"""Writes a line of JSON for every event of a pod, to the file that ``KURMA_JSONLOG`` names."""

from __future__ import annotations

import json
import os

from kurma_core.errors import PluginSkipped
from kurma_core.hookspecs import hookimpl
from kurma_core.models.pod import PodEvent

PATH = os.environ.get("KURMA_JSONLOG", "")
if not PATH:
    raise PluginSkipped("needs the environment variable KURMA_JSONLOG, a path")


@hookimpl
def kurma_pod_event(event: PodEvent) -> None:
    line = {"at": event.at, "event": event.kind, "pod": event.pod, "name": event.name, **event.detail}
    # One write to a file opened for appending: lines of processes that write at once do not mix.
    fd = os.open(PATH, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, json.dumps(line).encode() + b"\n")
    finally:
        os.close(fd)
