"""The pod request of a sandbox."""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING, Any

from kurma_core.api.pods import DnsRequest, PodRequest
from kurma_core.models.network import NetworkRequest, PortMapping
from kurma_core.models.pod import LOG_DIRECTORY
from kurma_core.value import replace
from kurma_cri.namespaces import sandbox_namespaces
from kurma_cri.network import network_request
from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.records import SANDBOX, pod_name, sandbox_annotation
from kurma_cri.rpc import invalid
from kurma_cri.security_context import check_sandbox

if TYPE_CHECKING:
    from kurma_cri.options import Handler, Options

Json = Any
#: The program that manages sandboxes and images, as Kurma's listings and refusals name it.
MANAGER = "kubelet"
MANAGER_ANNOTATION, DISPLAY_NAME = "kurma.io/manager", "kurma.io/display-name"
#: Most characters of a host name in the kernel.
_HOST_NAME = 64
#: Most characters of a display name.
_LONGEST = 512
_HOST = (NetworkRequest("host"),)
_PROTOCOLS = {cri.TCP: "tcp", cri.UDP: "udp", cri.SCTP: "sctp"}


def sandbox_request(
    id: str,
    config: cri.PodSandboxConfig,
    handler: Handler,
    created_at: int,
    options: Options,
    *,
    foreign: bool = False,
) -> PodRequest:
    """:param foreign: the stager writes no logs of containers.
    :raises RpcError: the configuration is wrong, or asks for something that this runtime does not do."""
    meta = config.metadata
    if not meta.name or not meta.namespace or not meta.uid:
        raise invalid("metadata needs name, namespace and uid")
    check_sandbox(config.linux.security_context)
    namespaces = config.linux.security_context.namespace_options
    host_network = namespaces.network == cri.NODE
    annotations = {
        SANDBOX: sandbox_annotation(id, config, handler.name, created_at),
        MANAGER_ANNOTATION: MANAGER,
        DISPLAY_NAME: display_name(meta),
    }
    if config.log_directory:
        if not config.log_directory.startswith("/"):
            raise invalid(f"log_directory {config.log_directory!r} must be an absolute path")
        if not foreign:
            annotations[LOG_DIRECTORY] = config.log_directory
    own = sandbox_namespaces(config.linux, handler.userns)
    annotations.update(own.annotations)
    pod: dict[str, Json] = {
        "apps": [],
        "annotations": [{"name": name, "value": value} for name, value in annotations.items()],
        "userLabels": dict(config.labels),
    }
    request: dict[str, Json] = {"pod": pod, "name": pod_name(id)}
    return replace(
        PodRequest.from_json(request),
        stager=handler.stager,
        renderer=handler.renderer,
        userns=own.userns,
        isolators=own.isolators,
        hostname=host_name(config),
        networks=_HOST if host_network else (network_request(options.network, id, meta),),
        ports=() if host_network else _ports(config),
        dns=_dns(config),
        grants=("os/linux/namespaces=net",) if host_network else (),
    )


def display_name(metadata: cri.PodSandboxMetadata) -> str:
    """The name of the pod in Kurma's listings: namespace and name, on one line."""
    text = f"{metadata.namespace}/{metadata.name}"[:_LONGEST]
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def host_name(config: cri.PodSandboxConfig) -> str:
    """The host name of a sandbox: the given one, else the node's.

    :raises RpcError: the kernel, or ``/etc/hosts``, cannot hold it.
    """
    name = config.hostname
    if len(name) > _HOST_NAME or not all(one.isascii() and (one.isalnum() or one in "-._") for one in name):
        raise invalid(f"hostname: expected at most {_HOST_NAME} letters, digits and any of -._, got {name[:80]!r}")
    return name or socket.gethostname()


def _dns(config: cri.PodSandboxConfig) -> DnsRequest | None:
    if not config.HasField("dns_config"):
        return None
    dns = config.dns_config
    for part, texts in (("servers", dns.servers), ("searches", dns.searches), ("options", dns.options)):
        for text in texts:
            if not text or not text.isprintable() or " " in text:
                raise invalid(f"dns_config: {part}: {text[:80]!r} is not a word of resolv.conf")
    return DnsRequest(tuple(dns.servers), tuple(dns.searches), tuple(dns.options), exact=True)


def _ports(config: cri.PodSandboxConfig) -> tuple[PortMapping, ...]:
    found = []
    for port in config.port_mappings:
        try:
            ipaddress.ip_address(port.host_ip or "0.0.0.0")  # noqa: S104 - nothing listens
        except ValueError:
            raise invalid(f"port_mappings: host_ip {port.host_ip!r} is not an IP address") from None
        if port.host_port == 0:
            continue
        if port.container_port == 0:
            raise invalid("port_mappings: container_port is missing")
        protocol = _PROTOCOLS[port.protocol]
        found.append(PortMapping(port.host_port, port.container_port, protocol, port.host_ip))
    return tuple(found)
