"""Statistics and metrics of real sandboxes (C14, C14a)."""

import time

import grpc
import pytest
from kurma_cri.metrics import FAMILIES, LABELS, descriptors
from kurma_cri.proto import runtime_pb2 as cri

from plugins.cri.tests.conftest import refused
from tests.kit.waiting import until

#: C14a: what kubelet's users find by these names.
REQUIRED = {
    "cpu_cfs_periods_total", "cpu_cfs_throttled_periods_total", "cpu_cfs_throttled_seconds_total",
    "cpu_system_seconds_total", "cpu_usage_seconds_total", "cpu_user_seconds_total", "file_descriptors",
    "fs_inodes_free", "fs_inodes_total", "fs_limit_bytes", "fs_usage_bytes", "last_seen", "memory_cache",
    "memory_failcnt", "memory_failures_total", "memory_kernel_usage", "memory_mapped_file",
    "memory_max_usage_bytes", "memory_rss", "memory_swap", "memory_usage_bytes", "memory_working_set_bytes",
    "oom_events_total", "processes", "sockets", "spec_cpu_period", "spec_cpu_shares", "spec_memory_limit_bytes",
    "spec_memory_swap_limit_bytes", "start_time_seconds", "threads", "threads_max",
}  # fmt: skip
NETWORK = {
    f"network_{way}_{what}_total"
    for way in ("receive", "transmit")
    for what in ("bytes", "errors", "packets", "packets_dropped")
}
WHERE_THERE = {
    "blkio_device_usage_total", "fs_reads_bytes_total", "fs_reads_total", "fs_writes_bytes_total",
    "fs_writes_total", "hugetlb_max_usage_bytes", "hugetlb_usage_bytes", "spec_cpu_quota",
    "spec_memory_reservation_limit_bytes",
    "ulimits_soft",
    *(f"pressure_{of}_{how}_seconds_total" for of in ("cpu", "io", "memory") for how in ("stalled", "waiting")),
}  # fmt: skip


def test_descriptors():
    found = {one.name: one for one in descriptors()}
    assert found.keys() == {f"container_{name}" for name in REQUIRED | NETWORK | WHERE_THERE}
    assert len(found) == len(FAMILIES)
    for one in found.values():
        assert one.help.endswith(".")
        assert tuple(one.label_keys[: len(LABELS)]) == LABELS
    assert found["container_memory_failures_total"].label_keys[-2:] == ["failure_type", "scope"]
    assert found["container_network_receive_bytes_total"].label_keys[-1] == "interface"


@pytest.mark.root
def test_stats_and_metrics(node):
    begun = time.time_ns()
    sandbox = node.run(
        node.sandbox_config("web", host_network=False, labels={"app": "web"}, annotations={"note": "as given"})
    )
    idle = node.run(labels={"app": "idle"})
    writes = (
        "dd if=/dev/zero of=/written bs=1M count=3; dd if=/dev/zero of=/dev/shm/x bs=1M count=8; exec sleep 1000"
    )
    busy = node.started(sandbox, "sh", "-c", writes, labels={"role": "main"})
    limits = cri.LinuxContainerResources(memory_limit_in_bytes=64 << 20, cpu_shares=512)
    other = node.started(idle, "sleep", "1000", linux=cri.LinuxContainerConfig(resources=limits))
    ended = node.started(sandbox, "true", name="ended")
    node.wait_exited(ended)

    def stats(container):
        return node.runtime.ContainerStats(cri.ContainerStatsRequest(container_id=container)).stats

    until(lambda: stats(busy).writable_layer.used_bytes.value >= 3 << 20, "what it writes")
    found = stats(busy)
    assert (found.attributes.id, found.attributes.metadata.name) == (busy, "main")
    assert found.attributes.labels == {"role": "main"}
    assert found.cpu.usage_core_nano_seconds.value > 0
    memory = found.memory
    assert 0 < memory.working_set_bytes.value <= memory.usage_bytes.value
    assert not memory.HasField("available_bytes")
    assert memory.page_faults.value > 0
    limited = stats(other).memory
    assert limited.available_bytes.value == (64 << 20) - limited.working_set_bytes.value
    for part in (found.cpu, memory, found.writable_layer):
        assert begun < part.timestamp <= time.time_ns()
    assert found.writable_layer.fs_id.mountpoint == node.house.client.info().state_directory
    assert stats(ended).attributes.metadata.name == "ended"
    assert not stats(ended).memory.HasField("usage_bytes")
    with refused(grpc.StatusCode.NOT_FOUND):
        stats("0" * 64)

    def listed(**wanted):
        chosen = cri.ContainerStatsFilter(**wanted)
        answer = node.runtime.ListContainerStats(cri.ListContainerStatsRequest(filter=chosen)).stats
        stream = node.runtime.StreamContainerStats(cri.StreamContainerStatsRequest(filter=chosen))
        ids = [one.attributes.id for one in answer]
        assert ids == [one.attributes.id for some in stream for one in some.container_stats]
        return ids

    assert listed() == [busy, other]
    assert listed(pod_sandbox_id=idle) == listed(id=other[:12]) == [other]
    assert listed(label_selector={"role": "main"}) == [busy]
    assert listed(id=busy, pod_sandbox_id=idle) == []
    check_sandbox(node, sandbox, idle, busy)
    check_metrics(node, sandbox, idle, busy)


