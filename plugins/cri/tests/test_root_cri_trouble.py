"""Calls that are cancelled, a full disk, and a kurmad without descriptors (C21): a call fails with a code, nothing
of it is left, and the next one works."""

import contextlib
import os
import resource

import grpc
import pytest
from kurma_cri.proto import runtime_pb2 as cri

from plugins.cri.tests.test_root_cri_network import cni, cni_node
from tests.kit.host import small_file_system
from tests.kit.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.full]
CODES = grpc.StatusCode
__all__ = ["cni", "cni_node"]


@contextlib.contextmanager
def fails():
    """:returns: a list that gets the code of the call in the block, which must fail."""
    codes = []
    with pytest.raises(grpc.RpcError) as caught:
        yield codes
    codes.append(caught.value.code())
    assert "\n" not in caught.value.details()


def sandboxes(node):
    return [item.id for item in node.runtime.ListPodSandbox(cri.ListPodSandboxRequest()).items]


def test_a_call_that_its_client_gives_up_is_undone(cni_node, cni):
    cni.write()
    node = cni_node()
    hang = cni.bin / "recorder.hang"
    hang.touch()
    config = node.sandbox_config(host_network=False)
    request = cri.RunPodSandboxRequest(config=config)
    call = node.runtime.RunPodSandbox.future(request)
    until((cni.bin / "recorder.ADD").exists, "the plugin hangs")
    call.cancel()
    with fails() as codes:
        node.runtime.RunPodSandbox(
            cri.RunPodSandboxRequest(config=node.sandbox_config(host_network=False)), timeout=1
        )
    assert codes == [CODES.DEADLINE_EXCEEDED]
    until(lambda: not node.house.client.pods(), lambda: str(node.house.client.pods()))
    until(lambda: not cni.reserved(), "the addresses are given back")
    hang.unlink()
    assert sandboxes(node) == []
    assert [node.run(config)] == sandboxes(node)


def test_a_full_disk(make_node, make_house, busybox_image, tmp_path):
    with small_file_system(tmp_path / "small", "size=96m") as path:
        section = {"config": {"socket": f"{tmp_path}/cri.sock", "network": "default"}}
        house = make_house(
            {"stop_timeout": 3, "plugins": {"services": {"cri": section}}, "daemon": {"prestarted_stagers": 0}},
            state=f"{path}/state",
        )
        house.client.stager_build("default")
        house.image = house.client.image_fetch(busybox_image).id
        node = make_node(house)
        sandbox = node.run()
        container = node.started(sandbox, "sleep", "1000")
        filler = f"{path}/filler"
        with open(filler, "ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"\0" * 4096)
        with fails():
            node.run()
        with fails():
            node.create(sandbox, node.container_config("true", name="other"))
        assert sandboxes(node) == [sandbox]
        assert node.status(container).state == cri.CONTAINER_RUNNING
        os.unlink(filler)
        assert node.wait_exited(node.started(sandbox, "true", name="other")).exit_code == 0
        assert len(sandboxes(node)) == 1
        node.clear()
        assert node.house.client.pods() == []
        node.daemon.end()


def test_no_descriptors(make_node):
    """kurmad opens no more files: calls fail, lists still answer or fail, and all is well afterwards."""
    node = make_node()
    sandbox = node.run()
    pid = node.daemon.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")), before[1]))
    with fails():
        node.run()
    with fails():
        node.create(sandbox, node.container_config("true"))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    assert sandboxes(node) == [sandbox]
    assert node.wait_exited(node.started(sandbox, "true")).exit_code == 0
