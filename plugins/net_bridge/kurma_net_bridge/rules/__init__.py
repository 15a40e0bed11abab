"""The packet filter of bridge networks: what may go where, addresses translated, ports published (W8, W9).

Rules are in tables and chains of their own, named by the network's id; nobody else's are touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kurma_core.errors import NetworkError
from kurma_core.models import PortMapping
from kurma_net_bridge.rules.netfilter import Netfilter
from kurma_net_bridge.rules.nftables import Nftables
from kurma_net_bridge.rules.plan import NetworkRules, check_network, published
from kurma_net_bridge.rules.tool import find_tool

__all__ = ["NetworkRules", "Rules"]


class Rules:
    """Rules in the kernel of the network namespace that the calling thread is in. Nothing is kept between calls,
    so any number of threads and processes may use it at once.

    :param note: tells the user something in one line.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note

    def ensure(self, network: NetworkRules) -> bool:
        """What holds for the network as a whole is in the kernel after this, as are the switches that it takes.
        The bridge must be there. Cheap when it is all there: no program is started.

        :returns: it was not there, or not whole: then ports that were published may be gone, too.
        :raises NetworkError: there is no packet filter on this host, or it refuses.
        """
        from kurma_net_bridge.rules.loopback import ensure_loopback_route
        from kurma_net_bridge.rules.sysctls import ensure_sysctls

        check_network(network)
        ensure_sysctls(network)
        try:
            if 6 in network.families:
                ensure_loopback_route(network.bridge)
            with Netfilter() as netfilter:
                return self._backend(netfilter).ensure(netfilter, network)
        except OSError as error:
            raise _failed(network, error) from None

    def publish(
        self, network: NetworkRules, pod: str, addresses: tuple[str, ...], ports: tuple[PortMapping, ...]
    ) -> None:
        """Leads ports of the host to the pod, these and no others. Repeatable. A host address that is none of the
        host's leads nowhere until it is.

        :param addresses: the pod's, with or without a prefix length.
        :raises NetworkError: the pod lacks an address for a port, or the packet filter refuses.
        """
        from kurma_net_bridge.rules.conntrack import forget_ports

        check_network(network)
        wanted = published(network, addresses, ports)
        try:
            with Netfilter() as netfilter:
                self._backend(netfilter).publish(netfilter, network, pod, wanted)
                forget_ports(netfilter, wanted)
        except OSError as error:
            raise _failed(network, error) from None

    def withdraw(self, network: NetworkRules, pod: str) -> None:
        """No port leads to the pod any more. Repeatable; starts no program where none did."""
        from kurma_net_bridge.rules.conntrack import forget_pod

        check_network(network)
        try:
            with Netfilter() as netfilter:
                for backend in self._backends(netfilter):
                    forget_pod(netfilter, backend.withdraw(netfilter, network, pod))
        except OSError as error:
            raise _failed(network, error) from None

    def remove(self, network: NetworkRules) -> None:
        """Takes away everything of the network. Repeatable. Switches of the kernel stay."""
        check_network(network)
        try:
            with Netfilter() as netfilter:
                for backend in self._backends(netfilter):
                    backend.remove(netfilter, network)
        except OSError as error:
            raise _failed(network, error) from None

    def found(self) -> Sequence[tuple[str, str, str]]:
        """Network id, pod or "", and what it is, of each rule, table or chain of ours that is in the kernel."""
        with Netfilter() as netfilter:
            return [one for backend in self._backends(netfilter) for one in backend.found(netfilter)]

    def _backend(self, netfilter: Netfilter) -> Nftables:
        return self._backends(netfilter)[0]

    def _backends(self, netfilter: Netfilter) -> list[Nftables]:
        program = find_tool("nft")
        if program is None:
            raise NetworkError("no packet filter", hint="install nftables")
        return [Nftables(program)]


def _failed(network: NetworkRules, error: OSError) -> NetworkError:
    return NetworkError(
        f'network "{network.network}": the kernel\'s packet filter fails: {error.strerror}',
        network=network.network,
        errno=error.errno,
    )
