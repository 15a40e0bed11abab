"""Sandboxes and containers, read from the records of pods: nothing is stored besides.

A sandbox is a pod named ``k8s-ID``, and a container is an app of it, named by its ID. Annotations of the pod and
of the app hold the configuration that kubelet gave.
"""

from __future__ import annotations

import contextlib
import functools
import json
import operator
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from google.protobuf import json_format

from kurma_core.errors import PodNotFoundError
from kurma_core.models.pod import LOG_DIRECTORY
from kurma_core.value import field, frozen
from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.rpc import invalid, not_found

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from kurma_core.api.operations import Api
    from kurma_core.models.pod import AppStatus, PodRecord

Json = Any
#: Namespace, name, UID and attempt of a sandbox.
Metadata = tuple[str, str, str, int]
#: Annotations of the pod and of an app: JSON objects.
SANDBOX, CONTAINER = "kurma.io/cri/sandbox", "kurma.io/cri/container"
#: Annotation of the pod: its resources since kubelet changed them, a ``LinuxPodSandboxConfig`` in JSON.
SANDBOX_RESOURCES = "kurma.io/cri/resources"
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


#: Sandboxes with their containers.
Listing = tuple[tuple[Sandbox, tuple[Container, ...]], ...]


class WholeList:
    """The answer to a call that lists all of something. It is made and serialized anew only after a change."""

    def __init__(self) -> None:
        self._kept: tuple[Listing, int, bytes] | None = None

    def answer(self, listing: Listing, make: Callable[[], Message], mounts: int = 0) -> bytes:
        """:param make: makes the answer. :param mounts: the number of changes of mounts, if they count."""
        kept = self._kept
        if kept is None or kept[0] is not listing or kept[1] != mounts:
            kept = self._kept = listing, mounts, make().SerializeToString()
        return kept[2]


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


def pod_name(sandbox: str) -> str:
    """The name of a sandbox's pod."""
    return _NAME + sandbox


