"""Makes, checks and removes the packet filter rules of a bridge network, and publishes ports of pods.

Rules are in nftables tables of their own, named by the network's id; other programs' rules stay as they are
(docs/decisions/0023-packet-filter.md).
"""

from __future__ import annotations

import os
from contextlib import contextmanager

from kurma_core.errors import NetworkError
from kurma_core.hookspecs.driver import HostCheck, module_hint, setting_hint
from kurma_core.linux.netlink import Link, Netlink
from kurma_core.linux.programs import find_program
from kurma_core.value import replace
from kurma_net_bridge.links import owner_of
from kurma_net_bridge.packet_filter import forward_chain, nftables
from kurma_net_bridge.packet_filter.netfilter import Netfilter
from kurma_net_bridge.packet_filter.network_rules import NetworkRules, can_be_named, check_network

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kurma_core.models.network import PortMapping

#: Kinds of interfaces that lead to containers and virtual machines.
_INNER = ("veth", "tun")


class Rules:
    """The packet filter rules in the calling thread's network namespace. It keeps no state between calls, so any
    number of threads and processes may use it at once.

    :param note: shows the user a line.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note

    def ensure(self, network: NetworkRules) -> bool:
        """Makes missing rules and kernel settings of the network.

        The bridge must exist. If nothing is missing, no program is started.

        :returns: whether something was missing: rules of published ports may be missing, too, then.
        :raises NetworkError: this host has no nftables, or nftables refuses.
        """
        from kurma_net_bridge.packet_filter.kernel_settings import ensure_loopback_route, ensure_settings

        with _filter(network) as netfilter:
            nft = _nft(netfilter, network)
            ensure_settings(network)
            if 6 in network.families:
                ensure_loopback_route(network.bridge)
            network = _with_other_bridges(network)
            made = nftables.ensure(netfilter, nft, network)
            forward_chain.let_through(netfilter, network)
            forward_chain.tell_of_drops(netfilter, network, self._note)
            return made

    def check(self, network: NetworkRules) -> None:
        """Checks the host without changes. :raises NetworkError: it cannot filter the network's packets."""
        with _filter(network) as netfilter:
            _nft(netfilter, network)

    def publish(
        self, network: NetworkRules, pod: str, addresses: tuple[str, ...], ports: tuple[PortMapping, ...]
    ) -> None:
        """Publishes these ports of the pod, and no others. It can be repeated. A port of an address that the host
        does not have works once the host has it.

        :param addresses: the pod's, with or without a prefix length.
        :raises NetworkError: the pod lacks an address for a port, or nftables refuses.
        """
        from kurma_net_bridge.packet_filter.kernel_settings import loopback_works
        from kurma_net_bridge.packet_filter.published_ports import forget_ports, publish, published

        with _filter(network) as netfilter:
            wanted = published(network, addresses, ports)
            if any(port.host_ip == "::1" for port in wanted) and not loopback_works():
                self._note(
                    f'network "{network.network}": ports at [::1] are not reached while bridges hand their frames '
                    "to the packet filter; other addresses of the host lead to them: docs/howto/bridges.md"
                )
            publish(netfilter, _nft(netfilter, network), network, pod, wanted)
            forget_ports(netfilter, wanted)

    def withdraw(self, network: NetworkRules, pod: str) -> None:
        """Withdraws all ports of the pod. It can be repeated, and starts no program if there are none."""
        from kurma_net_bridge.packet_filter.published_ports import forget_pod, withdraw

        with _filter(network) as netfilter:
            forget_pod(netfilter, withdraw(netfilter, lambda: _nft(netfilter, network), network, pod))

    def remove(self, network: NetworkRules) -> None:
        """Removes all rules of the network, and keeps kernel settings. It can be repeated."""
        from kurma_net_bridge.packet_filter.published_ports import found

        with _filter(network) as netfilter:
            for pod in {pod for each, pod, _ in found(netfilter) if each == network.id and pod}:
                self.withdraw(network, pod)
            if nftables.exists(netfilter, network):
                nftables.remove(_nft(netfilter, network), network)
            forward_chain.remove(netfilter, network)

    def found(self) -> Sequence[tuple[str, str, str]]:
        """Network id, pod or "", and description of each of our rules, tables and map elements in the kernel."""
        from kurma_net_bridge.packet_filter.published_ports import found

        with Netfilter() as netfilter:
            return [*found(netfilter), *forward_chain.found(netfilter)]


