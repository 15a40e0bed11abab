"""Sets what the kernel needs for bridge networks: forwarding, loopback addresses led to a bridge, a route to ::1.

IPv4 has a switch for the host's 127.0.0.1, ``route_localnet``. IPv6 has none, but the answer from the bridge,
which netfilter has made one to ``::1`` again, only needs a route: the kernel looks for a loopback address at the
interface that the packet came by. Packets from outside that name ``::1`` are dropped long before. Where bridges
hand their frames to the packet filter (``net.bridge.bridge-nf-call-ip6tables``) that is too early: the answer
names ``::1`` before the kernel looks at it, and is dropped.
"""

from __future__ import annotations

import errno
import os

from kurma_core.errors import NetworkError
from kurma_core.linux.netlink import Netlink, NetlinkError
from kurma_net_bridge.packet_filter.network_rules import NetworkRules

_ROOT = "/proc/sys/net/"
#: Behind the kernel's own route to ::1, by ``lo``.
_METRIC = 2048
_LOOPBACK = bytes(15) + b"\1"
#: It exists already; there is no IPv6 on this host, or on this bridge.
_EXPECTED = (errno.EEXIST, errno.EOPNOTSUPP, errno.EACCES, errno.ENETDOWN, errno.EINVAL)
_BRIDGE_SWITCH = "bridge/bridge-nf-call-ip6tables"


def ensure_settings(network: NetworkRules) -> None:
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


def ensure_loopback_route(bridge: str) -> None:
    """The route to ``::1`` by the bridge; it goes with it. Where the host lacks IPv6, there is none.

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


def loopback_works() -> bool:
    """False: bridges hand their frames of IPv6 to the packet filter, and no port is reached by ``[::1]``."""
    return _get(_BRIDGE_SWITCH) in ("", "0")