class Records:
    """Finds sandboxes and containers. Safe to use from several threads.

    :param client: has the pods. :param clock: the time in nanoseconds since 1970.
    """

    def __init__(self, client: Api, clock: Callable[[], int] = time.time_ns) -> None:
        self._client = client
        self._clock = clock
        self._lock = threading.Lock()
        self._making: set[str] = set()
        #: The sandbox of each container that was seen.
        self._pods: dict[str, str] = {}
        #: The IDs of the sandboxes that were seen, by their metadata.
        self._named: dict[Metadata, set[str]] = {}
        #: Whether all sandboxes were seen.
        self._complete = False
        #: The pods of the last listing, and what it found.
        self._last: tuple[list[PodRecord], Listing] = ([], ())
        #: The last time of creation, of this process or of an earlier one. None: the records were not read yet.
        self._last_time: int | None = None

    def now(self) -> int:
        """A time of creation: it rises strictly, also where the clock is set back."""
        latest = 0
        if self._last_time is None:
            for sandbox, containers in self._all():
                latest = max(latest, sandbox.created_at, *(one.created_at for one in containers))
        with self._lock:
            self._last_time = max(self._clock(), latest + 1, (self._last_time or 0) + 1)
            return self._last_time

    @contextlib.contextmanager
    def making(self, apart: Callable[[str], object] | None = None) -> Iterator[str]:
        """Makes an ID. The sandbox or container of it is neither listed nor found until the block has ended.

        :param apart: no other sandbox that :meth:`named` knows has an ID with the same value of this function.
        """
        with self._lock:
            id = secrets.token_hex(_ID_LENGTH // 2)
            if apart is not None:
                taken = {apart(one) for ids in (self._making, *self._named.values()) for one in ids}
                while apart(id) in taken:
                    id = secrets.token_hex(_ID_LENGTH // 2)
            self._making.add(id)
        try:
            yield id
        finally:
            with self._lock:
                self._making.discard(id)

    def is_being_made(self, id: str) -> bool:
        return id in self._making

    def listing(self) -> Listing:
        """All sandboxes with their containers, the oldest first. The same object as before while no pod has
        changed."""
        found, making = self._all(), frozenset(self._making)
        if not making:
            return found
        return tuple(
            [
                (sandbox, tuple([one for one in containers if one.id not in making]))
                for sandbox, containers in found
                if sandbox.id not in making
            ]
        )

    def sandboxes(self) -> list[Sandbox]:
        """All sandboxes, the oldest first."""
        return [sandbox for sandbox, _ in self.listing()]

    def containers_of(self, sandbox: Sandbox) -> list[Container]:
        """The containers of a sandbox, in order of their creation."""
        return [container for container in containers_of(sandbox) if container.id not in self._making]

    def _all(self) -> Listing:
        """The :meth:`listing`, with those that are being made. kurmad answers the same record for an unchanged
        pod: then its sandbox and containers are the same, too."""
        pods = self._client.pods()
        before, listed = self._last
        if len(pods) == len(before) and all(map(operator.is_, pods, before)):
            return listed
        by_pod = {one[0].pod.uuid: one for one in listed}
        found, fresh = [], []
        for pod in pods:
            known = by_pod.get(pod.uuid)
            if known is None or known[0].pod is not pod:
                sandbox = sandbox_of(pod)
                if sandbox is None:
                    continue
                known = (sandbox, tuple(containers_of(sandbox)))
                fresh.append(sandbox)
            found.append(known)
        # Before others get it without a look at its pods.
        self._saw(fresh)
        listed = tuple(found)
        self._last = pods, listed
        return listed

    def _saw(self, sandboxes: list[Sandbox]) -> None:
        with self._lock:
            for sandbox in sandboxes:
                self._named.setdefault(metadata_of(sandbox.config), set()).add(sandbox.id)
                for app in sandbox.pod.apps:
                    self._pods[app.name] = sandbox.id

    def containers(self) -> list[Container]:
        """All containers, in order of their sandboxes."""
        return [container for _, containers in self.listing() for container in containers]

    def named(self, config: cri.PodSandboxConfig) -> list[Sandbox]:
        """The sandboxes with the metadata of a configuration. Only this service makes sandboxes, and tells
        :meth:`made`: so all are listed only once."""
        if not self._complete:
            self.sandboxes()
            self._complete = True
        with self._lock:
            ids = sorted(self._named.get(metadata_of(config), ()))
        found = []
        for id in ids:
            sandbox = self._of_pod(id)
            if sandbox is None:
                self.forget_sandbox(id, config)
            else:
                found.append(sandbox)
        return found

    def made(self, id: str, config: cri.PodSandboxConfig) -> None:
        """This service has made a sandbox."""
        with self._lock:
            self._named.setdefault(metadata_of(config), set()).add(id)

    def added(self, container: str, sandbox: Sandbox) -> None:
        """This service has added a container to a sandbox."""
        with self._lock:
            self._pods[container] = sandbox.id

    def id_of(self, reference: str) -> str:
        """The ID of a sandbox; a whole one is not looked up. See :meth:`sandbox`."""
        return reference if len(reference) == _ID_LENGTH else self.sandbox(reference).id

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
        if sandbox in self._making:
            return None
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
            for container in self.containers_of(found) if found is not None else ():
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

    def forget_sandbox(self, id: str, config: cri.PodSandboxConfig) -> None:
        """The sandbox was removed. :param config: its configuration."""
        metadata = metadata_of(config)
        with self._lock:
            ids = self._named.get(metadata, set())
            ids.discard(id)
            if not ids:
                self._named.pop(metadata, None)


def metadata_of(config: cri.PodSandboxConfig) -> Metadata:
    """The metadata of a sandbox, as a key."""
    metadata = config.metadata
    return (metadata.namespace, metadata.name, metadata.uid, metadata.attempt)


def sandbox_of(pod: PodRecord) -> Sandbox | None:
    """The sandbox that a pod is; None: it is another pod."""
    text = _annotation(pod.manifest.get("annotations", ()), SANDBOX)
    if text is None:
        return None
    kept = json.loads(text)
    config = _sandbox_config(json.dumps(kept["config"]))
    changed = _annotation(pod.manifest.get("annotations", ()), SANDBOX_RESOURCES)
    if changed is not None:
        given, config = config, cri.PodSandboxConfig()
        config.CopyFrom(given)
        set_resources(config.linux, json_format.Parse(changed, cri.LinuxPodSandboxConfig()))
    return Sandbox(kept["id"], pod, config, kept["handler"], kept["createdAt"])


def set_resources(linux: cri.LinuxPodSandboxConfig, changed: Any) -> None:
    """:param changed: a message with ``overhead`` and ``resources``; one that is not set stays as it is."""
    if changed.HasField("overhead"):
        linux.overhead.CopyFrom(changed.overhead)
    if changed.HasField("resources"):
        linux.resources.CopyFrom(changed.resources)


def containers_of(sandbox: Sandbox) -> Iterator[Container]:
    """All containers of a sandbox, in order of their creation; unfinished ones, too."""
    statuses = {app.name: app for app in sandbox.pod.apps}
    for app in sandbox.pod.manifest.get("apps", ()):
        text = _annotation(app.get("annotations", ()), CONTAINER)
        status = statuses.get(app["name"])
        if text is None or status is None:
            continue
        kept = json.loads(text)
        config = _container_config(json.dumps(kept["config"]))
        yield Container(app["name"], sandbox, status, config, kept["imageId"], kept["imageRef"], kept["createdAt"])


def log_directory(sandbox: Sandbox) -> str:
    """The directory of its containers' logs; empty: it has none, or its stager writes none."""
    return _annotation(sandbox.pod.manifest.get("annotations", ()), LOG_DIRECTORY) or ""


def sandbox_annotation(id: str, config: cri.PodSandboxConfig, handler: str, created_at: int) -> str:
    """The text of the annotation :data:`SANDBOX`."""
    return _compact({"id": id, "handler": handler, "createdAt": created_at, "config": _to_json(config)})


def resources_annotation(linux: cri.LinuxPodSandboxConfig) -> str:
    """The text of the annotation :data:`SANDBOX_RESOURCES`."""
    kept = cri.LinuxPodSandboxConfig()
    set_resources(kept, linux)
    return _compact(_to_json(kept))


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