def check_sandbox(node, sandbox, idle, busy):
    def of(id):
        return node.runtime.PodSandboxStats(cri.PodSandboxStatsRequest(pod_sandbox_id=id)).stats

    found = of(sandbox)
    assert (found.attributes.metadata.name, found.attributes.annotations) == ("web", {"note": "as given"})
    assert found.linux.network.default_interface.name == "eth0"
    assert found.linux.network.default_interface.HasField("rx_bytes")
    assert found.linux.process.process_count.value >= 2
    assert [one.attributes.id for one in found.linux.containers] == [busy]
    assert (
        found.linux.cpu.usage_core_nano_seconds.value
        >= found.linux.containers[0].cpu.usage_core_nano_seconds.value
    )
    assert not of(idle).linux.HasField("network")
    wanted = cri.PodSandboxStatsFilter(label_selector={"app": "idle"})
    answer = node.runtime.ListPodSandboxStats(cri.ListPodSandboxStatsRequest(filter=wanted)).stats
    stream = node.runtime.StreamPodSandboxStats(cri.StreamPodSandboxStatsRequest(filter=wanted))
    assert [one.attributes.id for one in answer] == [idle]
    assert [one.attributes.id for some in stream for one in some.pod_sandbox_stats] == [idle]


def check_metrics(node, sandbox, idle, busy):
    keys = {
        one.name: one.label_keys
        for one in node.runtime.ListMetricDescriptors(cri.ListMetricDescriptorsRequest()).descriptors
    }
    answer = node.runtime.ListPodSandboxMetrics(cri.ListPodSandboxMetricsRequest()).pod_metrics
    stream = node.runtime.StreamPodSandboxMetrics(cri.StreamPodSandboxMetricsRequest())
    ids = [one.pod_sandbox_id for some in stream for one in some.pod_sandbox_metrics]
    assert [one.pod_sandbox_id for one in answer] == ids == [sandbox, idle]
    web = answer[0]
    (own,) = web.container_metrics
    assert own.container_id == busy
    for one in (*web.metrics, *own.metrics):
        assert len(one.label_values) == len(keys[one.name])
        assert one.timestamp > 0
        labels = dict(zip(keys[one.name], one.label_values, strict=True))
        assert (labels["namespace"], labels["pod"]) == ("default", "web")
    assert {f"container_{name}" for name in NETWORK} <= {one.name for one in web.metrics}
    found = {one.name.removeprefix("container_"): one for one in own.metrics}
    assert found.keys() >= REQUIRED
    limited = {one.name: one.value.value for one in answer[1].container_metrics[0].metrics}
    assert limited["container_spec_memory_limit_bytes"] == 64 << 20
    assert limited["container_spec_cpu_shares"] == 512
    labels = dict(zip(keys["container_threads"], found["threads"].label_values, strict=True))
    assert (labels["container"], labels["id"]) == ("main", busy)
    assert labels["name"].startswith("k8s_main_web_default_uid-")
    assert found["fs_usage_bytes"].value.value >= 3 << 20
    assert (found["threads"].value.value, found["processes"].value.value) == (1, 1)
    assert found["cpu_usage_seconds_total"].metric_type == cri.COUNTER
    assert found["memory_rss"].metric_type == cri.GAUGE
    assert time.time() - 600 < found["start_time_seconds"].value.value <= found["last_seen"].value.value
