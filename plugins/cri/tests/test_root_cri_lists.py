"""kurmad opens no file for lists of an unchanged node, and none of an image for ImageFsInfo (C11, C20)."""

import re
import signal
import subprocess

import pytest
from kurma_cri.proto import runtime_pb2 as cri

from tests.kit.waiting import until

pytestmark = pytest.mark.root


def test_an_unchanged_node_is_listed_without_its_disk(node, tmp_path):
    empty = node.run(host_network=False)
    sandboxes = [node.run(host_network=number > 1) for number in range(3)]
    for sandbox in sandboxes:
        node.started(sandbox, "sleep", "1000")
        node.create(sandbox, node.container_config("true", name="created"))
    runtime = node.runtime

    def lists():
        found = len(runtime.ListPodSandbox(cri.ListPodSandboxRequest()).items)
        listed = len(runtime.ListContainers(cri.ListContainersRequest()).containers)
        streamed = sum(
            len(one.pod_sandboxes) for one in runtime.StreamPodSandboxes(cri.StreamPodSandboxesRequest())
        )
        more = sum(len(one.containers) for one in runtime.StreamContainers(cri.StreamContainersRequest()))
        return found, listed, streamed, more

    def traced(call):
        """The system calls of kurmad meanwhile that have paths, or read directories: a line for each."""
        file = tmp_path / "calls"
        words = ["strace", "-f", "-e", "trace=%file,getdents64,fsync", "-o", str(file)]
        with subprocess.Popen(
            [*words, "-p", str(node.daemon.process.pid)], stderr=subprocess.PIPE, text=True
        ) as strace:
            line = strace.stderr.readline()
            assert "attached" in line, line
            call()
            strace.send_signal(signal.SIGINT)
            strace.communicate(timeout=20)
        return [line for line in file.read_text().splitlines() if not re.search(r" (---|\+\+\+) ", line)]

    until(lambda: lists() == (4, 6, 4, 6))
    assert traced(lambda: [lists() for _ in range(20)]) == []
    assert traced(lambda: node.sandbox_status(empty)) != [], "the trace misses no call"
    # The use of the file system of images is counted when they are stored, and not by their files.
    calls = traced(lambda: node.images.ImageFsInfo(cri.ImageFsInfoRequest()))
    assert [line for line in calls if "/rootfs" in line] == []
    assert len(calls) < 60, calls


def test_a_whole_list_follows_each_change(node):
    """The service keeps the answers of lists without a condition while nothing changes (C11)."""
    runtime = node.runtime

    def lists():
        sandboxes = runtime.ListPodSandbox(cri.ListPodSandboxRequest()).items
        containers = runtime.ListContainers(cri.ListContainersRequest()).containers
        again = runtime.ListContainers(cri.ListContainersRequest()).containers
        assert again == containers
        return {one.id: one.state for one in (*sandboxes, *containers)}

    before = lists()
    sandbox = node.run(host_network=False)
    changed = before | {sandbox: cri.SANDBOX_READY}
    assert lists() == changed
    container = node.create(sandbox, node.container_config("sleep", "1000"))
    assert lists() == changed | {container: cri.CONTAINER_CREATED}
    node.start(container)
    assert lists() == changed | {container: cri.CONTAINER_RUNNING}
    runtime.StopContainer(cri.StopContainerRequest(container_id=container))
    assert lists() == changed | {container: cri.CONTAINER_EXITED}
    runtime.RemoveContainer(cri.RemoveContainerRequest(container_id=container))
    assert lists() == changed
    namespace = next(one for one in node.house.client.pods() if one.name == f"k8s-{sandbox}").network_namespace
    subprocess.run(["umount", namespace], check=True)
    assert lists() == before | {sandbox: cri.SANDBOX_NOTREADY}
    runtime.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=sandbox))
    assert lists() == before
