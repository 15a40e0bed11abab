"""A client that repeats its calls as kubelet does, until the node is as it wants it."""

from __future__ import annotations

import time

import grpc
from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.proto import runtime_pb2_grpc as services

CODES = grpc.StatusCode
#: Codes of calls whose server has died, or is not up yet, or that another call is in the way of.
_AGAIN = {CODES.UNAVAILABLE, CODES.UNKNOWN, CODES.INTERNAL, CODES.CANCELLED, CODES.ALREADY_EXISTS}
_AGAIN |= {CODES.FAILED_PRECONDITION, CODES.NOT_FOUND, CODES.DEADLINE_EXCEEDED}


class Kubelet:
    """:param socket: of the service; it may go away and come again.
    :param patience: seconds for one wish, in which kurmad may be killed several times.
    """

    def __init__(self, socket, patience=60.0):
        self._patience = patience
        options = [
            ("grpc.default_authority", "localhost"),
            ("grpc.initial_reconnect_backoff_ms", 20),
            ("grpc.min_reconnect_backoff_ms", 20),
            ("grpc.max_reconnect_backoff_ms", 100),
        ]
        self.channel = grpc.insecure_channel(f"unix:{socket}", options)
        self.runtime = services.RuntimeServiceStub(self.channel)
        #: Errors of calls that were repeated.
        self.errors = []

    def close(self):
        self.channel.close()

    def _until(self, step):
        """Repeats a step until it has a result that is not None."""
        end = time.monotonic() + self._patience
        while True:
            try:
                found = step()
                if found is not None:
                    return found
            except grpc.RpcError as error:
                if error.code() not in _AGAIN:
                    raise
                self.errors.append(f"{error.code().name}: {error.details()}")
            assert time.monotonic() < end, self.errors[-3:]
            time.sleep(0.02)

    # -- wishes; each is fulfilled when it returns --

    def sandbox(self, config):
        """:returns: the ID of the one ready sandbox of that pod."""

        def step():
            found = [one for one in self._sandboxes(config) if one.state == cri.SANDBOX_READY]
            assert len(found) < 2, found
            if found:
                return found[0].id
            return self.runtime.RunPodSandbox(cri.RunPodSandboxRequest(config=config), timeout=20).pod_sandbox_id

        return self._until(step)

    def _sandboxes(self, config):
        items = self.runtime.ListPodSandbox(cri.ListPodSandboxRequest(), timeout=20).items
        return [one for one in items if one.metadata == config.metadata]

    def update(self, container, resources):
        """The container has these resources."""

        def step():
            if self.status(container).resources.linux == resources:
                return True
            request = cri.UpdateContainerResourcesRequest(container_id=container, linux=resources)
            self.runtime.UpdateContainerResources(request, timeout=20)
            return True

        return self._until(step)

    def container(self, sandbox, config):
        """:returns: the ID of the container of that name and attempt, which was started."""

        def create():
            for one in self.containers(sandbox):
                if one.metadata == config.metadata:
                    return one.id
            request = cri.CreateContainerRequest(pod_sandbox_id=sandbox, config=config)
            return self.runtime.CreateContainer(request, timeout=20).container_id

        def start():
            if self.status(container).state != cri.CONTAINER_CREATED:
                return True
            self.runtime.StartContainer(cri.StartContainerRequest(container_id=container), timeout=20)
            return True

        container = self._until(create)
        self._until(start)
        return container

    def containers(self, sandbox):
        wanted = cri.ContainerFilter(pod_sandbox_id=sandbox)
        return self.runtime.ListContainers(cri.ListContainersRequest(filter=wanted), timeout=20).containers

    def status(self, container):
        return self._until(
            lambda: self.runtime.ContainerStatus(cri.ContainerStatusRequest(container_id=container), timeout=20)
        ).status

    def exited(self, container):
        """:returns: its status once it has ended."""

        def step():
            found = self.status(container)
            return found if found.state == cri.CONTAINER_EXITED else None

        return self._until(step)

    def stop(self, container):
        request = cri.StopContainerRequest(container_id=container, timeout=1)
        return self._until(lambda: self.runtime.StopContainer(request, timeout=20))

    def remove(self, container):
        request = cri.RemoveContainerRequest(container_id=container)
        return self._until(lambda: self.runtime.RemoveContainer(request, timeout=20))

    def no_sandbox(self, config):
        """No sandbox of that pod is left."""

        def step():
            found = self._sandboxes(config)
            for one in found:
                self.runtime.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=one.id), timeout=20)
                self.runtime.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=one.id), timeout=20)
            return None if found else True

        self._until(step)
