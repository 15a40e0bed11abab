"""Statistics of sandboxes and containers, measured at each call."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from kurma_core.errors import PodNotFoundError, PodStateError
from kurma_core.value import frozen
from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.records import containers_of
from kurma_cri.statuses import chosen, container_state

if TYPE_CHECKING:
    from kurma_core.api.operations import Api
    from kurma_core.api.pods import ResourceUsage, Usage
    from kurma_core.api.usage_details import InterfaceUsage, PressureUsage
    from kurma_cri.records import Container, Records, Sandbox

_NANO = 1_000_000_000


@frozen
class Measured:
    """A sandbox, and what it used at a moment.

    :param usage: None: it does not run. :param at: nanoseconds since 1970.
    """

    sandbox: Sandbox
    usage: Usage | None
    at: int

    @property
    def running(self) -> Iterator[tuple[Container, ResourceUsage]]:
        """Its running containers, with what they use."""
        if self.usage is not None:
            for container in containers_of(self.sandbox):
                used = self.usage.apps.get(container.id)
                if used is not None and container_state(container) == cri.CONTAINER_RUNNING:
                    yield container, used


class Stats:
    """:param client: measures pods. :param records: finds sandboxes and containers."""

    def __init__(self, client: Api, records: Records) -> None:
        self._client = client
        self._records = records
        self._directory = ""

    @property
    def directory(self) -> str:
        """A directory on the file system of the containers' writable layers."""
        if not self._directory:
            self._directory = self._client.info().state_directory
        return self._directory

    def measure(self, sandboxes: Iterable[Sandbox]) -> list[Measured]:
        """Measures sandboxes. One that ends meanwhile has no usage."""
        wanted = list(sandboxes)
        found: dict[str, Usage] = {}
        if len(wanted) > 1:
            found = {one.uuid: one for one in self._client.usage(details=True)}
        elif wanted and wanted[0].ready:
            # It may have just ended.
            with contextlib.suppress(PodNotFoundError, PodStateError):
                found = {one.uuid: one for one in self._client.usage([wanted[0].pod.uuid], details=True)}
        at = time.time_ns()
        return [Measured(sandbox, found.get(sandbox.pod.uuid), at) for sandbox in wanted]

    # -- containers --

    def container(self, reference: str) -> cri.ContainerStats:
        """:raises RpcError: there is no such container."""
        container = self._records.container(reference)
        (measured,) = self.measure([container.sandbox])
        used = next((used for one, used in measured.running if one.id == container.id), None)
        return self._of_container(container, used, measured.at)

    def containers(self, wanted: cri.ContainerStatsFilter) -> Iterator[cri.ContainerStats]:
        """Of the running containers that fulfil each condition of the filter."""
        sandboxes = [one for one in self._records.sandboxes() if one.id.startswith(wanted.pod_sandbox_id)]
        for measured in self.measure(sandboxes):
            for container, used in measured.running:
                if container.id.startswith(wanted.id) and chosen(container.config.labels, wanted.label_selector):
                    yield self._of_container(container, used, measured.at)

    def _of_container(self, container: Container, used: ResourceUsage | None, at: int) -> cri.ContainerStats:
        config = container.config
        stats = cri.ContainerStats(
            attributes=cri.ContainerAttributes(
                id=container.id, metadata=config.metadata, labels=config.labels, annotations=config.annotations
            ),
            cpu=_cpu(used, at),
            memory=_memory(used, at),
            swap=_swap(used, at),
            io=_io(used, at),
        )
        details = used.details if used is not None else None
        if details is not None and details.written is not None:
            stats.writable_layer.timestamp = at
            stats.writable_layer.fs_id.mountpoint = self.directory
            stats.writable_layer.used_bytes.value = details.written
            stats.writable_layer.inodes_used.value = details.written_files or 0
        return stats

    # -- sandboxes --

    def sandbox(self, reference: str) -> cri.PodSandboxStats:
        """:raises RpcError: there is no such sandbox."""
        (measured,) = self.measure([self._records.sandbox(reference)])
        return self._of_sandbox(measured)

    def sandboxes(self, wanted: cri.PodSandboxStatsFilter) -> Iterator[cri.PodSandboxStats]:
        """Of the ready sandboxes that fulfil each condition of the filter."""
        sandboxes = [
            one
            for one in self._records.sandboxes()
            if one.ready and one.id.startswith(wanted.id) and chosen(one.config.labels, wanted.label_selector)
        ]
        for measured in self.measure(sandboxes):
            yield self._of_sandbox(measured)

    def _of_sandbox(self, measured: Measured) -> cri.PodSandboxStats:
        sandbox, usage, at = measured.sandbox, measured.usage, measured.at
        used = None if usage is None else usage.total
        config = sandbox.config
        linux = cri.LinuxPodSandboxStats(
            cpu=_cpu(used, at),
            memory=_memory(used, at),
            io=_io(used, at),
            network=_network(usage, at),
            process=_processes(used, at),
            containers=[self._of_container(container, own, at) for container, own in measured.running],
        )
        return cri.PodSandboxStats(
            attributes=cri.PodSandboxAttributes(
                id=sandbox.id, metadata=config.metadata, labels=config.labels, annotations=config.annotations
            ),
            linux=linux,
        )


