"""Statuses and listings of sandboxes and containers, as messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kurma_core.formats.timestamps import moment
from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.records import log_directory
from kurma_cri.resources import resources_of
from kurma_cri.security_context import container_user

if TYPE_CHECKING:
    from kurma_cri.records import Container, Sandbox

#: Exit codes of a program that could not be executed, and of an end that was not seen.
_START_ERROR, _UNSEEN = 128, 255


def sandbox_state(sandbox: Sandbox) -> cri.PodSandboxState:
    return cri.SANDBOX_READY if sandbox.ready else cri.SANDBOX_NOTREADY


def list_item(sandbox: Sandbox, mounts: int) -> cri.PodSandbox:
    """A sandbox as ListPodSandbox has it.

    :param mounts: the count of changes of the host's mounts: without one, no sandbox loses its network namespace.
    """
    item: cri.PodSandbox
    known, item = sandbox.messages.get("item", (None, None))
    if known != mounts:
        if item is None or item.state != sandbox_state(sandbox):
            item = _list_item(sandbox)
        sandbox.messages["item"] = mounts, item
    return item


def _list_item(sandbox: Sandbox) -> cri.PodSandbox:
    return cri.PodSandbox(
        id=sandbox.id,
        metadata=sandbox.config.metadata,
        state=sandbox_state(sandbox),
        created_at=sandbox.created_at,
        labels=sandbox.config.labels,
        annotations=sandbox.config.annotations,
        runtime_handler=sandbox.handler,
    )


def sandbox_status(sandbox: Sandbox) -> cri.PodSandboxStatus:
    """A sandbox as PodSandboxStatus has it."""
    options = sandbox.config.linux.security_context.namespace_options
    status = cri.PodSandboxStatus(
        id=sandbox.id,
        metadata=sandbox.config.metadata,
        state=sandbox_state(sandbox),
        created_at=sandbox.created_at,
        network=cri.PodSandboxNetworkStatus(),
        linux=cri.LinuxPodSandboxStatus(namespaces=cri.Namespace(options=options)),
        labels=sandbox.config.labels,
        annotations=sandbox.config.annotations,
        runtime_handler=sandbox.handler,
    )
    if sandbox.ready and options.network != cri.NODE:
        first, *others = addresses(sandbox) or [""]
        status.network.ip = first
        status.network.additional_ips.extend(cri.PodIP(ip=one) for one in others)
    return status


def addresses(sandbox: Sandbox) -> list[str]:
    """IP addresses of its networks, those of IPv4 first."""
    found = [
        address.partition("/")[0]
        for attachment in sandbox.pod.attachments
        if not attachment.base
        for address in attachment.addresses
    ]
    return sorted(found, key=lambda address: ":" in address)


def container_state(container: Container) -> cri.ContainerState:
    """Its state; an app of a pod that has ended does not run."""
    app = container.app
    if app.state == "created":
        return cri.CONTAINER_CREATED
    if app.state in ("starting", "running", "restarting") and container.sandbox.live:
        # Until its program runs, it has no time of start.
        return cri.CONTAINER_CREATED if app.state == "starting" else cri.CONTAINER_RUNNING
    return cri.CONTAINER_EXITED


def container_item(container: Container) -> cri.Container:
    """A container as ListContainers has it."""
    found = container.messages.get("item")
    if found is None:
        found = container.messages["item"] = _container_item(container)
    return found


def _container_item(container: Container) -> cri.Container:
    return cri.Container(
        id=container.id,
        pod_sandbox_id=container.sandbox.id,
        metadata=container.config.metadata,
        image=_image(container),
        image_ref=container.image_ref,
        state=container_state(container),
        created_at=container.created_at,
        labels=container.config.labels,
        annotations=container.config.annotations,
        image_id=container.image_id,
    )


def container_status(container: Container) -> cri.ContainerStatus:
    """A container as ContainerStatus has it."""
    config, state = container.config, container_state(container)
    status = cri.ContainerStatus(
        id=container.id,
        metadata=config.metadata,
        state=state,
        created_at=container.created_at,
        image=_image(container),
        image_ref=container.image_ref,
        image_id=container.image_id,
        labels=config.labels,
        annotations=config.annotations,
        mounts=config.mounts,
        log_path=log_path(container),
        stop_signal=config.stop_signal or cri.SIGNAL_SIGTERM,
    )
    status.resources.linux.CopyFrom(resources_of(container))
    if state == cri.CONTAINER_RUNNING:
        ids = container.sandbox.pod.userns
        user = container_user(container.app.pid, 0 if ids is None else ids.first)
        if user is not None:
            status.user.CopyFrom(user)
    if state != cri.CONTAINER_CREATED:
        status.started_at = started_at(container)
    if state == cri.CONTAINER_EXITED:
        status.exit_code, status.reason = _end(container)
        status.message = container.app.told
        # Kubelet takes a container without this time as one that has not ended.
        status.finished_at = _time(container.app.finished_at) or _time(container.sandbox.pod.finished_at) or 1
    return status


def _end(container: Container) -> tuple[int, str]:
    """Exit code and reason of a container that has ended."""
    app = container.app
    if app.reason == "start-failed":
        return _START_ERROR, "StartError"
    if app.reason == "oom":
        return 137, "OOMKilled"
    if app.exit_code is None:
        return _UNSEEN, "Unknown"
    return app.exit_code, "Error" if app.exit_code else "Completed"


def _image(container: Container) -> cri.ImageSpec:
    spec = cri.ImageSpec()
    spec.CopyFrom(container.config.image)
    # The name that the person gave, where kubelet sent the ID.
    spec.image = spec.user_specified_image or spec.image
    return spec


def started_at(container: Container) -> int:
    """Nanoseconds since 1970; 0: it was not started."""
    return _time(container.app.started_at)


def log_path(container: Container) -> str:
    """The absolute path of its log; empty: it has none, or its stager writes none."""
    directory, name = log_directory(container.sandbox), container.config.log_path
    return f"{directory.rstrip('/')}/{name}" if directory and name else ""


def _time(text: str | None) -> int:
    return moment(text) if text else 0


def chosen(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    """Whether the labels fulfil a selector."""
    return all(labels.get(name) == value for name, value in selector.items())
