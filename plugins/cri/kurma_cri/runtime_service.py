"""The RuntimeService: sandboxes, containers, commands and statistics. A method does one call of the interface."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc

from kurma_cri.containers import Containers
from kurma_cri.events import ContainerEvents
from kurma_cri.metrics import descriptors, metrics
from kurma_cri.mounts import kernel_sets_attributes
from kurma_cri.namespaces import kernel_has_user_namespaces
from kurma_cri.network import network_condition
from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.proto import runtime_pb2_grpc as services
from kurma_cri.records import Records
from kurma_cri.resources import to_isolator
from kurma_cri.rpc import RpcError
from kurma_cri.sandboxes import Sandboxes
from kurma_cri.stagers import Stagers
from kurma_cri.stats import Stats
from kurma_cri.statuses import container_status, sandbox_status
from kurma_cri.stream_urls import StreamUrls
from kurma_cri.streaming.backend import ClientBackend
from kurma_cri.streaming.server import StreamingServer

if TYPE_CHECKING:
    from kurma_core.api.operations import Api
    from kurma_cri.options import Options

#: grpc has no types.
Context: TypeAlias = Any
#: Items in one message of a stream.
_BATCH = 100


class RuntimeService(services.RuntimeServiceServicer):
    """:param client: does Kurma's operations. It is entered before the first call, and left after the last."""

    def __init__(self, options: Options, client: Api, log: logging.Logger) -> None:
        self._options = options
        self._client = client
        self._log = log
        self._records = Records(client)
        self._stagers = Stagers(client)
        self._sandboxes = Sandboxes(options, client, self._records, self._stagers)
        self._containers = Containers(client, self._records, self._sandboxes, self._stagers)
        self._stats = Stats(client, self._records)
        self._events = ContainerEvents(client, self._records, log)
        self._streaming = StreamingServer(options.stream_address, options.stream_port, ClientBackend(client), log)
        self._urls = StreamUrls(self._records, self._streaming)

    def __enter__(self) -> RuntimeService:
        self._streaming.start()
        self._events.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._events.stop()
        self._streaming.stop()
        self._sandboxes.close()

    # -- the runtime --

    def Version(self, request: cri.VersionRequest, context: Context) -> cri.VersionResponse:
        return cri.VersionResponse(
            # Kubelet refuses any other.
            version="0.1.0",
            runtime_name="kurma",
            runtime_version=self._client.version().version,
            runtime_api_version="v1",
        )

    def Status(self, request: cri.StatusRequest, context: Context) -> cri.StatusResponse:
        conditions = [
            cri.RuntimeCondition(type="RuntimeReady", status=True, reason="KurmadRuns", message="kurmad runs"),
            network_condition(self._client, self._options.network),
        ]
        answer = cri.StatusResponse(status=cri.RuntimeStatus(conditions=conditions))
        answer.features.supplemental_groups_policy = True
        answer.features.mount_options = True
        answer.runtime_handlers.extend(
            cri.RuntimeHandler(name=name, features=self._features(handler.stager))
            for name, handler in self._options.handlers.items()
        )
        if request.verbose:
            answer.info["config"] = json.dumps({"network": self._options.network, "socket": self._options.socket})
        return answer

    def _features(self, stager: str | None) -> cri.RuntimeHandlerFeatures:
        """The features of a runtime handler: what its stager and the kernel can do.

        :param stager: None: the default one.
        """
        features = self._stagers.features(stager) if kernel_sets_attributes() else frozenset()
        return cri.RuntimeHandlerFeatures(
            recursive_read_only_mounts="volume_kinds" in features,
            # Kubelet then wants volumes with mapped owners, too.
            user_namespaces={"user_namespaces", "volume_kinds"} <= features and kernel_has_user_namespaces(),
        )

    def RuntimeConfig(self, request: cri.RuntimeConfigRequest, context: Context) -> cri.RuntimeConfigResponse:
        return cri.RuntimeConfigResponse(linux=cri.LinuxRuntimeConfiguration(cgroup_driver=cri.CGROUPFS))

    def UpdateRuntimeConfig(
        self, request: cri.UpdateRuntimeConfigRequest, context: Context
    ) -> cri.UpdateRuntimeConfigResponse:
        return cri.UpdateRuntimeConfigResponse()

    # -- sandboxes --

    def RunPodSandbox(self, request: cri.RunPodSandboxRequest, context: Context) -> cri.RunPodSandboxResponse:
        return cri.RunPodSandboxResponse(
            pod_sandbox_id=self._sandboxes.run(request.config, request.runtime_handler)
        )

    def StopPodSandbox(self, request: cri.StopPodSandboxRequest, context: Context) -> cri.StopPodSandboxResponse:
        self._sandboxes.stop(request.pod_sandbox_id)
        return cri.StopPodSandboxResponse()

    def RemovePodSandbox(
        self, request: cri.RemovePodSandboxRequest, context: Context
    ) -> cri.RemovePodSandboxResponse:
        self._sandboxes.remove(request.pod_sandbox_id)
        return cri.RemovePodSandboxResponse()

    def PodSandboxStatus(
        self, request: cri.PodSandboxStatusRequest, context: Context
    ) -> cri.PodSandboxStatusResponse:
        timestamp = self._records.now()
        sandbox = self._records.sandbox(request.pod_sandbox_id)
        answer = cri.PodSandboxStatusResponse(
            status=sandbox_status(sandbox),
            containers_statuses=[container_status(one) for one in self._records.containers_of(sandbox)],
            timestamp=timestamp,
        )
        if request.verbose:
            answer.info["pod"] = _info(uuid=sandbox.pod.uuid, name=sandbox.pod.name, state=sandbox.pod.state)
            linux = sandbox.config.linux
            answer.info["resources"] = _info(
                overhead=to_isolator(linux.overhead), resources=to_isolator(linux.resources)
            )
        return answer

    def ListPodSandbox(
        self, request: cri.ListPodSandboxRequest, context: Context
    ) -> cri.ListPodSandboxResponse | bytes:
        return self._sandboxes.answer(request.filter)

    def StreamPodSandboxes(
        self, request: cri.StreamPodSandboxesRequest, context: Context
    ) -> Iterator[cri.StreamPodSandboxesResponse]:
        for some in _batches(self._sandboxes.list(request.filter)):
            yield cri.StreamPodSandboxesResponse(pod_sandboxes=some)

    # -- containers --

    def CreateContainer(
        self, request: cri.CreateContainerRequest, context: Context
    ) -> cri.CreateContainerResponse:
        return cri.CreateContainerResponse(
            container_id=self._containers.create(request.pod_sandbox_id, request.config)
        )

    def StartContainer(self, request: cri.StartContainerRequest, context: Context) -> cri.StartContainerResponse:
        self._containers.start(request.container_id)
        return cri.StartContainerResponse()

    def StopContainer(self, request: cri.StopContainerRequest, context: Context) -> cri.StopContainerResponse:
        self._containers.stop(request.container_id, request.timeout)
        return cri.StopContainerResponse()

    def RemoveContainer(
        self, request: cri.RemoveContainerRequest, context: Context
    ) -> cri.RemoveContainerResponse:
        self._containers.remove(request.container_id)
        return cri.RemoveContainerResponse()

    def ListContainers(
        self, request: cri.ListContainersRequest, context: Context
    ) -> cri.ListContainersResponse | bytes:
        return self._containers.answer(request.filter)

    def StreamContainers(
        self, request: cri.StreamContainersRequest, context: Context
    ) -> Iterator[cri.StreamContainersResponse]:
        for some in _batches(self._containers.list(request.filter)):
            yield cri.StreamContainersResponse(containers=some)

    def ContainerStatus(
        self, request: cri.ContainerStatusRequest, context: Context
    ) -> cri.ContainerStatusResponse:
        container = self._records.container(request.container_id)
        answer = cri.ContainerStatusResponse(status=container_status(container))
        if request.verbose:
            answer.info["app"] = _info(pod=container.sandbox.pod.uuid, app=container.id, pid=container.app.pid)
        return answer

    def UpdateContainerResources(
        self, request: cri.UpdateContainerResourcesRequest, context: Context
    ) -> cri.UpdateContainerResourcesResponse:
        self._containers.update(request.container_id, request.linux)
        return cri.UpdateContainerResourcesResponse()

    def UpdatePodSandboxResources(
        self, request: cri.UpdatePodSandboxResourcesRequest, context: Context
    ) -> cri.UpdatePodSandboxResourcesResponse:
        self._sandboxes.update_resources(request)
        return cri.UpdatePodSandboxResourcesResponse()

    def ReopenContainerLog(
        self, request: cri.ReopenContainerLogRequest, context: Context
    ) -> cri.ReopenContainerLogResponse:
        self._containers.reopen_log(request.container_id)
        return cri.ReopenContainerLogResponse()

    # -- streams --

    def ExecSync(self, request: cri.ExecSyncRequest, context: Context) -> cri.ExecSyncResponse:
        return self._containers.exec_sync(request.container_id, tuple(request.cmd), request.timeout)

    def Exec(self, request: cri.ExecRequest, context: Context) -> cri.ExecResponse:
        return cri.ExecResponse(url=self._urls.exec(request))

    def Attach(self, request: cri.AttachRequest, context: Context) -> cri.AttachResponse:
        return cri.AttachResponse(url=self._urls.attach(request))

    def PortForward(self, request: cri.PortForwardRequest, context: Context) -> cri.PortForwardResponse:
        return cri.PortForwardResponse(url=self._urls.port_forward(request))

    # -- events --

    def GetContainerEvents(
        self, request: cri.GetEventsRequest, context: Context
    ) -> Iterator[cri.ContainerEventResponse]:
        events = self._events.read()
        # Tells the client that it misses no event from here on.
        context.send_initial_metadata(())
        return events

    # -- statistics --

    def ContainerStats(self, request: cri.ContainerStatsRequest, context: Context) -> cri.ContainerStatsResponse:
        return cri.ContainerStatsResponse(stats=self._stats.container(request.container_id))

    def ListContainerStats(
        self, request: cri.ListContainerStatsRequest, context: Context
    ) -> cri.ListContainerStatsResponse:
        return cri.ListContainerStatsResponse(stats=self._stats.containers(request.filter))

    def StreamContainerStats(
        self, request: cri.StreamContainerStatsRequest, context: Context
    ) -> Iterator[cri.StreamContainerStatsResponse]:
        for some in _batches(self._stats.containers(request.filter)):
            yield cri.StreamContainerStatsResponse(container_stats=some)

    def PodSandboxStats(
        self, request: cri.PodSandboxStatsRequest, context: Context
    ) -> cri.PodSandboxStatsResponse:
        return cri.PodSandboxStatsResponse(stats=self._stats.sandbox(request.pod_sandbox_id))

    def ListPodSandboxStats(
        self, request: cri.ListPodSandboxStatsRequest, context: Context
    ) -> cri.ListPodSandboxStatsResponse:
        return cri.ListPodSandboxStatsResponse(stats=self._stats.sandboxes(request.filter))

    def StreamPodSandboxStats(
        self, request: cri.StreamPodSandboxStatsRequest, context: Context
    ) -> Iterator[cri.StreamPodSandboxStatsResponse]:
        for some in _batches(self._stats.sandboxes(request.filter)):
            yield cri.StreamPodSandboxStatsResponse(pod_sandbox_stats=some)

    def ListMetricDescriptors(
        self, request: cri.ListMetricDescriptorsRequest, context: Context
    ) -> cri.ListMetricDescriptorsResponse:
        return cri.ListMetricDescriptorsResponse(descriptors=descriptors())

    def ListPodSandboxMetrics(
        self, request: cri.ListPodSandboxMetricsRequest, context: Context
    ) -> cri.ListPodSandboxMetricsResponse:
        return cri.ListPodSandboxMetricsResponse(pod_metrics=self._metrics())

    def StreamPodSandboxMetrics(
        self, request: cri.StreamPodSandboxMetricsRequest, context: Context
    ) -> Iterator[cri.StreamPodSandboxMetricsResponse]:
        for some in _batches(self._metrics()):
            yield cri.StreamPodSandboxMetricsResponse(pod_sandbox_metrics=some)

    def _metrics(self) -> Iterator[cri.PodSandboxMetrics]:
        ready = [sandbox for sandbox in self._records.sandboxes() if sandbox.ready]
        return (metrics(measured, self._stats.directory) for measured in self._stats.measure(ready))

    # -- not supported --

    def CheckpointContainer(self, request: Any, context: Context) -> Any:
        raise _unimplemented("checkpoints of containers")

    def CheckpointPod(self, request: Any, context: Context) -> Any:
        raise _unimplemented("checkpoints of pods")

    def RestorePod(self, request: Any, context: Context) -> Any:
        raise _unimplemented("restoring pods from checkpoints")


def _unimplemented(thing: str) -> RpcError:
    return RpcError(grpc.StatusCode.UNIMPLEMENTED, f"Kurma does not support {thing}")


def _info(**facts: Any) -> str:
    return json.dumps(facts)


def _batches(items: Iterator[Any]) -> Iterator[list[Any]]:
    """Lists of some items each, none empty."""
    some: list[Any] = []
    for item in items:
        some.append(item)
        if len(some) == _BATCH:
            yield some
            some = []
    if some:
        yield some
