"""IDs and times of creation of sandboxes and containers (C2, C7, C7a)."""

import grpc
import pytest
from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.records import Records

from plugins.cri.tests.conftest import refused

pytestmark = pytest.mark.root
CODES = grpc.StatusCode
HEX = frozenset("0123456789abcdef")


def test_times_of_creation_rise_where_the_clock_is_set_back(node):
    """Also after a restart, when only the records of the pods tell of earlier times."""
    sandbox = node.run()
    container = node.create(sandbox, node.container_config("true"))
    assert node.sandbox_status(sandbox).created_at < node.status(container).created_at
    records = Records(node.house.client, clock=lambda: 1000)
    times = [records.now() for _ in range(3)]
    assert times == sorted({*times, node.status(container).created_at})[1:]
    ahead = iter((times[-1] + 500, 2000))
    records = Records(node.house.client, clock=lambda: next(ahead))
    first = records.now()
    assert (first, records.now()) == (times[-1] + 500, first + 1)


def test_beginnings_of_ids(node):
    """An unambiguous one is accepted. An ambiguous one names nothing, and ends nothing."""
    sandboxes = [node.run() for _ in range(17)]
    assert all(len(one) == 64 and HEX.issuperset(one) for one in sandboxes)
    first = next(digit for digit in sorted(HEX) if sum(one.startswith(digit) for one in sandboxes) > 1)
    both = [one for one in sandboxes if one.startswith(first)]
    with refused(CODES.INVALID_ARGUMENT, "ambiguous", f"{len(both)} IDs"):
        node.sandbox_status(first)
    for call, request in (
        (node.runtime.StopPodSandbox, cri.StopPodSandboxRequest(pod_sandbox_id=first)),
        (node.runtime.RemovePodSandbox, cri.RemovePodSandboxRequest(pod_sandbox_id=first)),
    ):
        with refused(CODES.INVALID_ARGUMENT, "ambiguous"):
            call(request)
    assert {node.sandbox_status(one).state for one in both} == {cri.SANDBOX_READY}
    assert node.sandbox_status(both[0][:12]).id == both[0]
    container = node.create(both[0][:12], node.container_config("sleep", "1000"))
    assert node.status(container[:12]).id == container
    node.start(container[:12])
    node.runtime.StopContainer(cri.StopContainerRequest(container_id=container[:12]))
    assert node.status(container).state == cri.CONTAINER_EXITED
    node.runtime.RemoveContainer(cri.RemoveContainerRequest(container_id=container[:12]))
    with refused(CODES.NOT_FOUND, container):
        node.status(container)
    node.runtime.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=both[0][:12]))
    with refused(CODES.NOT_FOUND, both[0]):
        node.sandbox_status(both[0])


@pytest.mark.parametrize("id", ["0" * 64, "", "no such ID", "../../etc", "x" * 5000])
def test_unknown_ids(node, id):
    """Their status is NOT_FOUND. Ends of them succeed, and everything else names them."""
    runtime = node.runtime
    node.started(node.run(), "sleep", "1000")
    runtime.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=id))
    runtime.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=id))
    runtime.StopContainer(cri.StopContainerRequest(container_id=id))
    runtime.RemoveContainer(cri.RemoveContainerRequest(container_id=id))
    for call, request in (
        (runtime.PodSandboxStatus, cri.PodSandboxStatusRequest(pod_sandbox_id=id)),
        (runtime.PodSandboxStats, cri.PodSandboxStatsRequest(pod_sandbox_id=id)),
        (runtime.PortForward, cri.PortForwardRequest(pod_sandbox_id=id)),
        (runtime.UpdatePodSandboxResources, cri.UpdatePodSandboxResourcesRequest(pod_sandbox_id=id)),
        (runtime.CreateContainer, cri.CreateContainerRequest(pod_sandbox_id=id)),
        (runtime.ContainerStatus, cri.ContainerStatusRequest(container_id=id)),
        (runtime.ContainerStats, cri.ContainerStatsRequest(container_id=id)),
        (runtime.StartContainer, cri.StartContainerRequest(container_id=id)),
        (runtime.ReopenContainerLog, cri.ReopenContainerLogRequest(container_id=id)),
        (runtime.ExecSync, cri.ExecSyncRequest(container_id=id, cmd=["true"])),
        (runtime.Exec, cri.ExecRequest(container_id=id, cmd=["true"], stdout=True)),
        (runtime.Attach, cri.AttachRequest(container_id=id, stdout=True)),
        (
            runtime.UpdateContainerResources,
            cri.UpdateContainerResourcesRequest(container_id=id, linux=cri.LinuxContainerResources(cpu_shares=2)),
        ),
    ):
        with refused(CODES.NOT_FOUND):
            call(request)
    running = cri.ContainerFilter(state=cri.ContainerStateValue(state=cri.CONTAINER_RUNNING))
    assert len(runtime.ListContainers(cri.ListContainersRequest(filter=running)).containers) == 1
