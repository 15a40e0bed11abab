"""Sandboxes and containers, read from the records of pods: nothing is stored besides.

A sandbox is a pod named ``k8s-ID``, and a container is an app of it, named by its ID. Annotations of the pod and
of the app hold the configuration that kubelet gave.
"""

from __future__ import annotations

import functools
import json
import os
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from google.protobuf import json_format

from kurma_core.errors import PodNotFoundError
from kurma_core.value import field, frozen
from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.rpc import invalid, not_found

if TYPE_CHECKING:
    from kurma_core.api.operations import Api
    from kurma_core.models.pod import AppStatus, PodRecord

Json = Any
#: Annotations of the pod and of an app: JSON objects.
SANDBOX, CONTAINER = "kurma.io/cri/sandbox", "kurma.io/cri/container"
#: States of a pod that has not ended.
LIVE = ("starting", "running", "stopping")
_NAME = "k8s-"
_ID_LENGTH = 64


@frozen
class Sandbox:
    """:param pod: its present record.
    :param config: as kubelet gave it. :param handler: name of the runtime handler.
    :param created_at: nanoseconds since 1970.
    """

    id: str
    pod: PodRecord
    config: cri.PodSandboxConfig
    handler: str
    created_at: int
    #: Messages made of it, by name. They hold as long as the record does.
    messages: dict[str, Any] = field(default_factory=dict)

    @property
    def live(self) -> bool:
        """Whether its pod has processes, or may have."""
        return self.pod.state in LIVE

    @property
    def ready(self) -> bool:
        """Whether containers can be started in it: its pod runs, and has not lost its network namespace."""
        namespace = self.pod.network_namespace
        return self.pod.state == "running" and (namespace is None or _is_namespace(namespace))


@frozen
class Container:
    """:param app: its present status.
    :param config: as kubelet gave it, without environment.
    :param image_id: of the image that it runs. :param image_ref: name and digest of the image, else its ID.
    :param created_at: nanoseconds since 1970.
    """

    id: str
    sandbox: Sandbox
    app: AppStatus
    config: cri.ContainerConfig
    image_id: str
    image_ref: str
    created_at: int
    #: As those of its sandbox.
    messages: dict[str, Any] = field(default_factory=dict)


def _is_namespace(path: str) -> bool:
    """Whether a namespace is mounted at the path: without it, the file below is seen."""
    try:
        return os.stat(path).st_dev == _namespaces()
    except OSError:
        return False


@functools.cache
def _namespaces() -> int:
    """The device number of the kernel's file system of namespaces."""
    return os.stat("/proc/self/ns/net").st_dev