def host_checks() -> Iterator[HostCheck]:
    """Checks nftables, and for bridges that are there, forwarding and the rules of other programs."""
    from kurma_net_bridge.packet_filter.kernel_settings import forwards, loopback_works

    if find_program("nft") is None:
        yield HostCheck("nft", False, "the program nft is missing", "apt-get install nftables")
    else:
        yield HostCheck("nft", True)
    if os.geteuid() != 0:
        return  # the kernel shows its packet filter to root alone
    try:
        with Netfilter() as netfilter:
            lacks = "" if netfilter.has_tables() else "the kernel has no nftables"
            yield HostCheck("nftables", not lacks, lacks, lacks and module_hint("nf_tables"))
            with Netlink() as netlink:
                bridges = [link.name for link in netlink.links(kind="bridge") if owner_of(link) is not None]
            lacks = (
                "" if not bridges or forwards() else "packets of pods are not forwarded: net.ipv4.ip_forward is 0"
            )
            yield HostCheck("forwarding", not lacks, lacks, lacks and setting_hint("net.ipv4.ip_forward", "1"))
            stops = [found for bridge in bridges for found in forward_chain.drops(netfilter, bridge)]
            yield HostCheck(
                "rules",
                not stops,
                "; ".join(dict.fromkeys(f"{what} drops packets of pods" for what, _ in stops)),
                " && ".join(command for _, commands in stops for command in commands),
            )
    except OSError as error:
        yield HostCheck("nftables", False, f"the packet filter cannot be read: {error.strerror}")
    # Other ports work, so that this is no failure. There is no hint: other programs may need the filter.
    lacks = "published ports of [::1] are not reached, since bridges filter packets: docs/howto/bridges.md"
    yield HostCheck("::1", True, "" if loopback_works() else lacks)


@contextmanager
def _filter(network: NetworkRules) -> Iterator[Netfilter]:
    """:raises NetworkError: rules cannot be written for the network, or the kernel refuses."""
    check_network(network)
    try:
        with Netfilter() as netfilter:
            yield netfilter
    except OSError as error:
        raise NetworkError(
            f'network "{network.network}": the kernel\'s packet filter fails: {error.strerror}',
            network=network.network,
            errno=error.errno,
        ) from None


def _nft(netfilter: Netfilter, network: NetworkRules) -> str:
    """Path of ``nft``. :raises NetworkError: the program or the kernel's part is missing."""
    nft = find_program("nft")
    if nft is not None and netfilter.has_tables():
        return nft
    why, hint = "there is no program nft", "install it: apt install nftables, or dnf install nftables"
    if nft is not None:
        why, hint = "this kernel has no nftables", "load its module: modprobe nf_tables"
    raise NetworkError(
        f'cannot filter the packets of network "{network.network}": {why}', hint=hint, network=network.network
    )


def _with_other_bridges(network: NetworkRules) -> NetworkRules:
    """The network with the other bridges of the host that its pods may reach.

    CNI networks, other container managers and virtual machines have bridges, and not all of them drop packets from
    other networks. Pods reach containers there by published ports, like pods of other networks. Our own networks
    are left out, since they drop such packets themselves; so are interfaces whose names no rule can contain.

    :raises OSError: the kernel does not list them.
    """
    with Netlink() as netlink:
        found = [
            link.name
            for link in netlink.links(kind="bridge")
            if link.name != network.bridge
            and owner_of(link) is None
            and can_be_named(link.name)
            and (link.name in network.reaches or _leads_out(netlink, link))
        ]
    return replace(network, open=tuple(sorted(found)))


def _leads_out(netlink: Netlink, bridge: Link) -> bool:
    """Whether a network card or another foreign interface is attached to the bridge, or a route's gateway is
    behind it."""
    if any(port.kind not in _INNER for port in netlink.links(master=bridge.index)):
        return True
    return any(gateway is not None for _, _, gateway in netlink.routes(bridge.index))
