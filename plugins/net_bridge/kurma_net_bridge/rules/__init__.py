"""The packet filter of bridge networks: what may go where, addresses translated, ports published (W8, W9).

Rules are in tables and chains of their own, named by the network's id; nobody else's are touched.
"""

from __future__ import annotations

from kurma_core.errors import NetworkError
from kurma_core.linux.programs import find_program
from kurma_net_bridge.rules.netfilter import Netfilter
from kurma_net_bridge.rules.nftables import Nftables
from kurma_net_bridge.rules.plan import NetworkRules, check_network, published

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Protocol

    from kurma_core.models.network import PortMapping
    from kurma_net_bridge.rules.plan import Published
    from kurma_net_bridge.rules.xtables import Xtables

    class _Backend(Protocol):
        @property
        def programs(self) -> tuple[Xtables, ...]: ...

        def ensure(self, netfilter: Netfilter, network: NetworkRules) -> bool: ...

        def publish(
            self, netfilter: Netfilter, network: NetworkRules, pod: str, wanted: Iterable[Published]
        ) -> None: ...

        def withdraw(self, netfilter: Netfilter, network: NetworkRules, pod: str) -> tuple[str, ...]: ...

        def remove(self, netfilter: Netfilter, network: NetworkRules) -> None: ...

        def found(self, netfilter: Netfilter) -> Sequence[tuple[str, str, str]]: ...


__all__ = ["NetworkRules", "Rules"]


class Rules:
    """Rules in the kernel of the network namespace that the calling thread is in. Nothing is kept between calls,
    so any number of threads and processes may use it at once. nftables are used where there is ``nft``, else
    iptables (docs/decisions/0023-packet-filter.md).

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
        from kurma_net_bridge.rules.bridges import with_other_bridges
        from kurma_net_bridge.rules.loopback import ensure_loopback_route
        from kurma_net_bridge.rules.strict import pass_forward, tell_of_drops
        from kurma_net_bridge.rules.sysctls import ensure_sysctls

        check_network(network)
        ensure_sysctls(network)
        try:
            if 6 in network.families:
                ensure_loopback_route(network.bridge)
            network = with_other_bridges(network)
            with Netfilter() as netfilter:
                backend = self._choice(netfilter, network)
                made = backend.ensure(netfilter, network)
                pass_forward(netfilter, network, backend.programs)
                tell_of_drops(netfilter, network, self._note)
                return made
        except OSError as error:
            raise _failed(network, error) from None

    def check(self, network: NetworkRules) -> None:
        """Changes nothing. :raises NetworkError: there is no way to filter the network's packets on this host."""
        check_network(network)
        try:
            with Netfilter() as netfilter:
                self._choice(netfilter, network)
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
        from kurma_net_bridge.rules.loopback import loopback_works

        check_network(network)
        wanted = published(network, addresses, ports)
        if any(port.host_ip == "::1" for port in wanted) and not loopback_works():
            self._note(
                f'network "{network.network}": ports at [::1] are not reached while bridges hand their frames to '
                "the packet filter; turn that off: sysctl -w net.bridge.bridge-nf-call-ip6tables=0"
            )
        try:
            with Netfilter() as netfilter:
                self._choice(netfilter, network).publish(netfilter, network, pod, wanted)
                forget_ports(netfilter, wanted)
        except OSError as error:
            raise _failed(network, error) from None

    def withdraw(self, network: NetworkRules, pod: str) -> None:
        """No port leads to the pod any more. Repeatable; starts no program where none did."""
        from kurma_net_bridge.rules.conntrack import forget_pod

        check_network(network)
        try:
            with Netfilter() as netfilter:
                for backend in _backends():
                    forget_pod(netfilter, backend.withdraw(netfilter, network, pod))
        except OSError as error:
            raise _failed(network, error) from None

    def remove(self, network: NetworkRules) -> None:
        """Takes away everything of the network. Repeatable. Switches of the kernel stay."""
        from kurma_net_bridge.rules.conntrack import forget_pod

        check_network(network)
        try:
            with Netfilter() as netfilter:
                for backend in _backends():
                    pods = {pod for each, pod, _ in backend.found(netfilter) if each == network.id and pod}
                    for pod in pods:
                        forget_pod(netfilter, backend.withdraw(netfilter, network, pod))
                    backend.remove(netfilter, network)
        except OSError as error:
            raise _failed(network, error) from None

    def found(self) -> Sequence[tuple[str, str, str]]:
        """Network id, pod or "", and what it is, of each rule, table or chain of ours that is in the kernel."""
        with Netfilter() as netfilter:
            return [one for backend in _backends() for one in backend.found(netfilter)]

    def _choice(self, netfilter: Netfilter, network: NetworkRules) -> _Backend:
        """What makes rules. :raises NetworkError: there is nothing."""
        nft = find_program("nft")
        if nft is not None and netfilter.has_tables():
            return Nftables(nft)
        from kurma_net_bridge.rules.iptables import Iptables
        from kurma_net_bridge.rules.xtables import installed

        programs = {family: installed(family) for family in network.families}
        missing = ["iptables" if family == 4 else "ip6tables" for family, found in programs.items() if not found]
        if not missing:
            return Iptables([found[0] for found in programs.values()])
        why = "the kernel has no nftables, and" if nft is not None else "there is no nft, and"
        raise NetworkError(
            f'network "{network.network}": no way to filter packets: {why} no {" and no ".join(missing)}',
            hint="install one, e.g. Debian's package nftables",
            network=network.network,
        )


def _backends() -> list[_Backend]:
    """Whatever may have made rules, now or when other programs were installed."""
    from kurma_net_bridge.rules.iptables import Iptables
    from kurma_net_bridge.rules.xtables import installed

    every = [xtables for family in (4, 6) for xtables in installed(family)]
    kinds = [[one for one in every if one.legacy == legacy] for legacy in (False, True)]
    return [Nftables(find_program("nft") or "nft"), *(Iptables(kind) for kind in kinds if kind)]


def _failed(network: NetworkRules, error: OSError) -> NetworkError:
    return NetworkError(
        f'network "{network.network}": the kernel\'s packet filter fails: {error.strerror}',
        network=network.network,
        errno=error.errno,
    )
