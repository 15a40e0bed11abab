"""Metrics of sandboxes and containers by the names that cAdvisor gives them. Kubelet serves them to Prometheus.

A :class:`Family` declares one metric: its descriptor, and how its values come from a measurement. Values are whole
numbers, so that times are whole seconds.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from kurma_core.value import frozen
from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.stats import working_set
from kurma_cri.statuses import started_at

if TYPE_CHECKING:
    from kurma_core.api.pods import ResourceUsage, Usage
    from kurma_core.api.usage_details import UsageDetails
    from kurma_cri.records import Container, Sandbox
    from kurma_cri.stats import Measured

_NANO = 1_000_000_000
#: Labels of each value, before those of its family.
LABELS = ("container", "id", "image", "name", "namespace", "pod")


@frozen
class Source:
    """One cgroup at a moment, of which families take their values.

    :param used: what it used, with details. :param usage: of the sandbox; None: this is a container.
    :param started: nanoseconds since 1970. :param at: of the measurement, likewise.
    :param directory: on the file system of writable layers.
    """

    used: ResourceUsage
    details: UsageDetails
    usage: Usage | None
    started: int
    at: int
    directory: str


#: Values with the family's own labels; None: the host does not report it.
Values = Iterable[tuple[tuple[str, ...], float | None]]


@frozen
class Family:
    """One metric.

    :param name: without the prefix ``container_``. :param help: for people. :param labels: besides :data:`LABELS`.
    :param values: its values; empty: there are none.
    """

    name: str
    help: str
    values: Callable[[Source], Values]
    gauge: bool = False
    labels: tuple[str, ...] = ()

    @property
    def descriptor(self) -> cri.MetricDescriptor:
        return cri.MetricDescriptor(
            name=f"container_{self.name}", help=self.help, label_keys=(*LABELS, *self.labels)
        )


def _one(value: Callable[[Source], float | None]) -> Callable[[Source], Values]:
    return lambda source: (((), value(source)),)


def _always(value: Callable[[Source], float | None]) -> Callable[[Source], Values]:
    """A value that the host does not report is 0, as cAdvisor has it."""
    return lambda source: (((), value(source) or 0),)


def _counter(name: str, help: str, value: Callable[[Source], float | None]) -> Family:
    return Family(name, help, _always(value))


def _gauge(name: str, help: str, value: Callable[[Source], float | None]) -> Family:
    return Family(name, help, _always(value), gauge=True)


def _faults(source: Source) -> Values:
    for kind, count in (("pgfault", source.details.page_faults), ("pgmajfault", source.details.major_page_faults)):
        for scope in ("container", "hierarchy"):
            yield (kind, scope), count or 0


def _interfaces(attribute: str) -> Callable[[Source], Values]:
    """Of a sandbox: its containers share its interfaces."""
    return lambda source: (
        ((one.name,), getattr(one, attribute)) for one in (() if source.usage is None else source.usage.interfaces)
    )


def _network(name: str, help: str, attribute: str) -> Family:
    return Family(name, help, _interfaces(attribute), labels=("interface",))


def _devices(attribute: str) -> Callable[[Source], Values]:
    return lambda source: (((_device(one.device),), getattr(one, attribute)) for one in source.details.devices)


def _device(numbers: str) -> str:
    """``/dev/sda`` for ``8:0``."""
    try:
        return f"/dev/{os.path.basename(os.readlink(f'/sys/dev/block/{numbers}'))}"
    except OSError:
        return numbers


def _blocks(source: Source) -> Values:
    for one in source.details.devices:
        major, _, minor = one.device.partition(":")
        for operation, count in (("Read", one.read), ("Write", one.written)):
            yield (_device(one.device), major, minor, operation), count


def _file_system(value: Callable[[os.statvfs_result], int]) -> Callable[[Source], Values]:
    """Of a container: a value of the file system of its writable layer."""

    def values(source: Source) -> Values:
        if source.usage is None:
            yield (_mounted(source.directory),), value(os.statvfs(source.directory))

    return values


def _written(source: Source) -> Values:
    if source.usage is None:
        yield (_mounted(source.directory),), source.details.written or 0


@functools.lru_cache(maxsize=4)
def _mounted(directory: str) -> str:
    """The device of a directory's file system."""
    number = os.stat(directory).st_dev
    return _device(f"{os.major(number)}:{os.minor(number)}")


def _pressure(resource: str, kind: str) -> Callable[[Source], Values]:
    def values(source: Source) -> Values:
        pressure = getattr(source.details, f"{resource}_pressure")
        if pressure is not None:
            yield (), getattr(pressure, kind).total

    return values


