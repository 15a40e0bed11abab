"""The runtime as kubelet asks about it, handlers, and a kurmad that is killed (C2, C3, C5, C5a)."""

import contextlib
import json
import os
import re
import signal
import socket

import grpc
import pytest
from kurma_cri import security_context
from kurma_cri.proto import runtime_pb2 as cri

from plugins.cri.tests.conftest import refused
from tests.integration.pods.test_pods_moved import links, reboot
from tests.integration.stage1.conftest import BASIC, OF_APPS, PREFIX
from tests.integration.stage1.test_root_stage1_apps import SMALL
from tests.kit.images import archive, image_id
from tests.kit.waiting import until

pytestmark = pytest.mark.root
CODES = grpc.StatusCode


def test_what_the_runtime_says_of_itself(node):
    version = node.runtime.Version(cri.VersionRequest(version="v1"))
    assert re.fullmatch(r"\d+\.\d+\.\d+([-+].*)?", version.runtime_version)
    quiet, verbose = (node.runtime.Status(cri.StatusRequest(verbose=one)) for one in (False, True))
    assert quiet.info == {}
    assert json.loads(verbose.info["config"])["socket"] == node.socket
    for condition in quiet.status.conditions:
        assert re.fullmatch(r"[A-Z][A-Za-z]+", condition.reason)
        assert (condition.status, bool(condition.message)) == (True, True)
    assert (quiet.features.supplemental_groups_policy, quiet.features.mount_options) == (True, True)
    assert quiet.features.user_namespaces_host_network is False
    config = node.runtime.RuntimeConfig(cri.RuntimeConfigRequest())
    assert config.HasField("linux")
    assert config == node.runtime.RuntimeConfig(cri.RuntimeConfigRequest())
    for cidr in ("", "10.1.0.0/16"):
        update = cri.RuntimeConfig(network_config=cri.NetworkConfig(pod_cidr=cidr))
        node.runtime.UpdateRuntimeConfig(cri.UpdateRuntimeConfigRequest(runtime_config=update))


def test_handlers(make_node):
    """A handler chooses stager, user namespace and renderer; an unknown one is refused with the known ones."""
    node = make_node(handlers={"isolated": {"userns": "auto", "renderer": "copy"}})
    names = [one.name for one in node.runtime.Status(cri.StatusRequest()).runtime_handlers]
    assert sorted(names) == ["", "isolated"]
    with refused(CODES.INVALID_ARGUMENT, "'other'", "'isolated'"):
        node.run(handler="other")
    plain, isolated = node.run(), node.run(node.sandbox_config(host_network=False), handler="isolated")
    assert node.sandbox_status(plain).runtime_handler == ""
    assert node.sandbox_status(isolated).runtime_handler == "isolated"
    listed = {one.id: one for one in node.runtime.ListPodSandbox(cri.ListPodSandboxRequest()).items}
    assert listed[isolated].runtime_handler == "isolated"
    container = node.started(isolated, "sh", "-c", "cat /proc/self/uid_map; exec sleep 1000")
    until(lambda: node.output(container), "its output")
    assert node.output(container)[0].split()[:2] != ["0", "0"]
    pod = next(pod for pod in node.house.client.pods() if pod.name.endswith(isolated))
    assert pod.renderer == "copy"
    image = cri.ImageSpec(image=node.house.image, runtime_handler="other")
    with refused(CODES.INVALID_ARGUMENT, "'other'"):
        node.images.ImageStatus(cri.ImageStatusRequest(image=image))


def test_large_requests(node):
    """Kubelet sends up to 16 MiB."""
    selector = {str(number): "x" * 1000 for number in range(9000)}
    request = cri.ListContainersRequest(filter=cri.ContainerFilter(label_selector=selector))
    assert request.ByteSize() > 9_000_000
    with refused(CODES.INVALID_ARGUMENT, "label_selector"):
        node.runtime.ListContainers(request)


def test_messages_that_are_not_set(node):
    """A sandbox of metadata alone has the node's name and resolvers, and the pod's own network."""
    metadata = cri.PodSandboxMetadata(name="bare", namespace="default", uid="uid-bare")
    sandbox = node.run(cri.PodSandboxConfig(metadata=metadata))
    assert node.sandbox_status(sandbox).network.ip
    container = node.started(sandbox, "sh", "-c", "hostname; cat /etc/resolv.conf")
    node.wait_exited(container)
    name, *resolvers = "\n".join(node.output(container)).splitlines()
    with open("/etc/resolv.conf") as file:
        assert (name, resolvers) == (socket.gethostname(), file.read().splitlines())


