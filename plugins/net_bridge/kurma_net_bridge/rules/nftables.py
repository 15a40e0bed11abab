"""Rules by nftables: a table of its own for each network, and maps in it that say which port leads to which pod.

::

    table inet kurma-1f2e3d4c
        any4, any6          maps: protocol . port             : address of the pod . its port
        one4, one6          maps: address . protocol . port   : the same, of ports that name an address of the host
        chain guard         127.0.0.0/8 neither comes from the bridge nor goes there by a stranger's hand
        chain to_pods       what may go to the bridge
        chain from_pods     what may go from it to another bridge
        chain publish       the maps, asked for what goes to the host; from `prerouting` and `output`
        chain postrouting   masquerade

An element's comment is the pod. A rule's comment has a sum of all rules, so that a table that lacks one, or is of
another version, is seen by one question to the kernel.
"""

from __future__ import annotations

import _socket
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence

from kurma_net_bridge.rules.netfilter import INET, Netfilter
from kurma_net_bridge.rules.plan import NetworkRules, Published, comment, is_id
from kurma_net_bridge.rules.tool import run_tool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_net_bridge.rules.xtables import Xtables

_PREFIX = "kurma-"
_MAPS = {
    "one4": "ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service",
    "one6": "ipv6_addr . inet_proto . inet_service : ipv6_addr . inet_service",
    "any4": "inet_proto . inet_service : ipv4_addr . inet_service",
    "any6": "inet_proto . inet_service : ipv6_addr . inet_service",
}
_BASE = {
    "guard": "type filter hook prerouting priority -300; policy accept;",
    "forward": "type filter hook forward priority 0; policy accept;",
    "prerouting": "type nat hook prerouting priority -100; policy accept;",
    "output": "type nat hook output priority -100; policy accept;",
    "postrouting": "type nat hook postrouting priority 100; policy accept;",
}
_OTHERS = ("to_pods", "from_pods", "publish")
_PROTOCOLS = {6: "tcp", 17: "udp", 132: "sctp"}
_SIZE = {4: 4, 6: 16}
_FAMILIES = {4: _socket.AF_INET, 6: _socket.AF_INET6}
_WORD = {4: "ip", 6: "ip6"}
_LOOPBACK = {4: "127.0.0.0/8", 6: "::1"}
_MULTICAST = {4: "224.0.0.0/4", 6: "ff00::/8"}

#: Map, key and value as nft writes them.
Element = tuple[str, str, str]


def table_of(network: NetworkRules) -> str:
    """Name of the network's table."""
    return _PREFIX + network.id


def static_rules(network: NetworkRules) -> list[tuple[str, str]]:
    """Chain and rule, in order, without what tells whose they are."""
    bridge = f'"{network.bridge}"'
    # By its kind, so that a bridge that is made after these rules is none that pods reach.
    other = 'meta oifkind "bridge" '
    if network.open:
        other += "oifname != { " + ", ".join(f'"{name}"' for name in network.open) + " } "
    rules = [
        ("forward", f"oifname {bridge} jump to_pods"),
        ("forward", f"iifname {bridge} {other}jump from_pods"),
        ("from_pods", "ct state established,related accept"),
        ("from_pods", "ct status dnat accept"),
        ("from_pods", "reject with icmpx admin-prohibited"),
        ("to_pods", "ct state established,related accept"),
        ("to_pods", "ct status dnat accept"),
    ]
    if not network.isolated:
        rules.append(("to_pods", f"iifname {bridge} accept"))
    rules += [("to_pods", "ct state invalid drop"), ("to_pods", "reject with icmpx admin-prohibited")]
    for family in network.families:
        word = _WORD[family]
        loopback = _LOOPBACK[family]
        rules += [
            ("guard", f"iifname {bridge} {word} daddr {loopback} drop"),
            ("guard", f"iifname {bridge} {word} saddr {loopback} drop"),
            # What the host sends to itself is led by `output`. Who else names a loopback address is a stranger.
            ("prerouting", f"{word} daddr {loopback} return"),
            ("publish", f"dnat {word} to {word} daddr . meta l4proto . th dport map @one{family}"),
            ("publish", f"dnat {word} to meta l4proto . th dport map @any{family}"),
        ]
        for source in (loopback, *network.subnets_of(family)):
            rules.append(("postrouting", f"oifname {bridge} {word} saddr {source} ct status dnat masquerade"))
        if network.masquerade:
            rules += [
                (
                    "postrouting",
                    f"oifname != {bridge} {word} saddr {subnet} {word} daddr != {_MULTICAST[family]} masquerade",
                )
                for subnet in network.subnets_of(family)
            ]
    rules += [("prerouting", "fib daddr type local jump publish"), ("output", "fib daddr type local jump publish")]
    return rules


def static_text(network: NetworkRules) -> str:
    """A batch that makes the network's rules whole, whatever is there of them. Maps keep their elements."""
    table = f"inet {table_of(network)}"
    lines = [f"add table {table}"]
    lines += [f"add map {table} {name} {{ type {kind}; }}" for name, kind in _MAPS.items()]
    lines += [f"add chain {table} {chain} {{ {kind} }}" for chain, kind in _BASE.items()]
    lines += [f"add chain {table} {chain}" for chain in _OTHERS]
    lines += [f"flush chain {table} {chain}" for chain in (*_BASE, *_OTHERS)]
    mark = _mark(network)
    lines += [f'add rule {table} {chain} {rule} comment "{mark}"' for chain, rule in static_rules(network)]
    return "\n".join(lines) + "\n"


