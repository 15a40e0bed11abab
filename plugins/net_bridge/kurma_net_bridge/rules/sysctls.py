"""The kernel's switches without which pods reach nothing: forwarding, and loopback addresses led to a bridge."""

from __future__ import annotations

import os

from kurma_core.errors import NetworkError
from kurma_net_bridge.rules.plan import NetworkRules

_ROOT = "/proc/sys/net/"


def ensure_sysctls(network: NetworkRules) -> None:
    """Sets what is not set yet; each is read first.

    :raises NetworkError: one cannot be set; says which.
    """
    bridge = network.bridge
    if 4 in network.families:
        _set(network, "ipv4/ip_forward", "1")
        # The host's 127.0.0.1:PORT goes to a pod: from the bridge alone, and `guard` keeps pods from using it.
        _set(network, f"ipv4/conf/{bridge}/route_localnet", "1")
    if os.path.isdir(f"{_ROOT}ipv6/conf/{bridge}"):
        # A pod is no router of the host's.
        _set(network, f"ipv6/conf/{bridge}/accept_ra", "0")
    if 6 in network.families and _get("ipv6/conf/all/forwarding") != "1":
        _keep_advertised_routes(network)
        _set(network, "ipv6/conf/all/forwarding", "1")


def _keep_advertised_routes(network: NetworkRules) -> None:
    """A host that forwards would forget the routes that routers have told it, and hear none any more: interfaces
    that listen to routers are told to go on.
    """
    try:
        names = os.listdir(f"{_ROOT}ipv6/conf")
    except OSError:
        return
    for name in names:
        if name not in ("all", "default", network.bridge) and _get(f"ipv6/conf/{name}/accept_ra") == "1":
            _set(network, f"ipv6/conf/{name}/accept_ra", "2")


def _get(name: str) -> str:
    try:
        with open(_ROOT + name, "rb", buffering=0) as file:
            return file.read(64).decode().strip()
    except OSError:
        return ""


def _set(network: NetworkRules, name: str, value: str) -> None:
    if _get(name) == value:
        return
    try:
        with open(_ROOT + name, "wb", buffering=0) as file:
            file.write(value.encode())
    except OSError as error:
        raise NetworkError(
            f'network "{network.network}": cannot set net/{name} to {value}: {error.strerror}',
            hint=f"set it on the host: sysctl -w net/{name}={value}",
            network=network.network,
        ) from None