def _swap_limit(source: Source) -> int:
    """Of memory and swap together, as cgroup v1 has it."""
    if source.used.memory_limit is None or source.details.swap_limit is None:
        return 0
    return source.used.memory_limit + source.details.swap_limit


def _huge_pages(attribute: str) -> Callable[[Source], Values]:
    return lambda source: (((size,), getattr(one, attribute)) for size, one in source.details.huge_pages.items())


def _open_files(source: Source) -> Values:
    if source.details.open_files_limit is not None:
        yield ("max_open_files",), source.details.open_files_limit


FAMILIES = (
    _counter("cpu_user_seconds_total", "Processor time of programs in seconds.", lambda s: s.details.cpu_user),
    _counter(
        "cpu_system_seconds_total", "Processor time of the kernel in seconds.", lambda s: s.details.cpu_system
    ),
    Family(
        "cpu_usage_seconds_total",
        "Processor time in seconds.",
        lambda s: ((("total",), s.used.cpu or 0),),
        labels=("cpu",),
    ),
    _counter("cpu_cfs_periods_total", "Elapsed periods of the processor quota.", lambda s: s.details.cpu_periods),
    _counter(
        "cpu_cfs_throttled_periods_total",
        "Periods in which the processor quota was used up.",
        lambda s: s.details.cpu_throttled_periods,
    ),
    _counter(
        "cpu_cfs_throttled_seconds_total",
        "Time for which tasks waited for the processor quota, in seconds.",
        lambda s: s.details.cpu_throttled,
    ),
    _gauge("file_descriptors", "Open file descriptors.", lambda s: s.details.descriptors),
    Family(
        "fs_inodes_free",
        "Free inodes of the file system.",
        _file_system(lambda of: of.f_ffree),
        gauge=True,
        labels=("device",),
    ),
    Family(
        "fs_inodes_total",
        "Inodes of the file system.",
        _file_system(lambda of: of.f_files),
        gauge=True,
        labels=("device",),
    ),
    Family(
        "fs_limit_bytes",
        "Size of the file system in bytes.",
        _file_system(lambda of: of.f_blocks * of.f_frsize),
        gauge=True,
        labels=("device",),
    ),
    Family(
        "fs_usage_bytes",
        "Bytes on disk that the container has written into its root.",
        _written,
        gauge=True,
        labels=("device",),
    ),
    Family("fs_reads_bytes_total", "Bytes read from block devices.", _devices("read"), labels=("device",)),
    Family("fs_reads_total", "Read operations of block devices.", _devices("reads"), labels=("device",)),
    Family("fs_writes_bytes_total", "Bytes written to block devices.", _devices("written"), labels=("device",)),
    Family("fs_writes_total", "Write operations of block devices.", _devices("writes"), labels=("device",)),
    Family(
        "blkio_device_usage_total",
        "Bytes from and to block devices.",
        _blocks,
        labels=("device", "major", "minor", "operation"),
    ),
    _gauge("last_seen", "Time of the measurement, in seconds since 1970.", lambda s: s.at // _NANO),
    _gauge("start_time_seconds", "Time of the start, in seconds since 1970.", lambda s: s.started // _NANO),
    _gauge("memory_cache", "Bytes of the kernel's cache of files.", lambda s: s.details.memory_cache),
    _counter("memory_failcnt", "How often the memory limit was reached.", lambda s: s.details.memory_limit_hits),
    Family("memory_failures_total", "Page faults.", _faults, labels=("failure_type", "scope")),
    _gauge("memory_kernel_usage", "Bytes of the kernel's own memory.", lambda s: s.details.memory_kernel),
    _gauge("memory_mapped_file", "Bytes of mapped files.", lambda s: s.details.memory_mapped),
    _gauge("memory_max_usage_bytes", "The most memory so far in bytes.", lambda s: s.details.memory_peak),
    _gauge("memory_rss", "Bytes of memory without a file.", lambda s: s.details.memory_anonymous),
    _gauge("memory_swap", "Bytes in swap.", lambda s: s.details.swap),
    _gauge("memory_usage_bytes", "Memory in bytes, with the cache of files.", lambda s: s.used.memory),
    _gauge(
        "memory_working_set_bytes",
        "Memory in bytes that the kernel cannot reclaim at once.",
        lambda s: working_set(s.used),
    ),
    _network("network_receive_bytes_total", "Received bytes.", "received"),
    _network("network_receive_packets_total", "Received packets.", "received_packets"),
    _network("network_receive_packets_dropped_total", "Received packets that were dropped.", "received_dropped"),
    _network("network_receive_errors_total", "Errors of received packets.", "received_errors"),
    _network("network_transmit_bytes_total", "Sent bytes.", "sent"),
    _network("network_transmit_packets_total", "Sent packets.", "sent_packets"),
    _network("network_transmit_packets_dropped_total", "Packets that were dropped and not sent.", "sent_dropped"),
    _network("network_transmit_errors_total", "Errors of sent packets.", "sent_errors"),
    _counter(
        "oom_events_total", "Processes that the kernel killed for lack of memory.", lambda s: s.details.oom_kills
    ),
    _gauge("processes", "Processes.", lambda s: s.details.processes),
    _gauge("sockets", "Open sockets.", lambda s: s.details.sockets),
    _gauge("threads", "Threads.", lambda s: s.details.threads),
    _gauge("threads_max", "The most threads; 0: there is no limit.", lambda s: s.used.pids_limit),
    Family(
        "ulimits_soft",
        "Soft limits of the container's main process.",
        _open_files,
        gauge=True,
        labels=("ulimit",),
    ),
    _gauge("spec_cpu_period", "Length of a period of the processor quota.", lambda s: s.details.cpu_period),
    Family("spec_cpu_quota", "Processor quota.", _one(lambda s: s.details.cpu_quota), gauge=True),
    _gauge("spec_cpu_shares", "Share of busy processors.", lambda s: s.details.cpu_shares),
    _gauge("spec_memory_limit_bytes", "Memory limit in bytes; 0: there is none.", lambda s: s.used.memory_limit),
    _gauge(
        "spec_memory_reservation_limit_bytes",
        "Memory that the kernel tries to leave; 0: none.",
        lambda s: s.details.memory_reservation,
    ),
    _gauge("spec_memory_swap_limit_bytes", "Limit of memory and swap in bytes; 0: there is none.", _swap_limit),
    Family("hugetlb_usage_bytes", "Huge pages in bytes.", _huge_pages("used"), gauge=True, labels=("pagesize",)),
    Family(
        "hugetlb_max_usage_bytes",
        "The most huge pages so far in bytes.",
        _huge_pages("peak"),
        gauge=True,
        labels=("pagesize",),
    ),
    *(
        Family(
            f"pressure_{resource}_{word}_seconds_total",
            f"Time for which {tasks} waited for {thing}, in seconds.",
            _pressure(resource, kind),
        )
        for resource, thing in (("cpu", "a processor"), ("io", "block devices"), ("memory", "memory"))
        for word, kind, tasks in (("waiting", "some", "tasks"), ("stalled", "full", "all tasks at once"))
    ),
)


def descriptors() -> list[cri.MetricDescriptor]:
    return [family.descriptor for family in FAMILIES]


def metrics(measured: Measured, directory: str) -> cri.PodSandboxMetrics:
    """The metrics of a sandbox and its running containers.

    :param directory: on the file system of writable layers.
    """
    sandbox, usage = measured.sandbox, measured.usage
    found = cri.PodSandboxMetrics(pod_sandbox_id=sandbox.id)
    if usage is None or usage.total.details is None:
        return found
    own = Source(usage.total, usage.total.details, usage, sandbox.created_at, measured.at, directory)
    found.metrics.extend(_metrics(own, _labels(sandbox)))
    for container, used in measured.running:
        if used.details is not None:
            source = Source(used, used.details, None, started_at(container), measured.at, directory)
            found.container_metrics.add(
                container_id=container.id, metrics=_metrics(source, _labels(sandbox, container))
            )
    return found


def _metrics(source: Source, labels: tuple[str, ...]) -> Iterator[cri.Metric]:
    for family in FAMILIES:
        for more, value in family.values(source):
            if value is not None:
                yield cri.Metric(
                    name=f"container_{family.name}",
                    timestamp=source.at,
                    metric_type=cri.GAUGE if family.gauge else cri.COUNTER,
                    label_values=(*labels, *more),
                    value=cri.UInt64Value(value=int(value)),
                )


def _labels(sandbox: Sandbox, container: Container | None = None) -> tuple[str, ...]:
    """The values of :data:`LABELS`. The name has the form that cAdvisor's users know."""
    pod = sandbox.config.metadata
    own = "" if container is None else container.config.metadata.name
    attempt = pod.attempt if container is None else container.config.metadata.attempt
    return (
        own,
        sandbox.id if container is None else container.id,
        "" if container is None else container.config.image.user_specified_image or container.config.image.image,
        f"k8s_{own or 'POD'}_{pod.name}_{pod.namespace}_{pod.uid}_{attempt}",
        pod.namespace,
        pod.name,
    )