def everything(node):
    """All that is told of sandboxes and containers."""
    sandboxes = node.runtime.ListPodSandbox(cri.ListPodSandboxRequest()).items
    containers = node.runtime.ListContainers(cri.ListContainersRequest()).containers
    return (
        list(sandboxes),
        [node.sandbox_status(one.id) for one in sandboxes],
        list(containers),
        [node.status(one.id) for one in containers],
    )


def test_a_kurmad_that_is_killed_has_lost_nothing(make_node, kurmad, tmp_path):
    """The same IDs, times and exit codes; new times of creation come after the old ones."""
    node = make_node()
    sandbox = node.run(node.sandbox_config(labels={"a": "b"}, annotations={"c": "d"}, log_directory=str(tmp_path)))
    stopped = node.run()
    node.runtime.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=stopped))
    node.wait_exited(node.started(sandbox, "sh", "-c", "exit 7", name="ended", log_path="ended.log"))
    running = node.started(sandbox, "sleep", "1000", name="running")
    latest = node.create(sandbox, node.container_config("true", name="created"))
    before = everything(node)
    node.kill()
    node.restart(kurmad)
    assert everything(node) == before
    assert node.sandbox_status(node.run()).created_at > node.status(latest).created_at

    # The stager and the app end while no kurmad watches them.
    pod = next(pod for pod in node.house.client.pods() if pod.name.endswith(sandbox))
    node.kill()
    os.kill(pod.stager_pid, signal.SIGKILL)
    node.restart(kurmad)
    assert node.sandbox_status(sandbox).state == cri.SANDBOX_NOTREADY
    lost = node.status(running)
    assert (lost.state, lost.exit_code, lost.reason) == (cri.CONTAINER_EXITED, 255, "Unknown")
    assert lost.finished_at > lost.started_at > 0
    assert node.status(before[2][0].id).exit_code == 7


@pytest.mark.full
def test_after_a_reboot_of_the_node(make_node, kurmad):
    """Sandboxes are not ready, ends that were not seen are unknown ones; kubelet makes the pod again."""
    before = links()
    node = make_node()
    config = node.sandbox_config("web", host_network=False)
    sandbox = node.run(config)
    ended = node.started(sandbox, "sh", "-c", "exit 7", name="ended")
    node.wait_exited(ended)
    running = node.started(sandbox, "sleep", "1000", name="running")
    first = node.status(running)
    created_at = node.sandbox_status(sandbox).created_at
    (pod,) = node.house.client.pods()
    node.kill()
    reboot(node.house, pod.uuid, before)
    node.restart(kurmad)
    status = node.sandbox_status(sandbox)
    assert (status.state, status.network.ip, status.created_at) == (cri.SANDBOX_NOTREADY, "", created_at)
    lost = node.status(running)
    assert (lost.state, lost.exit_code, lost.reason) == (cri.CONTAINER_EXITED, 255, "Unknown")
    assert (lost.created_at, lost.started_at) == (first.created_at, first.started_at)
    assert lost.finished_at > lost.started_at
    assert node.status(ended).exit_code == 7
    # As kubelet goes on.
    node.runtime.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=sandbox))
    config.metadata.attempt = 1
    again = node.run(config)
    assert node.sandbox_status(again).network.ip
    assert node.sandbox_status(again).created_at > lost.created_at
    assert node.wait_exited(node.started(again, "true")).exit_code == 0
    node.clear()
    assert node.house.client.pods() == []


def kubelets(directory):
    """The fields that kubelet sets for every container."""
    resources = cri.LinuxContainerResources(cpu_period=100_000, cpu_shares=2, oom_score_adj=1000)
    resources.hugepage_limits.add(page_size="2MB", limit=0)
    context = cri.LinuxContainerSecurityContext(
        seccomp=cri.SecurityProfile(profile_type=cri.SecurityProfile.Unconfined),
        masked_paths=sorted(security_context._KUBELETS["kurma.io/masked-paths"]),
        readonly_paths=sorted(security_context._KUBELETS["kurma.io/read-only-paths"]),
        namespace_options=cri.NamespaceOption(network=cri.NODE, pid=cri.CONTAINER),
    )
    return {
        "linux": cri.LinuxContainerConfig(resources=resources, security_context=context),
        "log_path": "main/0.log",
        "mounts": [cri.Mount(container_path="/run/account", host_path=f"{directory}/account", readonly=True)],
        "envs": [cri.KeyValue(key="KUBERNETES_SERVICE_HOST", value=b"10.0.0.1")],
        "labels": {"io.kubernetes.container.name": "main"},
        "annotations": {"io.kubernetes.container.hash": "1"},
    }


