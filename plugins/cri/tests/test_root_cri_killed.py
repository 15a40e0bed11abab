"""kurmad is killed (SIGKILL) at each step of each call; a kubelet-like client repeats its calls, and ends with
exactly the sandboxes and containers that it wanted (C2, C21)."""

import os
import threading

import pytest
from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.proto import runtime_pb2_grpc as services

from kurma_core.linux.cgroups import GUEST, CgroupTree, find_guests
from kurma_core.pods.run.launch import STEPS
from plugins.cri.tests.kubelet import Kubelet
from tests.integration.pods.test_pods_crash import assert_nothing_left
from tests.kit.kurmad import ended
from tests.kit.registry import BUSYBOX, OciDir, layer_tar, running_registry
from tests.kit.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.full]

_APPS, _MANAGER = "kurma_core.pods.change.app_changes:PodApps", "kurma_core.pods.manager:PodManager"
_DIRECTORY = "kurma_core.pods.record.pod_directory:PodDirectory"
_OWNED, _STORE = "kurma_core.pods.run.owner:OwnedPod", "kurma_core.pods.record.pod_store:PodStore"
_CRI = "kurma_cri"
#: The cgroup in which these sandboxes have their own. It stays, as kubelet's does.
TOP = f"kurmatest{os.getpid()}"
OWN_PIDS = cri.NamespaceOption(pid=cri.CONTAINER)


def around(*functions):
    return [(when, function) for function in functions for when in ("entering", "leaving")]


POINTS = {
    "run": [
        *around(f"{_CRI}.sandboxes:Sandboxes.run", f"{_MANAGER}.prepare_to_start", f"{_OWNED}.start"),
        *(("before", step.name) for step in STEPS),
        ("after", STEPS[-1].name),
    ],
    "create": [
        *around(
            f"{_CRI}.containers:Containers.create", f"{_APPS}._add", f"{_APPS}._commit", f"{_APPS}._finish_change"
        ),
        ("leaving", f"{_DIRECTORY}.write_pod"),
    ],
    "start": around(f"{_CRI}.containers:Containers.start", f"{_APPS}.start"),
    "update": [
        *around(f"{_APPS}.update", f"{_APPS}._commit"),
        ("leaving", f"{_DIRECTORY}.write_pod"),
    ],
    "stop": around(f"{_CRI}.containers:Containers.stop", f"{_APPS}.stop"),
    "remove": around(f"{_CRI}.containers:Containers.remove", f"{_APPS}.remove", f"{_APPS}._finish_change"),
    "calls": around(
        f"{_CRI}.sandboxes:Sandboxes.update_resources",
        f"{_CRI}.containers:Containers.reopen_log",
        f"{_APPS}.reopen_log",
        f"{_CRI}.containers:Containers.exec_sync",
    ),
    "image": around(
        f"{_CRI}.image_service:ImageService.PullImage",
        f"{_CRI}.image_service:ImageService.RemoveImage",
        "kurma_core.image_store.store:ImageStore.add_layer",
        "kurma_core.image_store.store:ImageStore.add_layered",
        "kurma_core.image_store.store:ImageStore.remove",
    ),
    "end": [
        *around(f"{_CRI}.sandboxes:Sandboxes.stop", f"{_CRI}.sandboxes:Sandboxes.remove", f"{_OWNED}.finish"),
        *(("undoing", step.name) for step in STEPS),
        *around(f"{_STORE}.delete"),
    ],
}


class Killed:
    """A node whose kurmad dies at points, and comes again."""

    def __init__(self, make_house, make_kurmad, socket, points):
        section = {"config": {"socket": socket, "network": "default"}}
        self.house = make_house(
            {"stop_timeout": 3, "plugins": {"services": {"cri": section}}, "daemon": {"prestarted_stagers": 0}}
        )
        self._make = make_kurmad
        self._points = points
        self.daemon = make_kurmad(house=self.house, faults=points)
        self.kubelet = Kubelet(socket)

    def dies(self, point, wish):
        """Once, at that point, while the client has its wish fulfilled. :returns: the wish's result."""
        results = []
        caller = threading.Thread(target=lambda: results.append(wish()), daemon=True)
        with self.daemon.armed(point):
            caller.start()
        self.daemon = self._make(house=self.house, faults=self._points)
        caller.join(60)
        assert results, (point, self.kubelet.errors[-3:])
        return results[0]


