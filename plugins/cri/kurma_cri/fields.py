"""The decision on each field of requests: honoured within limits, ignored for a reason, or refused by name.

A test goes through all fields of the requests by reflection, so that none is without a decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_cri import limits
from kurma_cri.rpc import invalid

if TYPE_CHECKING:
    from google.protobuf.message import Message

HONOURED = "honoured"
REFUSED = "refused"
#: Fields that kubelet sets on every node, and that mean nothing on Linux.
WINDOWS = "for Windows nodes"
#: A sandbox has no process and no root file system of its own.
NO_PROCESS = "of a process that a sandbox does not have"
#: The call itself is refused.
NO_CALL = "of a call that is not implemented"
#: Statuses have it, and kubelet may send it back.
OF_STATUSES = "of statuses"

#: By ``Message.field``. A message whose field is honoured has its own fields here, too.
DECISIONS: dict[str, str] = {
    "VersionRequest.version": HONOURED,
    "RunPodSandboxRequest.config": HONOURED,
    "RunPodSandboxRequest.runtime_handler": HONOURED,
    "PodSandboxConfig.metadata": HONOURED,
    "PodSandboxConfig.hostname": HONOURED,
    "PodSandboxConfig.log_directory": HONOURED,
    "PodSandboxConfig.dns_config": HONOURED,
    "PodSandboxConfig.port_mappings": HONOURED,
    "PodSandboxConfig.labels": HONOURED,
    "PodSandboxConfig.annotations": HONOURED,
    "PodSandboxConfig.linux": HONOURED,
    "PodSandboxConfig.windows": WINDOWS,
    "PodSandboxMetadata.name": HONOURED,
    "PodSandboxMetadata.uid": HONOURED,
    "PodSandboxMetadata.namespace": HONOURED,
    "PodSandboxMetadata.attempt": HONOURED,
    "DNSConfig.servers": HONOURED,
    "DNSConfig.searches": HONOURED,
    "DNSConfig.options": HONOURED,
    "PortMapping.protocol": HONOURED,
    "PortMapping.container_port": HONOURED,
    "PortMapping.host_port": HONOURED,
    "PortMapping.host_ip": HONOURED,
    "LinuxPodSandboxConfig.cgroup_parent": HONOURED,
    "LinuxPodSandboxConfig.security_context": HONOURED,
    "LinuxPodSandboxConfig.sysctls": HONOURED,
    "LinuxPodSandboxConfig.overhead": HONOURED,
    "LinuxPodSandboxConfig.resources": HONOURED,
    "LinuxSandboxSecurityContext.namespace_options": HONOURED,
    "LinuxSandboxSecurityContext.selinux_options": HONOURED,
    "LinuxSandboxSecurityContext.run_as_user": HONOURED,
    "LinuxSandboxSecurityContext.run_as_group": HONOURED,
    "LinuxSandboxSecurityContext.readonly_rootfs": NO_PROCESS,
    "LinuxSandboxSecurityContext.supplemental_groups": HONOURED,
    "LinuxSandboxSecurityContext.supplemental_groups_policy": HONOURED,
    "LinuxSandboxSecurityContext.privileged": HONOURED,
    "LinuxSandboxSecurityContext.seccomp": HONOURED,
    "LinuxSandboxSecurityContext.apparmor": HONOURED,
    "LinuxSandboxSecurityContext.seccomp_profile_path": HONOURED,
    "NamespaceOption.network": HONOURED,
    "NamespaceOption.pid": HONOURED,
    "NamespaceOption.ipc": HONOURED,
    "NamespaceOption.target_id": HONOURED,
    "NamespaceOption.userns_options": HONOURED,
    "UserNamespace.mode": HONOURED,
    "UserNamespace.uids": HONOURED,
    "UserNamespace.gids": HONOURED,
    "IDMapping.host_id": HONOURED,
    "IDMapping.container_id": HONOURED,
    "IDMapping.length": HONOURED,
    "SELinuxOption.user": HONOURED,
    "SELinuxOption.role": HONOURED,
    "SELinuxOption.type": HONOURED,
    "SELinuxOption.level": HONOURED,
    "Int64Value.value": HONOURED,
    "SecurityProfile.profile_type": HONOURED,
    "SecurityProfile.localhost_ref": HONOURED,
    "LinuxContainerResources.cpu_period": HONOURED,
    "LinuxContainerResources.cpu_quota": HONOURED,
    "LinuxContainerResources.cpu_shares": HONOURED,
    "LinuxContainerResources.memory_limit_in_bytes": HONOURED,
    "LinuxContainerResources.oom_score_adj": HONOURED,
    "LinuxContainerResources.cpuset_cpus": HONOURED,
    "LinuxContainerResources.cpuset_mems": HONOURED,
    "LinuxContainerResources.hugepage_limits": HONOURED,
    "LinuxContainerResources.unified": HONOURED,
    "LinuxContainerResources.memory_swap_limit_in_bytes": HONOURED,
    "HugepageLimit.page_size": HONOURED,
    "HugepageLimit.limit": HONOURED,
    "StopPodSandboxRequest.pod_sandbox_id": HONOURED,
    "RemovePodSandboxRequest.pod_sandbox_id": HONOURED,
    "PodSandboxStatusRequest.pod_sandbox_id": HONOURED,
    "PodSandboxStatusRequest.verbose": HONOURED,
    "ListPodSandboxRequest.filter": HONOURED,
    "PodSandboxFilter.id": HONOURED,
    "PodSandboxFilter.state": HONOURED,
    "PodSandboxFilter.label_selector": HONOURED,
    "PodSandboxStateValue.state": HONOURED,
    "StreamPodSandboxesRequest.filter": HONOURED,
    "CreateContainerRequest.pod_sandbox_id": HONOURED,
    "CreateContainerRequest.config": HONOURED,
    "CreateContainerRequest.sandbox_config": HONOURED,
    "ContainerConfig.metadata": HONOURED,
    "ContainerConfig.image": HONOURED,
    "ContainerConfig.command": HONOURED,
    "ContainerConfig.args": HONOURED,
    "ContainerConfig.working_dir": HONOURED,
    "ContainerConfig.envs": HONOURED,
    "ContainerConfig.mounts": HONOURED,
    "ContainerConfig.devices": HONOURED,
    "ContainerConfig.labels": HONOURED,
    "ContainerConfig.annotations": HONOURED,
    "ContainerConfig.log_path": HONOURED,
    "ContainerConfig.stdin": HONOURED,
    "ContainerConfig.stdin_once": HONOURED,
    "ContainerConfig.tty": HONOURED,
    "ContainerConfig.linux": HONOURED,
    "ContainerConfig.windows": WINDOWS,
    "ContainerConfig.CDI_devices": HONOURED,
    "ContainerConfig.stop_signal": HONOURED,
    "ContainerMetadata.name": HONOURED,
    "ContainerMetadata.attempt": HONOURED,
    "ImageSpec.image": HONOURED,
    "ImageSpec.annotations": HONOURED,
    "ImageSpec.user_specified_image": HONOURED,
    "ImageSpec.runtime_handler": HONOURED,
    "ImageSpec.image_ref": OF_STATUSES,
    "KeyValue.key": HONOURED,
    "KeyValue.value": HONOURED,
    "Mount.container_path": HONOURED,
    "Mount.host_path": HONOURED,
    "Mount.readonly": HONOURED,
    "Mount.selinux_relabel": HONOURED,
    "Mount.propagation": HONOURED,
    "Mount.uidMappings": HONOURED,
    "Mount.gidMappings": HONOURED,
    "Mount.recursive_read_only": HONOURED,
    "Mount.image": HONOURED,
    "Mount.image_sub_path": HONOURED,
    "Mount.mount_options": HONOURED,
    "Device.container_path": HONOURED,
    "Device.host_path": HONOURED,
    "Device.permissions": HONOURED,
    "LinuxContainerConfig.resources": HONOURED,
    "LinuxContainerConfig.security_context": HONOURED,
    "LinuxContainerSecurityContext.capabilities": HONOURED,
    "LinuxContainerSecurityContext.privileged": HONOURED,
    "LinuxContainerSecurityContext.namespace_options": HONOURED,
    "LinuxContainerSecurityContext.selinux_options": HONOURED,
    "LinuxContainerSecurityContext.run_as_user": HONOURED,
    "LinuxContainerSecurityContext.run_as_group": HONOURED,
    "LinuxContainerSecurityContext.run_as_username": HONOURED,
    "LinuxContainerSecurityContext.readonly_rootfs": HONOURED,
    "LinuxContainerSecurityContext.supplemental_groups": HONOURED,
    "LinuxContainerSecurityContext.supplemental_groups_policy": HONOURED,
    "LinuxContainerSecurityContext.no_new_privs": HONOURED,
    "LinuxContainerSecurityContext.masked_paths": HONOURED,
    "LinuxContainerSecurityContext.readonly_paths": HONOURED,
    "LinuxContainerSecurityContext.seccomp": HONOURED,
    "LinuxContainerSecurityContext.apparmor": HONOURED,
    "LinuxContainerSecurityContext.apparmor_profile": HONOURED,
    "LinuxContainerSecurityContext.seccomp_profile_path": HONOURED,
    "Capability.add_capabilities": HONOURED,
    "Capability.drop_capabilities": HONOURED,
    "Capability.add_ambient_capabilities": HONOURED,
    "CDIDevice.name": HONOURED,
    "StartContainerRequest.container_id": HONOURED,
    "StopContainerRequest.container_id": HONOURED,
    "StopContainerRequest.timeout": HONOURED,
    "RemoveContainerRequest.container_id": HONOURED,
    "ListContainersRequest.filter": HONOURED,
    "ContainerFilter.id": HONOURED,
    "ContainerFilter.state": HONOURED,
    "ContainerFilter.pod_sandbox_id": HONOURED,
    "ContainerFilter.label_selector": HONOURED,
    "ContainerStateValue.state": HONOURED,
    "StreamContainersRequest.filter": HONOURED,
    "ContainerStatusRequest.container_id": HONOURED,
    "ContainerStatusRequest.verbose": HONOURED,
    "UpdateContainerResourcesRequest.container_id": HONOURED,
    "UpdateContainerResourcesRequest.linux": HONOURED,
    "UpdateContainerResourcesRequest.windows": WINDOWS,
    "UpdateContainerResourcesRequest.annotations": REFUSED,
    "ReopenContainerLogRequest.container_id": HONOURED,
    "ExecSyncRequest.container_id": HONOURED,
    "ExecSyncRequest.cmd": HONOURED,
    "ExecSyncRequest.timeout": HONOURED,
    "ExecRequest.container_id": HONOURED,
    "ExecRequest.cmd": HONOURED,
    "ExecRequest.tty": HONOURED,
    "ExecRequest.stdin": HONOURED,
    "ExecRequest.stdout": HONOURED,
    "ExecRequest.stderr": HONOURED,
    "AttachRequest.container_id": HONOURED,
    "AttachRequest.stdin": HONOURED,
    "AttachRequest.tty": HONOURED,
    "AttachRequest.stdout": HONOURED,
    "AttachRequest.stderr": HONOURED,
    "PortForwardRequest.pod_sandbox_id": HONOURED,
    "PortForwardRequest.port": HONOURED,
    "ContainerStatsRequest.container_id": HONOURED,
    "ListContainerStatsRequest.filter": HONOURED,
    "ContainerStatsFilter.id": HONOURED,
    "ContainerStatsFilter.pod_sandbox_id": HONOURED,
    "ContainerStatsFilter.label_selector": HONOURED,
    "StreamContainerStatsRequest.filter": HONOURED,
    "PodSandboxStatsRequest.pod_sandbox_id": HONOURED,
    "ListPodSandboxStatsRequest.filter": HONOURED,
    "PodSandboxStatsFilter.id": HONOURED,
    "PodSandboxStatsFilter.label_selector": HONOURED,
    "StreamPodSandboxStatsRequest.filter": HONOURED,
    "UpdateRuntimeConfigRequest.runtime_config": HONOURED,
    "RuntimeConfig.network_config": HONOURED,
    "NetworkConfig.pod_cidr": HONOURED,
    "StatusRequest.verbose": HONOURED,
    "CheckpointContainerRequest.container_id": NO_CALL,
    "CheckpointContainerRequest.location": NO_CALL,
    "CheckpointContainerRequest.timeout": NO_CALL,
    "CheckpointPodRequest.pod_sandbox_id": NO_CALL,
    "CheckpointPodRequest.output_path": NO_CALL,
    "CheckpointPodRequest.container_ids": NO_CALL,
    "CheckpointPodRequest.options": NO_CALL,
    "RestorePodRequest.checkpoint_path": NO_CALL,
    "RestorePodRequest.config": NO_CALL,
    "RestorePodRequest.runtime_handler": NO_CALL,
    "RestorePodRequest.options": NO_CALL,
    "RestorePodRequest.container_configs": NO_CALL,
    "UpdatePodSandboxResourcesRequest.pod_sandbox_id": HONOURED,
    "UpdatePodSandboxResourcesRequest.overhead": HONOURED,
    "UpdatePodSandboxResourcesRequest.resources": HONOURED,
    "ListImagesRequest.filter": HONOURED,
    "ImageFilter.image": HONOURED,
    "StreamImagesRequest.filter": HONOURED,
    "ImageStatusRequest.image": HONOURED,
    "ImageStatusRequest.verbose": HONOURED,
    "PullImageRequest.image": HONOURED,
    "PullImageRequest.auth": HONOURED,
    "PullImageRequest.sandbox_config": HONOURED,
    "AuthConfig.username": HONOURED,
    "AuthConfig.password": HONOURED,
    "AuthConfig.auth": HONOURED,
    "AuthConfig.server_address": HONOURED,
    "AuthConfig.identity_token": HONOURED,
    "AuthConfig.registry_token": HONOURED,
    "RemoveImageRequest.image": HONOURED,
}


def check_request(message: Message, path: str = "") -> None:
    """Refuses a request with a field that is set and not honoured, or whose value is beyond the limits.

    :raises RpcError: INVALID_ARGUMENT, with the path of the field.
    """
    kind = message.DESCRIPTOR.name
    for field, value in message.ListFields():
        name, where = f"{kind}.{field.name}", f"{path}.{field.name}" if path else field.name
        decision = DECISIONS.get(name, REFUSED)
        if decision == REFUSED:
            raise invalid(f"{where} is not supported")
        if decision != HONOURED:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            limits.check_map(field.name, where, value)
            continue
        if name == "CreateContainerRequest.config":
            limits.check_container(value.ByteSize())
        if field.is_repeated:
            limits.check_list(where, value)
        for one in value if field.is_repeated else (value,):
            if field.message_type is not None:
                check_request(one, where)
            elif field.enum_type is not None:
                limits.check_enum(where, one, field.enum_type.values_by_number)
            elif isinstance(one, str | bytes):
                limits.check_text(name, where, one)
            elif not isinstance(one, bool):
                limits.check_number(name, where, one)