def new_id() -> str:
    """A new ID of a sandbox or container."""
    return secrets.token_hex(_ID_LENGTH // 2)


def pod_name(sandbox: str) -> str:
    """The name of a sandbox's pod."""
    return _NAME + sandbox


class Records:
    """Finds sandboxes and containers. Safe to use from several threads.

    :param client: has the pods.
    """

    def __init__(self, client: Api) -> None:
        self._client = client
        self._lock = threading.Lock()
        #: The pod of each container that was seen.
        self._pods: dict[str, str] = {}
        #: The sandboxes of the last listing by their pods' UUIDs, with their containers.
        self._listed: dict[str, tuple[Sandbox, tuple[Container, ...]]] = {}
        self._last_time = 0

    def now(self) -> int:
        """A time of creation: it rises strictly, also where the clock is set back."""
        with self._lock:
            self._last_time = max(time.time_ns(), self._last_time + 1)
            return self._last_time

    def sandboxes(self) -> list[Sandbox]:
        """All sandboxes, the oldest first."""
        return [sandbox for sandbox, _ in self._all()]

    def _all(self) -> list[tuple[Sandbox, tuple[Container, ...]]]:
        """All sandboxes with their containers. kurmad answers the same record for an unchanged pod: then these are
        the same, too."""
        before, found = self._listed, {}
        fresh = []
        for pod in self._client.pods():
            known = before.get(pod.uuid)
            if known is None or known[0].pod is not pod:
                sandbox = sandbox_of(pod)
                if sandbox is None:
                    continue
                known = (sandbox, tuple(containers_of(sandbox)))
                fresh.append(sandbox)
            found[pod.uuid] = known
        self._listed = found
        self._saw(fresh)
        return list(found.values())

    def _saw(self, sandboxes: list[Sandbox]) -> None:
        with self._lock:
            for sandbox in sandboxes:
                self._last_time = max(self._last_time, sandbox.created_at)
                for app in sandbox.pod.apps:
                    self._pods[app.name] = sandbox.id

    def containers(self) -> list[Container]:
        """All containers, in order of their sandboxes."""
        return [container for _, containers in self._all() for container in containers]

    def sandbox(self, reference: str) -> Sandbox:
        """:param reference: the ID, or an unambiguous beginning of it.

        :raises RpcError: NOT_FOUND.
        """
        if not reference:
            raise not_found("no pod sandbox: the ID is empty")
        if len(reference) == _ID_LENGTH:
            found = self._of_pod(reference)
            if found is not None:
                return found
        else:
            several = [one for one in self.sandboxes() if one.id.startswith(reference)]
            if len(several) == 1:
                return several[0]
            if several:
                raise invalid(f"pod sandbox {reference} is ambiguous: {len(several)} IDs begin with it")
        raise not_found(f"there is no pod sandbox {reference}")

    def _of_pod(self, sandbox: str) -> Sandbox | None:
        try:
            found = sandbox_of(self._client.pod(pod_name(sandbox)))
        except PodNotFoundError:
            return None
        if found is not None:
            self._saw([found])
        return found

    def container(self, reference: str) -> Container:
        """:param reference: the ID, or an unambiguous beginning of it.

        :raises RpcError: NOT_FOUND.
        """
        if not reference:
            raise not_found("no container: the ID is empty")
        with self._lock:
            sandbox = self._pods.get(reference)
        if sandbox is not None:
            found = self._of_pod(sandbox)
            for container in containers_of(found) if found is not None else ():
                if container.id == reference:
                    return container
        several = [one for one in self.containers() if one.id.startswith(reference)]
        if len(several) == 1:
            return several[0]
        if several:
            raise invalid(f"container {reference} is ambiguous: {len(several)} IDs begin with it")
        raise not_found(f"there is no container {reference}")

    def forget(self, container: str) -> None:
        """The container was removed."""
        with self._lock:
            self._pods.pop(container, None)


def sandbox_of(pod: PodRecord) -> Sandbox | None:
    """The sandbox that a pod is; None: it is another pod."""
    text = _annotation(pod.manifest.get("annotations", ()), SANDBOX)
    if text is None:
        return None
    kept = json.loads(text)
    config = _sandbox_config(json.dumps(kept["config"]))
    return Sandbox(kept["id"], pod, config, kept["handler"], kept["createdAt"])


def containers_of(sandbox: Sandbox) -> Iterator[Container]:
    """The containers of a sandbox, in order of their creation."""
    statuses = {app.name: app for app in sandbox.pod.apps}
    for app in sandbox.pod.manifest.get("apps", ()):
        text = _annotation(app.get("annotations", ()), CONTAINER)
        status = statuses.get(app["name"])
        if text is None or status is None:
            continue
        kept = json.loads(text)
        config = _container_config(json.dumps(kept["config"]))
        yield Container(app["name"], sandbox, status, config, kept["imageId"], kept["imageRef"], kept["createdAt"])


def sandbox_annotation(id: str, config: cri.PodSandboxConfig, handler: str, created_at: int) -> str:
    """The text of the annotation :data:`SANDBOX`."""
    return _compact({"id": id, "handler": handler, "createdAt": created_at, "config": _to_json(config)})


def container_annotation(config: cri.ContainerConfig, image_id: str, image_ref: str, created_at: int) -> str:
    """The text of the annotation :data:`CONTAINER`. It leaves out the environment, which may hold secrets."""
    kept = cri.ContainerConfig()
    kept.CopyFrom(config)
    kept.ClearField("envs")
    return _compact(
        {"imageId": image_id, "imageRef": image_ref, "createdAt": created_at, "config": _to_json(kept)}
    )


def _to_json(message: Any) -> Json:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def _compact(value: Json) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


@functools.lru_cache(maxsize=512)
def _sandbox_config(text: str) -> cri.PodSandboxConfig:
    return json_format.Parse(text, cri.PodSandboxConfig(), ignore_unknown_fields=True)


@functools.lru_cache(maxsize=1024)
def _container_config(text: str) -> cri.ContainerConfig:
    return json_format.Parse(text, cri.ContainerConfig(), ignore_unknown_fields=True)


def _annotation(annotations: Any, name: str) -> str | None:
    for one in annotations:
        if isinstance(one, Mapping) and one.get("name") == name:
            return str(one["value"])
    return None