def config_of(name, attempt=0):
    metadata = cri.PodSandboxMetadata(name=name, namespace="default", uid=f"uid-{name}", attempt=attempt)
    linux = cri.LinuxPodSandboxConfig(cgroup_parent=f"/{TOP}/{name}")
    return cri.PodSandboxConfig(metadata=metadata, linux=linux)


@pytest.fixture
def node(make_house, kurmad, tmp_path):
    made = []

    def make(name):
        made.append(Killed(make_house, kurmad, f"{tmp_path}/cri.sock", POINTS[name]))
        return made[-1]

    yield make
    for one in made:
        one.kubelet.close()
        ended(one.daemon)
    CgroupTree(TOP).remove()


def container_of(node, name, attempt=0):
    script = "trap 'exit 7' TERM; echo begun; while :; do sleep 0.05; done"
    return cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name=name, attempt=attempt),
        image=cri.ImageSpec(image=node.house.image),
        command=["sh", "-c", script],
        linux=cri.LinuxContainerConfig(
            security_context=cri.LinuxContainerSecurityContext(namespace_options=OWN_PIDS)
        ),
    )


def finish(node, before):
    """Nothing is left of any pod."""
    until(lambda: [pod.name for pod in node.house.client.pods()] == [], lambda: str(node.house.client.pods()))
    for uuid in before:
        assert_nothing_left(uuid)
        assert find_guests(f"{GUEST}{uuid}") == []


def pods(node):
    return {pod.uuid for pod in node.house.client.pods()}


def test_run_pod_sandbox(node):
    node = node("run")
    uuids = set()
    for number, point in enumerate(POINTS["run"]):
        config = config_of(f"pod-{number}")
        node.dies(point, lambda config=config: node.kubelet.sandbox(config))
        assert len(pods(node)) == 1, point
        uuids |= pods(node)
        container = node.kubelet.container(node.kubelet.sandbox(config), container_of(node, "main"))
        assert node.kubelet.status(container).state == cri.CONTAINER_RUNNING
        node.kubelet.no_sandbox(config)
    finish(node, uuids)


@pytest.mark.parametrize("call", ["create", "start", "stop", "remove"])
def test_a_container(node, call):
    """Its sandbox lives through all of it."""
    node = node(call)
    config = config_of(call)
    sandbox = node.kubelet.sandbox(config)
    for number, point in enumerate(POINTS[call]):
        one_life(node, call, point, sandbox, container_of(node, "main", number))
        assert node.kubelet.sandbox(config) == sandbox, point
    uuids = pods(node)
    node.kubelet.no_sandbox(config)
    finish(node, uuids)


def one_life(node, call, point, sandbox, config):
    """The life of a container, in which kurmad is killed once."""
    kubelet = node.kubelet

    def struck(name, wish):
        return node.dies(point, wish) if name == call else wish()

    container = struck("create" if call == "create" else "start", lambda: kubelet.container(sandbox, config))
    assert kubelet.status(container).state == cri.CONTAINER_RUNNING, point
    (pod,) = node.house.client.pods()
    # PID 1 of a namespace does not hear a signal that it does not handle.
    until(lambda: [*node.house.client.log_lines(pod.uuid, container)], lambda: f"its trap, {point}")
    struck("stop", lambda: kubelet.stop(container))
    assert kubelet.exited(container).exit_code == 7, point
    struck("remove", lambda: kubelet.remove(container))
    assert list(kubelet.containers(sandbox)) == [], point


