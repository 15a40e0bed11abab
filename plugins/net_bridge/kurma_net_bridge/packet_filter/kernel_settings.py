"""Sets the kernel's settings for bridge networks: forwarding, published ports of loopback addresses, a route to
::1.

For IPv4, ``route_localnet`` makes published ports reachable by the host's 127.0.0.1. IPv6 has no such setting. But
there the answer from the bridge, whose destination netfilter has translated back to ``::1``, only needs a route by
the bridge: the kernel looks up a loopback address at the interface of the packet. Packets from outside to ``::1``
are dropped long before. If bridges pass their frames to the packet filter
(``net.bridge.bridge-nf-call-ip6tables``), the translation comes too early, and the kernel drops the answer.
"""

from __future__ import annotations

import errno
import os

from kurma_core.errors import NetworkError
from kurma_core.linux.netlink import Netlink, NetlinkError
from kurma_net_bridge.packet_filter.network_rules import NetworkRules

_ROOT = "/proc/sys/net/"
#: Metric of our route: the kernel prefers its own route to ::1 by ``lo``.
_METRIC = 2048
_LOOPBACK = bytes(15) + b"\1"
#: Errors if the route exists already, or if this host or this bridge has no IPv6.
_EXPECTED = (errno.EEXIST, errno.EOPNOTSUPP, errno.EACCES, errno.ENETDOWN, errno.EINVAL)
_BRIDGE_SWITCH = "bridge/bridge-nf-call-ip6tables"


def ensure_settings(network: NetworkRules) -> None:
    """Makes the settings that are not made yet; each is read first.

    :raises NetworkError: a setting cannot be made; names it.
    """
    bridge = network.bridge
    if 4 in network.families:
        _set(network, "ipv4/ip_forward", "1")
        # For 127.0.0.1:PORT of the host. It is set for the bridge only, and `guard` keeps pods from using it.
        _set(network, f"ipv4/conf/{bridge}/route_localnet", "1")
    if os.path.isdir(f"{_ROOT}ipv6/conf/{bridge}"):
        # A pod must not act as a router for the host.
        _set(network, f"ipv6/conf/{bridge}/accept_ra", "0")
    if 6 in network.families and _get("ipv6/conf/all/forwarding") != "1":
        _keep_advertised_routes(network)
        _set(network, "ipv6/conf/all/forwarding", "1")


def _keep_advertised_routes(network: NetworkRules) -> None:
    """Makes interfaces accept router advertisements (``accept_ra`` 2), which a forwarding host ignores otherwise:
    it would lose its advertised routes.
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


def ensure_loopback_route(bridge: str) -> None:
    """Makes the route to ``::1`` by the bridge, which is removed with the bridge. Does nothing without IPv6.

    :raises OSError: there is no such bridge.
    """
    with Netlink() as netlink:
        link = netlink.link(bridge)
        if link is None:
            raise OSError(errno.ENODEV, f"there is no bridge {bridge}")
        try:
            netlink.add_local_route(link.index, _LOOPBACK, _METRIC)
        except NetlinkError as error:
            if error.errno not in _EXPECTED:
                raise


def forwards() -> bool:
    """Whether the host forwards IPv4 packets."""
    return _get("ipv4/ip_forward") == "1"


def loopback_works() -> bool:
    """Whether published ports can be reached by ``[::1]``: not if bridges pass IPv6 frames to the packet
    filter."""
    return _get(_BRIDGE_SWITCH) in ("", "0")
