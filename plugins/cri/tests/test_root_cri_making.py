"""Sandboxes and containers that a call is still making: not listed, found, removed or doubled (C6, C7, C10)."""

import grpc
import pytest
from kurma_cri.container_request import container_request
from kurma_cri.images import Images
from kurma_cri.options import OPTIONS, Options
from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.records import Records
from kurma_cri.rpc import RpcError
from kurma_cri.sandbox_request import sandbox_request

from kurma_core.pods.record.pod_directory import PodDirectory
from plugins.cri.tests.conftest import refused
from plugins.cri.tests.test_root_cri_events import Reader, told
from plugins.cri.tests.test_root_cri_network import cni, cni_node
from tests.kit.waiting import until

pytestmark = pytest.mark.root
CODES = grpc.StatusCode
__all__ = ["cni", "cni_node"]


def sandboxes(node):
    return [one.id for one in node.runtime.ListPodSandbox(cri.ListPodSandboxRequest()).items]


def containers(node):
    return [one.id for one in node.runtime.ListContainers(cri.ListContainersRequest()).containers]


def test_a_sandbox_whose_network_is_not_up(cni_node, cni):
    cni.write()
    node = cni_node(timeout=100.0)
    reader = Reader(node)
    hang = cni.bin / "recorder.hang"
    hang.touch()
    request = cri.RunPodSandboxRequest(config=node.sandbox_config("web", host_network=False))
    first = node.runtime.RunPodSandbox.future(request)
    until((cni.bin / "recorder.ADD").exists, "the plugin hangs")
    (pod,) = node.house.client.pods()
    id = pod.name.removeprefix("k8s-")
    assert sandboxes(node) == []
    with refused(CODES.NOT_FOUND, id):
        node.sandbox_status(id)
    node.runtime.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=id))
    node.runtime.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=id))
    second = node.runtime.RunPodSandbox.future(request)
    with refused(CODES.DEADLINE_EXCEEDED):
        node.runtime.RunPodSandbox(request, timeout=0.3)
    assert len(node.house.client.pods()) == 1
    # Other calls do not wait.
    other = node.run(name="other")
    assert sandboxes(node) == [other]
    hang.unlink()
    assert first.result(20).pod_sandbox_id == id
    with refused(CODES.ALREADY_EXISTS, id, "default/web"):
        second.result(20)
    assert sorted(sandboxes(node)) == sorted([id, other])
    assert node.sandbox_status(id).state == cri.SANDBOX_READY
    assert len(node.house.client.pods()) == 2

    # One that was given up has never existed for readers of events.
    (cni.bin / "recorder.ADD").unlink()
    hang.touch()
    call = node.runtime.RunPodSandbox.future(
        cri.RunPodSandboxRequest(config=node.sandbox_config("never", host_network=False))
    )
    until((cni.bin / "recorder.ADD").exists, "the plugin hangs")
    call.cancel()
    until(lambda: len(node.house.client.pods()) == 2, "the end of the third")
    hang.unlink()
    last = node.run(name="last")
    names = []
    while not names or names[-1] != (last, "started"):
        names.append(told(reader.next()))
    assert {who for who, _ in names} == {other, id, last}
    reader.close()


def test_a_container(node):
    """While its sandbox is being changed, a second call for it is told so, and a cancelled one leaves nothing."""
    sandbox = node.run()
    pod = next(pod for pod in node.house.client.pods() if pod.name.endswith(sandbox))
    request = cri.CreateContainerRequest(pod_sandbox_id=sandbox, config=node.container_config("sleep", "1000"))
    with PodDirectory(node.house.path(pod)).apps_lock(20):
        calls = [node.runtime.CreateContainer.future(request) for _ in range(2)]
        until(lambda: any(call.done() for call in calls), "one is refused")
        (refusal,) = (call for call in calls if call.done())
        assert refusal.code() == CODES.UNAVAILABLE
        assert "'main' and attempt 0 is being created" in refusal.details()
        assert containers(node) == []
    (first,) = (call for call in calls if call is not refusal)
    container = first.result(20).container_id
    assert containers(node) == [container]
    with PodDirectory(node.house.path(pod)).apps_lock(20):
        config = node.container_config("true", name="other")
        given_up = node.runtime.CreateContainer.future(
            cri.CreateContainerRequest(pod_sandbox_id=sandbox, config=config)
        )
        given_up.cancel()

    def created():
        """Once the first call is undone."""
        try:
            return node.create(sandbox, config)
        except grpc.RpcError as error:
            if error.code() != CODES.UNAVAILABLE:
                raise
            return None

    other = until(created, "the second call")
    assert containers(node) == [container, other]


def test_records_of_what_is_being_made(node):
    client = node.house.client.managing()
    records = Records(client)
    sandbox = records.sandbox(node.run())
    with records.making() as id:
        image = Images(client).run_image(node.house.image)
        config = node.container_config("true")
        client.app_add(sandbox.pod.uuid, container_request(id, sandbox, config, image, {}, records.now()))
        sandbox = records.sandbox(sandbox.id)
        assert records.containers() == records.containers_of(sandbox) == []
        with pytest.raises(RpcError, match="there is no container"):
            records.container(id)
    assert [one.id for one in records.containers()] == [records.container(id[:12]).id] == [id]

    options = Options.read({option.name: option.default for option in OPTIONS})
    with records.making() as other:
        request = sandbox_request(other, node.sandbox_config(), options.handlers[""], records.now(), options)
        client.prepare(request)
        assert [one.id for one in records.sandboxes()] == [sandbox.id]
        with pytest.raises(RpcError, match="there is no pod sandbox"):
            records.sandbox(other)
    assert [one.id for one in records.sandboxes()] == [sandbox.id, other]