def test_what_kubelet_sets_for_every_container(node, tmp_path):
    (tmp_path / "account").mkdir()
    (tmp_path / "account" / "token").write_text("secret\n")
    config = node.sandbox_config(log_directory=f"{tmp_path}/logs")
    config.linux.security_context.namespace_options.pid = cri.CONTAINER
    script = "echo $$; cat /run/account/token /proc/self/oom_score_adj; touch /run/account/x 2>/dev/null || exit 7"
    container = node.started(node.run(config), "sh", "-c", script, **kubelets(tmp_path))
    ended = node.wait_exited(container)
    assert (ended.exit_code, ended.log_path) == (7, f"{tmp_path}/logs/main/0.log")
    with open(ended.log_path) as file:
        assert [line.split(" ", 3)[3] for line in file.read().splitlines()] == ["1", "secret", "1000"]
    assert ended.annotations == {"io.kubernetes.container.hash": "1"}


def test_a_stage1_of_rkt_as_a_handler(make_node, make_house, tmp_path):
    """A RuntimeClass may choose it. Its containers come and go by the entrypoints of the image."""
    entrypoints = {f"{PREFIX}{one}": f"/ex/{one}" for one in (*BASIC, *OF_APPS[:4])}
    notes = {**entrypoints, f"{PREFIX}interface-version": "5"}
    annotations = [{"name": name, "value": text} for name, text in notes.items()]
    path = archive(str(SMALL), str(tmp_path / "small.aci"), "example.com/small", annotations=annotations)
    handlers = {"rkt": {"stager": "small"}, "image": {"stager": f"rkt:{path}"}}
    section = {"socket": f"{tmp_path}/cri.sock", "network": "default", "handlers": handlers}
    house = make_house({
        "stop_timeout": 3,
        "plugins": {"services": {"cri": {"config": section}}},
        "stagers": {
            "small": {"driver": "rkt", "image": path, "without_isolators": True},
            "rkt": {"driver": "rkt", "without_isolators": True},
        },
        "host_image_digests": {path: image_id(path)},
    })  # fmt: skip
    node = make_node(house)
    features = {one.name: one.features for one in node.runtime.Status(cri.StatusRequest()).runtime_handlers}
    assert features["rkt"] == features["image"] == cri.RuntimeHandlerFeatures()
    assert features[""].user_namespaces is True
    config = node.sandbox_config(log_directory=f"{tmp_path}/logs")
    config.linux.security_context.namespace_options.pid = cri.CONTAINER
    sandbox = node.run(config, "rkt")
    status = node.sandbox_status(sandbox)
    assert (status.state, status.runtime_handler) == (cri.SANDBOX_READY, "rkt")
    (pod,) = node.house.client.pods()
    assert pod.stager == "small"
    (tmp_path / "account").mkdir()
    (tmp_path / "account" / "token").write_text("secret\n")
    usual = kubelets(tmp_path)

    def started(*command, name):
        return node.started(sandbox, *command, name=name, **usual)

    running = started("/bin/sleep", "1000", name="running")
    ended = started("/bin/sh", "-c", "read word < /run/account/token; test $word = secret && exit 7", name="ended")
    assert node.wait_exited(ended).exit_code == 7
    assert node.status(running).state == cri.CONTAINER_RUNNING
    answer = node.runtime.ExecSync(cri.ExecSyncRequest(container_id=running, cmd=["echo", "inside"]))
    assert (answer.exit_code, answer.stdout) == (0, b"inside\n")
    with refused(CODES.INTERNAL, "cannot limit the time"):
        node.runtime.ExecSync(cri.ExecSyncRequest(container_id=running, cmd=["true"], timeout=1))
    linux = cri.LinuxContainerConfig(resources=cri.LinuxContainerResources(memory_limit_in_bytes=64 << 20))
    with refused(CODES.INVALID_ARGUMENT, "resources.memory_limit_in_bytes"):
        node.create(sandbox, node.container_config("true", name="limited", linux=linux))
    for limit, answer in (
        (0, contextlib.nullcontext()),
        (1 << 30, refused(CODES.INVALID_ARGUMENT, "memory_limit")),
    ):
        with answer:
            given = cri.LinuxContainerResources(cpu_shares=4, memory_limit_in_bytes=limit)
            update = cri.UpdateContainerResourcesRequest(container_id=running, linux=given)
            node.runtime.UpdateContainerResources(update)
    assert node.status(running).log_path == ""
    node.runtime.ReopenContainerLog(cri.ReopenContainerLogRequest(container_id=running))
    node.runtime.StopContainer(cri.StopContainerRequest(container_id=running, timeout=3))
    assert node.status(running).state == cri.CONTAINER_EXITED
    node.runtime.RemoveContainer(cri.RemoveContainerRequest(container_id=running))
    other = node.run(node.sandbox_config(log_directory=f"{tmp_path}/logs"), "image")
    assert node.wait_exited(node.started(other, "/bin/sh", "-c", "exit 6", **usual)).exit_code == 6
    node.clear()
    assert node.house.client.pods() == []
