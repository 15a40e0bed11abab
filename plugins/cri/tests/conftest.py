"""A node: kurmad with the service ``cri`` in a process of its own, and a gRPC client of its socket."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterator

import grpc
import pytest
from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.proto import runtime_pb2_grpc as services

from tests.kit.waiting import PATIENCE, until


class Node:
    """:param house: of kurmad's state directory. :param daemon: kurmad, in a process of its own.

    :ivar runtime: stub of the RuntimeService. :ivar images: stub of the ImageService.
    """

    def __init__(self, house, daemon, socket):
        self.house = house
        self.daemon = daemon
        self.socket = socket
        self._numbers = itertools.count()
        until(lambda: os.path.exists(socket), lambda: f"the service's socket: {daemon.log.read_text()}")
        self.connect()

    def connect(self):
        self.channel = grpc.insecure_channel(f"unix:{self.socket}", [("grpc.default_authority", "localhost")])
        grpc.channel_ready_future(self.channel).result(PATIENCE)
        self.runtime = services.RuntimeServiceStub(self.channel)
        self.images = services.ImageServiceStub(self.channel)

    def kill(self):
        """Kills kurmad, as a power loss would."""
        self.daemon.process.kill()
        self.daemon.process.wait()
        os.unlink(self.socket)
        self.channel.close()

    def restart(self, kurmad):
        """:param kurmad: the fixture, which starts the next one."""
        self.daemon = kurmad(house=self.house)
        until(lambda: os.path.exists(self.socket), "the socket of the next kurmad")
        self.connect()

    def clear(self):
        """Removes all sandboxes."""
        for sandbox in self.runtime.ListPodSandbox(cri.ListPodSandboxRequest()).items:
            self.runtime.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=sandbox.id))

    def close(self):
        if self.daemon.process.poll() is None:
            self.clear()
        self.channel.close()

    # -- asking --

    def sandbox_config(self, name=None, host_network=True, **fields):
        """A configuration; the pod has the host's network unless the test needs one."""
        number = next(self._numbers)
        name = name or f"pod-{number}"
        config = cri.PodSandboxConfig(
            metadata=cri.PodSandboxMetadata(name=name, namespace="default", uid=f"uid-{number}", attempt=0),
            **fields,
        )
        if host_network:
            config.linux.security_context.namespace_options.network = cri.NODE
        return config

    def container_config(self, *command, name="main", **fields):
        return cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name=name),
            image=cri.ImageSpec(image=self.house.image),
            command=command,
            **fields,
        )

    # -- doing --

    def run(self, config=None, handler="", **fields):
        """Runs a sandbox. :returns: its ID."""
        config = config or self.sandbox_config(**fields)
        request = cri.RunPodSandboxRequest(config=config, runtime_handler=handler)
        return self.runtime.RunPodSandbox(request).pod_sandbox_id

    def create(self, sandbox, config):
        request = cri.CreateContainerRequest(pod_sandbox_id=sandbox, config=config)
        return self.runtime.CreateContainer(request).container_id

    def start(self, container):
        self.runtime.StartContainer(cri.StartContainerRequest(container_id=container))

    def started(self, sandbox, *command, **fields):
        """Creates and starts a container. :returns: its ID."""
        container = self.create(sandbox, self.container_config(*command, **fields))
        self.start(container)
        return container

    def status(self, container):
        return self.runtime.ContainerStatus(cri.ContainerStatusRequest(container_id=container)).status

    def sandbox_status(self, sandbox):
        return self.runtime.PodSandboxStatus(cri.PodSandboxStatusRequest(pod_sandbox_id=sandbox)).status

    def wait_exited(self, container):
        """:returns: its status once it has ended."""
        until(lambda: self.status(container).state == cri.CONTAINER_EXITED, lambda: str(self.status(container)))
        return self.status(container)

    def output(self, container):
        """Lines of its output so far, by way of Kurma's own logs."""
        pod = next(pod for pod in self.house.client.pods() if container in pod.images)
        texts = [line.text.decode() for line in self.house.client.log_lines(pod.uuid, container)]
        return "\n".join(texts).splitlines()  # one text may have several lines


@contextlib.contextmanager
def refused(code, *words):
    """The call is refused with this code, and a message of one line with these words."""
    with pytest.raises(grpc.RpcError) as caught:
        yield
    assert caught.value.code() == code, caught.value.details()
    assert "\n" not in caught.value.details()
    for word in words:
        assert word in caught.value.details()


@pytest.fixture
def make_node(make_house, kurmad, tmp_path) -> Iterator[Callable[..., Node]]:
    """``make_node(**options)``: a node of the test's own, with these options of the service. It starts a kurmad:
    use ``node`` where the options do not matter."""
    with contextlib.ExitStack() as stack:

        def make(house=None, **options):
            socket = f"{tmp_path}/cri.sock"
            section = {"socket": socket, "network": "default", **options}
            house = house or make_house({"stop_timeout": 3, "plugins": {"services": {"cri": {"config": section}}}})
            node = Node(house, kurmad(house=house), socket)
            stack.callback(node.close)
            return node

        yield make


@pytest.fixture(scope="session")
def node_state(tmp_path_factory, busybox_image) -> tuple[str, str]:
    """A state directory with the stager and the busybox image. :returns: its path; the image's ID."""
    from tests.kit.client import open_client

    state = str(tmp_path_factory.mktemp("node") / "state")
    config = f"{os.path.dirname(state)}/kurma.json"
    with open(config, "w") as file:
        file.write("{}")
    with open_client(config, state) as client:
        client.stager_build("default")
        return state, client.image_fetch(busybox_image).id


@pytest.fixture(scope="module")
def module_node(node_state, tmp_path_factory) -> Iterator[Node]:
    from tests.kit.house import House
    from tests.kit.kurmad import Kurmad, ended

    state, image = node_state
    directory = tmp_path_factory.mktemp("node")
    socket = f"{directory}/cri.sock"
    section = {"config": {"socket": socket, "network": "default"}}
    config = directory / "kurma.json"
    config.write_text(json.dumps({"stop_timeout": 3, "plugins": {"services": {"cri": section}}}))
    house = House(str(config), state, image, str(directory))
    daemon = Kurmad(house)
    try:
        node = Node(house, daemon, socket)
        yield node
        node.close()
        ended(daemon)
    finally:
        daemon.process.kill()
        daemon.process.wait()
        house.close()


@pytest.fixture
def node(module_node) -> Iterator[Node]:
    """A node that the tests of a module share; each test begins without sandboxes."""
    yield module_node
    module_node.clear()
