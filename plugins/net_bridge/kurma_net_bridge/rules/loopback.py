"""The host's ``[::1]:PORT`` led to a pod.

IPv4 has a switch for it, ``route_localnet``. IPv6 has none, but the answer from the bridge, which netfilter has
made one to ``::1`` again, only needs a route: the kernel looks for a loopback address at the interface that the
packet has come by. Packets that name ``::1`` when they come from outside are dropped long before.

Where bridges hand their frames to the packet filter (``net.bridge.bridge-nf-call-ip6tables``) that is too early:
the answer names ``::1`` before the kernel looks at it, and is dropped.
"""

from __future__ import annotations

import errno

from kurma_core.linux.netlink import Netlink, NetlinkError

#: Behind the kernel's own route to ::1, by ``lo``.
_METRIC = 2048
_LOOPBACK = bytes(15) + b"\1"
#: It is there already; there is no IPv6 on this host, or on this bridge.
_EXPECTED = (errno.EEXIST, errno.EOPNOTSUPP, errno.EACCES, errno.ENETDOWN, errno.EINVAL)
_SWITCH = "/proc/sys/net/bridge/bridge-nf-call-ip6tables"


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
    try:
        with open(_SWITCH, "rb", buffering=0) as file:
            return file.read(8).strip() == b"0"
    except OSError:
        return True
