"""The life of sandboxes and containers over the socket of a real kurmad (C2, C6, C7, C8a, C9, C11)."""

import concurrent.futures
import os
import stat
import subprocess

import grpc
import pytest
from kurma_cri.proto import runtime_pb2 as cri

from plugins.cri.tests.conftest import refused

pytestmark = pytest.mark.root
CODES = grpc.StatusCode


def pods(node):
    """Directories of pods and names, without those of prestarted pods."""
    return [name for name in node.house.kept() if not name.startswith(".")]


def test_one_pod_with_one_container(node):
    before = pods(node)
    mode = os.stat(node.socket).st_mode
    assert (stat.S_IMODE(mode), os.stat(node.socket).st_uid) == (0o600, 0)
    sandbox = node.run(labels={"app": "web"}, annotations={"example.com/note": "as given"})
    status = node.sandbox_status(sandbox)
    assert (status.state, len(sandbox)) == (cri.SANDBOX_READY, 64)
    assert (status.labels, status.annotations) == ({"app": "web"}, {"example.com/note": "as given"})

    container = node.create(
        sandbox,
        node.container_config(
            "sh", "-c", "echo $GREETING; exit 3", envs=[cri.KeyValue(key="GREETING", value=b"hello")]
        ),
    )
    created = node.status(container)
    assert (created.state, created.started_at, created.finished_at) == (cri.CONTAINER_CREATED, 0, 0)
    node.start(container)
    ended = node.wait_exited(container)
    assert (ended.exit_code, ended.reason) == (3, "Error")
    assert created.created_at < ended.started_at < ended.finished_at
    assert node.output(container) == ["hello"]
    with refused(CODES.FAILED_PRECONDITION, "started before"):
        node.start(container)

    running = node.started(sandbox, "sleep", "1000", name="second")
    status = node.status(running)
    assert (status.state, status.started_at > 0, status.finished_at) == (cri.CONTAINER_RUNNING, True, 0)
    node.runtime.StopContainer(cri.StopContainerRequest(container_id=running, timeout=0))
    assert node.status(running).exit_code in (137, 143)
    for _ in range(2):
        node.runtime.RemoveContainer(cri.RemoveContainerRequest(container_id=running))
    with refused(CODES.NOT_FOUND):
        node.status(running)

    for _ in range(2):
        node.runtime.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=sandbox))
    assert node.sandbox_status(sandbox).state == cri.SANDBOX_NOTREADY
    assert node.status(container).exit_code == 3
    for _ in range(2):
        node.runtime.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=sandbox))
    with refused(CODES.NOT_FOUND):
        node.sandbox_status(sandbox)
    assert pods(node) == before


def test_listings_and_filters(node):
    one, two = node.run(labels={"app": "one", "tier": "x"}), node.run(labels={"app": "two", "tier": "x"})
    container = node.create(one, node.container_config("true", labels={"role": "main"}))
    node.create(two, node.container_config("true"))

    def sandboxes(**wanted):
        request = cri.ListPodSandboxRequest(filter=cri.PodSandboxFilter(**wanted))
        found = [item.id for item in node.runtime.ListPodSandbox(request).items]
        stream = cri.StreamPodSandboxesRequest(filter=request.filter)
        assert found == [
            item.id for some in node.runtime.StreamPodSandboxes(stream) for item in some.pod_sandboxes
        ]
        return found

    def containers(**wanted):
        request = cri.ListContainersRequest(filter=cri.ContainerFilter(**wanted))
        return [item.id for item in node.runtime.ListContainers(request).containers]

    assert sandboxes() == [one, two]
    assert sandboxes(label_selector={"tier": "x", "app": "two"}) == [two]
    assert sandboxes(id=one[:12]) == [one]
    assert sandboxes(state=cri.PodSandboxStateValue(state=cri.SANDBOX_NOTREADY)) == []
    assert containers(pod_sandbox_id=one) == [container]
    assert containers(label_selector={"role": "main"}) == [container]
    assert containers(id=container[:13], state=cri.ContainerStateValue(state=cri.CONTAINER_RUNNING)) == []
    assert node.status(container[:12]).id == container


