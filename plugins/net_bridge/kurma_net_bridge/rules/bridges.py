"""Other bridges of the host: those that lead to the outside, and those on which somebody's containers are.

CNI's networks, other container managers and virtual machines have their bridges, and not all refuse what comes
from elsewhere. Pods reach what hangs there by ports that are published, as they reach pods of other networks.
"""

from __future__ import annotations

from kurma_core.linux.netlink import Link, Netlink
from kurma_core.value import replace
from kurma_net_bridge.links import owner_of
from kurma_net_bridge.rules.plan import NetworkRules, can_be_named

#: Kinds of interfaces that containers and virtual machines are at the other end of.
_INNER = ("veth", "tun")


def with_other_bridges(network: NetworkRules) -> NetworkRules:
    """The network with the bridges that its pods reach, and those that they do not, as they are now. Networks of
    ours are not among them: they refuse by themselves. Where no rule can be written for a name, there is none.

    :raises OSError: the kernel does not tell.
    """
    with Netlink() as netlink:
        others = [
            link
            for link in netlink.links(kind="bridge")
            if link.name != network.bridge and owner_of(link) is None and can_be_named(link.name)
        ]
        ways = {link.name: link.name in network.reaches or _leads_out(netlink, link) for link in others}
    return replace(
        network,
        open=tuple(sorted(name for name, way in ways.items() if way)),
        closed=tuple(sorted(name for name, way in ways.items() if not way)),
    )


def _leads_out(netlink: Netlink, bridge: Link) -> bool:
    """A network card hangs on it, or whatever else is none of the host's own inside; or a gateway is behind it."""
    if any(port.kind not in _INNER for port in netlink.links(master=bridge.index)):
        return True
    return any(gateway is not None for _, _, gateway in netlink.routes(bridge.index))
