"""The decision on each field of the request messages: honoured, ignored for a reason, or refused by name.

A test goes through all fields of the requests by reflection, so that none is without a decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kurma_cri.rpc import invalid

if TYPE_CHECKING:
    from google.protobuf.message import Message

HONOURED = "honoured"
REFUSED = "refused"
#: Fields that kubelet sets on every node, and that mean nothing on Linux.
WINDOWS = "for Windows nodes"

#: By ``Message.field``. A message whose field is honoured has its own fields here, too.
DECISIONS: dict[str, str] = {
    "ContainerConfig.windows": WINDOWS,
    "ContainerConfig.metadata": HONOURED,
    "ContainerConfig.image": HONOURED,
    "ContainerConfig.command": HONOURED,
    "ContainerConfig.args": HONOURED,
    "ContainerConfig.working_dir": HONOURED,
    "ContainerConfig.envs": HONOURED,
    "ContainerConfig.mounts": HONOURED,
    "ContainerConfig.labels": HONOURED,
    "ContainerConfig.annotations": HONOURED,
    "ContainerConfig.stdin": HONOURED,
    "ContainerConfig.tty": HONOURED,
    "ContainerConfig.linux": HONOURED,
    "ContainerMetadata.name": HONOURED,
    "ContainerMetadata.attempt": HONOURED,
    "DNSConfig.servers": HONOURED,
    "DNSConfig.searches": HONOURED,
    "DNSConfig.options": HONOURED,
    "ImageSpec.image": HONOURED,
    "ImageSpec.annotations": HONOURED,
    "ImageSpec.user_specified_image": HONOURED,
    "ImageSpec.runtime_handler": HONOURED,
    "Int64Value.value": HONOURED,
    "KeyValue.key": HONOURED,
    "KeyValue.value": HONOURED,
    "LinuxContainerConfig.security_context": HONOURED,
    "LinuxContainerSecurityContext.namespace_options": HONOURED,
    "LinuxContainerSecurityContext.run_as_user": HONOURED,
    "LinuxContainerSecurityContext.run_as_group": HONOURED,
    "LinuxContainerSecurityContext.run_as_username": HONOURED,
    "LinuxContainerSecurityContext.readonly_rootfs": HONOURED,
    "LinuxContainerSecurityContext.no_new_privs": HONOURED,
    "LinuxPodSandboxConfig.security_context": HONOURED,
    "LinuxSandboxSecurityContext.namespace_options": HONOURED,
    "Mount.container_path": HONOURED,
    "Mount.host_path": HONOURED,
    "Mount.readonly": HONOURED,
    "NamespaceOption.network": HONOURED,
    "NamespaceOption.ipc": HONOURED,
    "PodSandboxConfig.windows": WINDOWS,
    "PodSandboxConfig.metadata": HONOURED,
    "PodSandboxConfig.hostname": HONOURED,
    "PodSandboxConfig.log_directory": HONOURED,
    "PodSandboxConfig.dns_config": HONOURED,
    "PodSandboxConfig.port_mappings": HONOURED,
    "PodSandboxConfig.labels": HONOURED,
    "PodSandboxConfig.annotations": HONOURED,
    "PodSandboxConfig.linux": HONOURED,
    "PodSandboxMetadata.name": HONOURED,
    "PodSandboxMetadata.uid": HONOURED,
    "PodSandboxMetadata.namespace": HONOURED,
    "PodSandboxMetadata.attempt": HONOURED,
    "PortMapping.protocol": HONOURED,
    "PortMapping.container_port": HONOURED,
    "PortMapping.host_port": HONOURED,
    "PortMapping.host_ip": HONOURED,
    "UpdateContainerResourcesRequest.windows": WINDOWS,
}


def refuse_undone(message: Message, path: str = "") -> None:
    """Refuses a request with a field that is set and not honoured.

    :raises RpcError: INVALID_ARGUMENT, with the path of the field.
    """
    kind = message.DESCRIPTOR.full_name.rpartition(".")[2]
    for field, value in message.ListFields():
        where = f"{path}.{field.name}" if path else field.name
        decision = DECISIONS.get(f"{kind}.{field.name}", REFUSED)
        if decision == REFUSED:
            raise invalid(f"{where} is not supported")
        if decision != HONOURED or field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for one in _values(field, value):
            refuse_undone(one, where)


def _values(field: Any, value: Any) -> Any:
    return value if field.is_repeated else (value,)