def working_set(used: ResourceUsage) -> int | None:
    """Memory in use that the kernel cannot reclaim at once."""
    return None if used.memory is None else max(0, used.memory - (used.memory_reclaimable or 0))


def _value(number: int | None) -> cri.UInt64Value | None:
    return None if number is None else cri.UInt64Value(value=number)


def _cpu(used: ResourceUsage | None, at: int) -> cri.CpuUsage:
    cpu = cri.CpuUsage(timestamp=at)
    if used is not None:
        if used.cpu is not None:
            cpu.usage_core_nano_seconds.value = round(used.cpu * _NANO)
        _stalls(cpu, None if used.details is None else used.details.cpu_pressure)
    return cpu


def _memory(used: ResourceUsage | None, at: int) -> cri.MemoryUsage:
    memory = cri.MemoryUsage(timestamp=at)
    if used is None:
        return memory
    working = working_set(used)
    available = None
    if working is not None and used.memory_limit is not None:
        available = max(0, used.memory_limit - working)
    details = used.details
    for name, number in (
        ("working_set_bytes", working),
        ("available_bytes", available),
        ("usage_bytes", used.memory),
        ("rss_bytes", details and details.memory_anonymous),
        ("page_faults", details and details.page_faults),
        ("major_page_faults", details and details.major_page_faults),
    ):
        if number is not None:
            getattr(memory, name).value = number
    _stalls(memory, None if details is None else details.memory_pressure)
    return memory


def _swap(used: ResourceUsage | None, at: int) -> cri.SwapUsage | None:
    details = used.details if used is not None else None
    if details is None or details.swap is None:
        return None
    left = None if details.swap_limit is None else max(0, details.swap_limit - details.swap)
    return cri.SwapUsage(timestamp=at, swap_usage_bytes=_value(details.swap), swap_available_bytes=_value(left))


def _io(used: ResourceUsage | None, at: int) -> cri.IoUsage | None:
    pressure = used.details.io_pressure if used is not None and used.details is not None else None
    if pressure is None:
        return None
    io = cri.IoUsage(timestamp=at)
    _stalls(io, pressure)
    return io


def _stalls(message: cri.CpuUsage | cri.MemoryUsage | cri.IoUsage, pressure: PressureUsage | None) -> None:
    if pressure is None:
        return
    for target, stall in ((message.psi.Some, pressure.some), (message.psi.Full, pressure.full)):
        # Kubelet takes the kernel's own unit, microseconds.
        target.Total = round(stall.total * 1e6)
        target.Avg10, target.Avg60, target.Avg300 = stall.avg10, stall.avg60, stall.avg300


def _processes(used: ResourceUsage | None, at: int) -> cri.ProcessUsage:
    processes = cri.ProcessUsage(timestamp=at)
    if used is not None and used.details is not None:
        processes.process_count.value = used.details.processes
    return processes


def _network(usage: Usage | None, at: int) -> cri.NetworkUsage | None:
    """None: the sandbox uses the host's network, or has ended."""
    if usage is None or not usage.interfaces:
        return None
    first, *others = map(_interface, usage.interfaces)
    # ``interfaces`` has those besides the default one.
    return cri.NetworkUsage(timestamp=at, default_interface=first, interfaces=others)


def _interface(one: InterfaceUsage) -> cri.NetworkInterfaceUsage:
    return cri.NetworkInterfaceUsage(
        name=one.name,
        rx_bytes=_value(one.received),
        rx_errors=_value(one.received_errors),
        tx_bytes=_value(one.sent),
        tx_errors=_value(one.sent_errors),
    )