def _mark(network: NetworkRules) -> str:
    """What stands on each of the network's rules: whose it is, and a sum of all of them."""
    text = "\n".join(f"{chain} {rule}" for chain, rule in static_rules(network))
    return f"{comment(network.network)} {zlib.crc32(text.encode()):08x}"


class Nftables:
    """:param program: path of ``nft``."""

    def __init__(self, program: str) -> None:
        self._program = program
        #: As of the other backend: none of iptables.
        self.programs: tuple[Xtables, ...] = ()

    def ensure(self, netfilter: Netfilter, network: NetworkRules) -> bool:
        """Makes the network's rules whole. True: they were not.

        :raises NetworkError: nft refuses.
        """
        if is_whole(netfilter, network):
            return False
        self._do(static_text(network), f'network "{network.network}": its rules cannot be made', network.network)
        return True

    def publish(self, netfilter: Netfilter, network: NetworkRules, pod: str, wanted: Iterable[Published]) -> None:
        """Ports that led to this pod and are not wanted any more lead nowhere. A port that leads to another pod
        leads to this one from now on: who asks has seen to it that the other is gone.
        """
        mark = comment(pod)
        new = {element[:2]: element[2] for element in map(_element, wanted)}
        lines = []
        for place, value, owner in elements_of(netfilter, table_of(network)):
            if new.get(place) == value and owner == mark:
                del new[place]
            elif place in new or owner == mark:
                lines.append(_line("delete", network, place, value))
        lines += [_line("add", network, place, value, mark) for place, value in new.items()]
        if lines:
            failed = f'network "{network.network}": ports cannot be published'
            self._do("\n".join(lines) + "\n", failed, network.network)

    def withdraw(self, netfilter: Netfilter, network: NetworkRules, pod: str) -> tuple[str, ...]:
        """The addresses that ports of UDP led to. Starts no program where no port did."""
        mark = comment(pod)
        held = [one for one in elements_of(netfilter, table_of(network)) if one[2] == mark]
        if held:
            lines = [_line("delete", network, place, value) for place, value, _ in held]
            failed = f'network "{network.network}": ports cannot be withdrawn'
            self._do("\n".join(lines) + "\n", failed, network.network)
        return tuple({value.rpartition(" . ")[0] for place, value, _ in held if "udp" in place[1].split(" . ")})

    def remove(self, netfilter: Netfilter, network: NetworkRules) -> None:
        """The network's table. None there is success."""
        if table_of(network) in netfilter.tables(INET):
            failed = f'network "{network.network}": its rules cannot be removed'
            self._do(f"delete table inet {table_of(network)}\n", failed, network.network)

    def found(self, netfilter: Netfilter) -> Sequence[tuple[str, str, str]]:
        """Network id, pod or "", and what there is."""
        found = []
        for name in netfilter.tables(INET):
            if not name.startswith(_PREFIX) or not is_id(name.removeprefix(_PREFIX)):
                continue
            network = name.removeprefix(_PREFIX)
            found.append((network, "", f"nftables table inet {name}"))
            found += [
                (network, pod, f"element of {place[0]} in nftables table inet {name}: {place[1]} : {value}")
                for place, value, pod in elements_of(netfilter, name)
            ]
        return found

    def _do(self, batch: str, failed: str, network: str) -> None:
        run_tool([self._program, "-f", "-"], batch, failed, network)


def is_whole(netfilter: Netfilter, network: NetworkRules) -> bool:
    """Every rule of the network is in the kernel, as this version writes them. Rules that an administrator has put
    beside them do not count.
    """
    mark = _mark(network)
    there = Counter(rule.chain for rule in netfilter.rules(INET, table_of(network)) if rule.comment == mark)
    return there == Counter(chain for chain, _ in static_rules(network))


def elements_of(netfilter: Netfilter, table: str) -> list[tuple[tuple[str, str], str, str]]:
    """Map and key, value, pod of every port that a table leads to one."""
    found = []
    for name in _MAPS:
        for key, value, pod in netfilter.elements(INET, table, name):
            family = int(name[-1])
            words = []
            if name.startswith("one"):
                words.append(_socket.inet_ntop(_FAMILIES[family], key[: _SIZE[family]]))
                key = key[_SIZE[family] :]
            # Each part of a key begins at a multiple of four bytes.
            words += [_PROTOCOLS.get(key[0], str(key[0])), str(int.from_bytes(key[4:6], "big"))]
            port = int.from_bytes(value[_SIZE[family] : _SIZE[family] + 2], "big")
            address = _socket.inet_ntop(_FAMILIES[family], value[: _SIZE[family]])
            found.append(((name, " . ".join(words)), f"{address} . {port}", pod))
    return found


def _element(port: Published) -> Element:
    words = [port.host_ip] if port.host_ip else []
    words += [port.protocol, str(port.host_port)]
    name = f"{'one' if port.host_ip else 'any'}{port.family}"
    return name, " . ".join(words), f"{port.address} . {port.pod_port}"


def _line(verb: str, network: NetworkRules, place: tuple[str, str], value: str, pod: str = "") -> str:
    """nft wants a map's key alone to delete an element."""
    name, key = place
    whole = key if verb == "delete" else f'{key} comment "{pod}" : {value}'
    return f"{verb} element inet {table_of(network)} {name} {{ {whole} }}"
