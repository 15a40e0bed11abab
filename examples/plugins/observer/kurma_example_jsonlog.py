"""Writes a line of JSON for every event of a pod or an app, to a file that the configuration names."""

from __future__ import annotations

import json
import os
from typing import Any

from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, DriverContext, Option
from kurma_core.models.pod import AppEvent, PodEvent


class JsonLog:
    def __init__(self, context: DriverContext) -> None:
        self._path = context.config["path"] or os.path.join(context.state_dir, "events")

    @hookimpl
    def pod_event(self, event: PodEvent) -> None:
        self._write({"at": event.at, "event": event.kind, "pod": event.pod, "name": event.name, **event.detail})

    @hookimpl
    def app_event(self, event: AppEvent) -> None:
        line = {"at": event.at, "event": event.kind, "pod": event.pod, "name": event.name, "app": event.app}
        self._write({**line, **event.detail})

    def _write(self, line: dict[str, Any]) -> None:
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        # One write to a file opened for appending: lines of processes that write at once do not mix.
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, json.dumps(line).encode() + b"\n")
        finally:
            os.close(fd)


@hookimpl
def kurma_observer() -> Driver:
    return Driver(JsonLog, options=(Option("path", str, "", "the file; empty: in the state directory"),))
