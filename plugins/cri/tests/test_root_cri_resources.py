"""Resources of containers: the files of their cgroups, updates before and after the start, out of memory (C8, C9,
C12)."""

import json

import grpc
import pytest
from kurma_cri import limits
from kurma_cri.proto import runtime_pb2 as cri

from kurma_core.linux.cgroups import CgroupTree
from plugins.cri.tests.conftest import refused

pytestmark = pytest.mark.root
CODES = grpc.StatusCode
MIB = 1 << 20


def tree(node, container):
    """The cgroup of a container."""
    for pod in node.house.client.pods():
        if any(app.name == container for app in pod.apps):
            return CgroupTree(f"kurma/{pod.uuid}/app-{container}")
    raise AssertionError(container)


def memory(node, container):
    file = {1: "memory.limit_in_bytes", 2: "memory.max"}
    found = tree(node, container)
    return int(found.read("memory", file[found.layout.of("memory").version]))


def update(node, container, **fields):
    request = cri.UpdateContainerResourcesRequest(
        container_id=container, linux=cri.LinuxContainerResources(**fields)
    )
    node.runtime.UpdateContainerResources(request)


def with_resources(node, *command, name="main", **fields):
    config = node.container_config(*command, name=name)
    config.linux.resources.CopyFrom(cri.LinuxContainerResources(**fields))
    return config


def test_given_updated_and_shown(node):
    # Annotations as large as Kubernetes allows are in nothing's way.
    sandbox = node.run(annotations={"example.com/a": "x" * (limits.ENTRIES - 20)})
    given = {
        "cpu_period": 50000,
        "cpu_quota": 20000,
        "cpu_shares": 102,
        "memory_limit_in_bytes": 32 * MIB,
        "oom_score_adj": 321,
        "hugepage_limits": [cri.HugepageLimit(page_size="2MB", limit=0)],
    }
    config = with_resources(node, "sh", "-c", "cat /proc/self/oom_score_adj; sleep 1000", **given)
    container = node.create(sandbox, config)
    assert node.status(container).resources.linux == cri.LinuxContainerResources(**given)
    assert memory(node, container) == 32 * MIB
    update(node, container, memory_limit_in_bytes=48 * MIB)
    node.start(container)
    assert memory(node, container) == 48 * MIB
    update(node, container, cpu_quota=10000, memory_limit_in_bytes=40 * MIB)
    assert memory(node, container) == 40 * MIB
    shown = node.status(container).resources.linux
    assert (shown.cpu_quota, shown.cpu_period, shown.memory_limit_in_bytes) == (10000, 50000, 40 * MIB)
    assert tree(node, container).read("pids", "pids.max") == "max"
    with refused(CODES.INTERNAL, "cpuset.cpus"):
        update(node, container, cpuset_cpus="4095", memory_limit_in_bytes=44 * MIB)
    assert memory(node, container) == 40 * MIB
    assert node.status(container).resources.linux == shown
    with refused(CODES.NOT_FOUND):
        update(node, "0" * 64, cpu_shares=2)
    # What a node's kubelet changes of the cgroup of a pod is recorded.
    for changed in ({"resources": {"cpu_shares": 204}}, {"overhead": {"memory_limit_in_bytes": MIB}}):
        request = cri.UpdatePodSandboxResourcesRequest(pod_sandbox_id=sandbox, **changed)
        node.runtime.UpdatePodSandboxResources(request)
    said = node.runtime.PodSandboxStatus(cri.PodSandboxStatusRequest(pod_sandbox_id=sandbox, verbose=True))
    shown = {"overhead": {"memoryLimit": MIB}, "resources": {"cpuShares": 204}}
    assert json.loads(said.info["resources"]) == shown
    assert len(said.status.annotations["example.com/a"]) == limits.ENTRIES - 20


@pytest.mark.full
def test_out_of_memory(node):
    sandbox = node.run()
    command = ("sh", "-c", "exec tail -c 200m /dev/zero")
    config = with_resources(node, *command, memory_limit_in_bytes=8 * MIB, memory_swap_limit_in_bytes=8 * MIB)
    container = node.create(sandbox, config)
    node.start(container)
    ended = node.wait_exited(container)
    assert (ended.exit_code, ended.reason) == (137, "OOMKilled")