def test_refusals(node):
    with refused(CODES.INVALID_ARGUMENT, "metadata"):
        node.run(cri.PodSandboxConfig())
    config = node.sandbox_config()
    with refused(CODES.INVALID_ARGUMENT, "'nobody'", "runtime handler"):
        node.run(config, handler="nobody")
    sandbox = node.run(config)
    with refused(CODES.ALREADY_EXISTS, sandbox):
        node.run(config)
    node.create(sandbox, node.container_config("true"))
    with refused(CODES.ALREADY_EXISTS, "main"):
        node.create(sandbox, node.container_config("true"))
    with refused(CODES.NOT_FOUND):
        node.create("0" * 64, node.container_config("true"))
    for call, request in (
        (node.runtime.CheckpointContainer, cri.CheckpointContainerRequest()),
        (node.runtime.CheckpointPod, cri.CheckpointPodRequest()),
        (node.runtime.RestorePod, cri.RestorePodRequest()),
    ):
        with refused(CODES.UNIMPLEMENTED, "checkpoint"):
            call(request)


def test_values_that_mean_nothing(node):
    """Each is the caller's mistake, and named."""
    for words, fields in (
        ("hostname", {"hostname": "bad host!\nx"}),
        ("hostname", {"hostname": "x" * 65}),
        ("servers", {"dns_config": cri.DNSConfig(servers=["1.2.3.4\nnameserver 6.6.6.6"])}),
        ("host_ip", {"port_mappings": [cri.PortMapping(container_port=1, host_port=1, host_ip="1.2.3.999")]}),
        ("protocol", {"port_mappings": [cri.PortMapping(container_port=1, host_port=1, protocol=9)]}),
    ):
        with refused(CODES.INVALID_ARGUMENT, words):
            node.run(node.sandbox_config(host_network=False, **fields))
    sandbox = node.run()
    with refused(CODES.INVALID_ARGUMENT, "stop_signal"):
        node.create(sandbox, node.container_config("true", stop_signal=200))
    config = node.container_config("true")
    config.linux.security_context.namespace_options.pid = 7
    with refused(CODES.INVALID_ARGUMENT, "pid"):
        node.create(sandbox, config)
    other = node.run()
    assert node.sandbox_status(other).id == other
    with refused(CODES.INVALID_ARGUMENT, "annotations"):
        node.runtime.UpdateContainerResources(
            cri.UpdateContainerResourcesRequest(container_id="0" * 64, annotations={"a": "b"})
        )


def test_commands_at_the_same_time(node):
    """None loses its cgroup to another; each ends with its own code."""
    container = node.started(node.run(), "sleep", "1000")

    def run(number):
        request = cri.ExecSyncRequest(container_id=container, cmd=["sh", "-c", f"exit {number}"], timeout=20)
        return node.runtime.ExecSync(request).exit_code

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(run, range(40))) == list(range(40))


def test_a_program_that_cannot_be_executed(node):
    sandbox = node.run()
    container = node.create(sandbox, node.container_config("/no/such/program"))
    with refused(CODES.INTERNAL, "/no/such/program"):
        node.start(container)
    status = node.status(container)
    assert (status.state, status.exit_code, status.reason) == (cri.CONTAINER_EXITED, 128, "StartError")
    assert status.finished_at > 0


def test_a_sandbox_that_has_lost_its_network_namespace(node):
    sandbox = node.run(host_network=False)
    status = node.sandbox_status(sandbox)
    assert (status.state, bool(status.network.ip)) == (cri.SANDBOX_READY, True)
    ready = cri.PodSandboxFilter(state=cri.PodSandboxStateValue(state=cri.SANDBOX_READY))
    request = cri.ListPodSandboxRequest(filter=ready)
    assert [item.id for item in node.runtime.ListPodSandbox(request).items] == [sandbox]
    (pod,) = node.house.client.pods()
    subprocess.run(["umount", pod.network_namespace], check=True)
    assert not node.runtime.ListPodSandbox(request).items
    assert node.sandbox_status(sandbox).state == cri.SANDBOX_NOTREADY


def test_version_and_status(node):
    version = node.runtime.Version(cri.VersionRequest())
    assert (version.version, version.runtime_name, version.runtime_api_version) == ("0.1.0", "kurma", "v1")
    status = node.runtime.Status(cri.StatusRequest(verbose=True))
    assert {one.type for one in status.status.conditions} == {"RuntimeReady", "NetworkReady"}
    assert [handler.name for handler in status.runtime_handlers] == [""]