def test_an_update(node):
    """The kernel's value, and that of the record, are the one that was wanted last."""
    node = node("update")
    config = config_of("update")
    container = node.kubelet.container(node.kubelet.sandbox(config), container_of(node, "main"))
    (uuid,) = pods(node)
    (name,) = find_guests(f"{GUEST}{uuid}")
    group = CgroupTree(f"{name}/app-{container}")
    for number, point in enumerate(POINTS["update"], 100):
        wanted = cri.LinuxContainerResources(cpu_period=50000, cpu_quota=number * 100)
        node.dies(point, lambda wanted=wanted: node.kubelet.update(container, wanted))
        assert node.kubelet.status(container).resources.linux == wanted, point
        if group.layout.of("cpu").version == 1:
            assert group.read("cpu", "cpu.cfs_quota_us") == str(number * 100), point
        else:
            assert group.read("cpu", "cpu.max") == f"{number * 100} 50000", point
    node.kubelet.no_sandbox(config)
    finish(node, {uuid})


def test_other_calls(node, tmp_path):
    """Each is repeated, and does then what it did not do before."""
    node = node("calls")
    config, main = config_of("calls"), container_of(node, "main")
    config.log_directory, main.log_path = str(tmp_path), "main.log"
    sandbox = node.kubelet.sandbox(config)
    container = node.kubelet.container(sandbox, main)
    uuids, runtime = pods(node), node.kubelet.runtime
    wishes = {
        "update_resources": lambda: runtime.UpdatePodSandboxResources(
            cri.UpdatePodSandboxResourcesRequest(
                pod_sandbox_id=sandbox, resources=cri.LinuxContainerResources(cpu_shares=512)
            ),
            timeout=20,
        ),
        "reopen_log": lambda: runtime.ReopenContainerLog(
            cri.ReopenContainerLogRequest(container_id=container), timeout=20
        ),
        "exec_sync": lambda: runtime.ExecSync(
            cri.ExecSyncRequest(container_id=container, cmd=["echo", "here"], timeout=10), timeout=20
        ),
    }
    for point in POINTS["calls"]:
        (wish,) = (wish for name, wish in wishes.items() if point[1].endswith(name))
        found = node.dies(point, lambda wish=wish: node.kubelet._until(wish))
        assert getattr(found, "stdout", b"here\n") == b"here\n", point
        assert node.kubelet.status(container).state == cri.CONTAINER_RUNNING, point
    node.kubelet.no_sandbox(config)
    finish(node, uuids)


def test_an_image(node, tmp_path):
    """The store is whole after each death: the image is there, or it is not."""
    node = node("image")
    images = services.ImageServiceStub(node.kubelet.channel)
    (tmp_path / "layout").mkdir()
    oci = OciDir(tmp_path / "layout")
    oci.image("v1", [layer_tar({"bin": None, "bin/busybox": BUSYBOX.read_bytes()})], {})
    with running_registry(tmp_path / "registry") as registry:
        registry.push(f"oci:{oci.path}:v1", "team/app:v1")
        spec = cri.ImageSpec(image=f"{registry.host}/team/app:v1")

        def pull():
            return images.PullImage(cri.PullImageRequest(image=spec), timeout=20).image_ref

        def remove():
            images.RemoveImage(cri.RemoveImageRequest(image=spec), timeout=20)
            return True

        def known():
            return node.kubelet._until(
                lambda: images.ImageStatus(cri.ImageStatusRequest(image=spec), timeout=20)
            ).HasField("image")

        for point in POINTS["image"]:
            removes = point[1].endswith(("RemoveImage", ".remove"))
            if removes:
                node.kubelet._until(pull)
            else:
                node.kubelet._until(remove)
            assert known() == removes, point
            node.dies(point, lambda wish=remove if removes else pull: node.kubelet._until(wish))
            assert known() != removes, point
    for each in node.house.client.images_list().images:
        node.house.client.image_verify(each.record.id)


def test_stop_and_remove_a_sandbox(node):
    node = node("end")
    uuids = set()
    for number, point in enumerate(POINTS["end"]):
        config = config_of(f"pod-{number}")
        sandbox = node.kubelet.sandbox(config)
        node.kubelet.container(sandbox, container_of(node, "main"))
        uuids |= pods(node)
        node.dies(point, lambda config=config: node.kubelet.no_sandbox(config) or True)
    finish(node, uuids)
