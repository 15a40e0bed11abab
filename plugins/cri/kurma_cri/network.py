"""The network of the sandboxes: the requests to join it, and the condition NetworkReady."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.errors import KurmaError
from kurma_core.models.network import NetworkRequest, argument_value
from kurma_core.schema import SchemaError
from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.rpc import invalid

if TYPE_CHECKING:
    from kurma_core.api.operations import Api

#: The network of CNI's own directory, a name of Kurma's plugin ``cni``.
NODE = "cni"


def network_request(network: str, id: str, metadata: cri.PodSandboxMetadata) -> NetworkRequest:
    """The request of a sandbox to join a network. CNI's plugins get the arguments that those of Kubernetes read.

    :param id: of the sandbox.
    :raises RpcError: CNI cannot pass a value on.
    """
    args = {
        "K8S_POD_NAMESPACE": metadata.namespace,
        "K8S_POD_NAME": metadata.name,
        "K8S_POD_INFRA_CONTAINER_ID": id,
        "K8S_POD_UID": metadata.uid,
    }
    for name, value in args.items():
        try:
            argument_value(value, f"metadata: {name}")
        except SchemaError as error:
            raise invalid(str(error)) from None
    return NetworkRequest(network, args=args)


def network_condition(client: Api, network: str) -> cri.RuntimeCondition:
    """The condition NetworkReady: whether a sandbox could join the network now."""
    try:
        found = [finding.why for finding in client.network_check([network], usable=True)]
    except KurmaError as error:
        found = [error.message]
        if network == NODE:  # Kurma has it only while CNI's directory has files
            found = ["CNI's directory has no configuration (/etc/cni/net.d, or config_dirs of the plugin cni)"]
    if found:
        message = " ".join("; ".join(found).split())
        return cri.RuntimeCondition(
            type="NetworkReady", status=False, reason="NetworkPluginNotReady", message=message
        )
    return cri.RuntimeCondition(
        type="NetworkReady", status=True, reason="NetworkConfigured", message=f"pods join the network {network}"
    )
