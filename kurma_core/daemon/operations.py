"""Operations as kurmad does them, for its HTTP API and its services: pods that they start belong to kurmad."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from kurma_core.api import describe
from kurma_core.api.operations import Api, Transport
from kurma_core.client.local.transport import Local
from kurma_core.daemon.http import messages
from kurma_core.daemon.http.exchange import json_line
from kurma_core.errors import UsageError
from kurma_core.value import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from kurma_core.api.host import HostInfo, PluginInfo, ReloadReport
    from kurma_core.api.operations import Operation, Progress
    from kurma_core.api.pods import PodRequest, Usage
    from kurma_core.daemon.http.calls import Daemon
    from kurma_core.daemon.pods.owned import RunningPod
    from kurma_core.models.pod import PodRecord
    from kurma_core.models.summary import PodSummary

Json = Any


class KurmadTransport(Transport):
    """Does operations in kurmad's process. Each call uses the managers of the configuration now in force."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._own = _Operations(daemon)

    def call(self, operation: Operation, arguments: dict[str, Any]) -> Any:
        own = getattr(self._own, operation.method, None)
        if own is not None:
            return own(**arguments)
        return Local(self._daemon.managers).call(operation, arguments)

    def close(self) -> None:
        self._daemon.managers.close()


class _Operations:
    """Operations that kurmad does in another way than :class:`kurma_core.client.local.transport.Local`: each
    replaces the method of its name of :class:`kurma_core.api.operations.Api`."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    @property
    def _local(self) -> Api:
        return Api(Local(self._daemon.managers))

    # -- pods --

    def pods(self) -> list[PodRecord]:
        return self._daemon.listing.records()

    def summaries(self) -> list[PodSummary]:
        return self._daemon.listing.summaries()

    def usage(self, pod: Collection[str], details: bool) -> list[Usage]:
        if pod:
            return self._local.usage(pod, details=details)
        from kurma_core.pods.inside.usage import usage

        return usage(self._daemon.listing.records(), self._daemon.managers.services.store if details else None)

    def prepare(self, request: PodRequest, progress: Progress | None, start: bool) -> PodRecord:
        if start:
            return self._started(lambda up: self._daemon.run(request, progress, up))
        return self._local.prepare(request, progress)

    def launch(self, pod: str, managed: bool) -> PodRecord:
        self._daemon.pods.check_manager("start", pod, managed=managed)
        return self._started(lambda up: self._daemon.launch(pod, up=up))

    def _started(self, start: Callable[[Callable[[RunningPod], None]], RunningPod]) -> PodRecord:
        """The record of the started pod, also if it has ended and was removed. For a pod that ended before it was
        up, or whose programs could not be executed, its state at its end."""
        with contextlib.ExitStack() as held:
            running = start(lambda running: held.enter_context(running.reading()))
            record = self._daemon.client.pod(running.uuid)
            stopped = record.unstarted and all(app.exited for app in record.apps) and not running.pod.stays
            return running.wait() if stopped or running.pod.over_at_once else record

    def wait(self, pod: str, condition: str) -> PodRecord:
        running = self._daemon.running(pod) if condition == "ended" else None
        if running is not None:
            # Any number may wait so; of watches on directories a host has few.
            return running.wait_asked()
        return self._local.wait(pod, condition=condition)

    def run(self, request: PodRequest, **given: Any) -> PodRecord:
        raise UsageError("kurmad itself runs no pod in the foreground", hint="prepare the pod with start=True")

    def start(self, pod: str, **given: Any) -> PodRecord:
        raise UsageError("kurmad itself runs no pod in the foreground", hint=f"launch pod {pod}")

    # -- the host --

    def answer(self, answer: str, passphrase: str | None) -> None:
        messages.answer(answer, passphrase)

    def reload(self) -> ReloadReport:
        return self._daemon.reloads.request()

    def plugins(self, load: bool) -> list[PluginInfo]:
        services = {one.name: one for one in self._daemon.services.states()}
        found = []
        for row in self._local.plugins(load=load):
            service = services.get(row.name) if row.kind == "services" and row.status in ("ok", "found") else None
            found.append(row if service is None else replace(row, status=service.state, reason=service.reason))
        return found

    def info(self) -> HostInfo:
        return replace(self._local.info(), daemon=self._daemon.described())

    def healthz(self) -> bytes:
        return json_line(self._daemon.health().to_json())

    def metrics(self) -> bytes:
        daemon = self._daemon
        return daemon.metrics.text(daemon.listing.records(), daemon.server.held).encode()

    def openapi(self) -> Json:
        return describe.openapi()
