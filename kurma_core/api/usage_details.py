"""Values of the API about resource usage in detail, which are measured only where a caller wants them."""

from __future__ import annotations

from _collections_abc import Mapping  # without collections

from kurma_core.schema import Count, JsonValue
from kurma_core.value import frozen


@frozen
class Pressure(JsonValue):
    """How long tasks have waited for a resource (the kernel's pressure stall information).

    :param total: seconds since the cgroup was made.
    :param avg10: per cent of the last 10 seconds. :param avg60: of the last minute. :param avg300: of the last 5
        minutes.
    """

    JSON_NAME = "Pressure"

    total: float
    avg10: float
    avg60: float
    avg300: float


@frozen
class PressureUsage(JsonValue):
    """:param some: of any task. :param full: of all tasks at once."""

    JSON_NAME = "PressureUsage"

    some: Pressure
    full: Pressure


@frozen
class InterfaceUsage(JsonValue):
    """Traffic over a network interface.

    :param name: name of the interface in the pod.
    :param received: bytes. :param received_packets: packets. :param received_errors: faulty packets.
    :param received_dropped: packets that were dropped.
    :param sent: likewise. :param sent_packets: likewise. :param sent_errors: likewise.
    :param sent_dropped: likewise.
    """

    JSON_NAME = "InterfaceUsage"

    name: str
    received: Count
    received_packets: Count
    received_errors: Count
    received_dropped: Count
    sent: Count
    sent_packets: Count
    sent_errors: Count
    sent_dropped: Count


@frozen
class DeviceUsage(JsonValue):
    """Use of a block device.

    :param device: its major and minor number, ``8:0``.
    :param read: bytes. :param written: bytes. :param reads: operations. :param writes: operations.
    """

    JSON_NAME = "DeviceUsage"

    device: str
    read: Count
    written: Count
    reads: Count
    writes: Count


@frozen
class HugePageUsage(JsonValue):
    """Use of huge pages of one size.

    :param used: bytes. :param peak: the most bytes so far; null: the host does not report it.
    """

    JSON_NAME = "HugePageUsage"

    used: Count
    peak: Count | None


@frozen(kw_only=True)
class UsageDetails(JsonValue):
    """Resource usage of a cgroup in detail. Null: the host does not report it; for a limit: there is none.

    :param cpu_user: processor time of programs in seconds. :param cpu_system: of the kernel.
    :param cpu_periods: periods of the processor quota so far.
    :param cpu_throttled_periods: periods in which the quota was used up.
    :param cpu_throttled: seconds for which tasks had to wait for the quota.
    :param cpu_period: length of a period in microseconds.
    :param cpu_quota: processor time in a period in microseconds; null: there is no quota.
    :param cpu_shares: share of busy processors, relative to 1024.
    :param cpu_pressure: waits for a processor. :param memory_pressure: waits for memory.
    :param io_pressure: waits for block devices.
    :param memory_cache: bytes of the kernel's cache of files. :param memory_anonymous: bytes without a file.
    :param memory_mapped: bytes of mapped files. :param memory_kernel: bytes of the kernel's own.
    :param memory_peak: the most bytes so far.
    :param memory_limit_hits: how often the limit was reached.
    :param memory_reservation: bytes that the kernel tries to leave.
    :param page_faults: so far. :param major_page_faults: faults that waited for a device.
    :param swap: bytes in swap. :param swap_limit: the most bytes in swap; null: there is no limit.
    :param oom_kills: processes that the kernel killed for lack of memory.
    :param huge_pages: by the size of a page, such as ``2MB``.
    :param devices: block devices that were used.
    :param processes: number of processes. :param threads: number of threads.
    :param descriptors: open file descriptors of all processes. :param sockets: open sockets.
    :param open_files_limit: most open files of an app's main process; null: not known, or of a pod.
    :param written: bytes on disk of the files that an app has written into its root; null: not known, or of a pod.
    :param written_files: number of these files and directories.
    """

    JSON_NAME = "UsageDetails"

    cpu_user: float | None
    cpu_system: float | None
    cpu_periods: Count | None
    cpu_throttled_periods: Count | None
    cpu_throttled: float | None
    cpu_period: Count | None
    cpu_quota: Count | None
    cpu_shares: Count | None
    cpu_pressure: PressureUsage | None
    memory_pressure: PressureUsage | None
    io_pressure: PressureUsage | None
    memory_cache: Count | None
    memory_anonymous: Count | None
    memory_mapped: Count | None
    memory_kernel: Count | None
    memory_peak: Count | None
    memory_limit_hits: Count | None
    memory_reservation: Count | None
    page_faults: Count | None
    major_page_faults: Count | None
    swap: Count | None
    swap_limit: Count | None
    oom_kills: Count | None
    huge_pages: Mapping[str, HugePageUsage]
    devices: tuple[DeviceUsage, ...]
    processes: Count
    threads: Count
    descriptors: Count
    sockets: Count
    open_files_limit: Count | None
    written: Count | None
    written_files: Count | None
