"""Publishes ports of pods (``-p 8080:80``): elements of the maps in a network's nftables table.

It also makes the kernel forget tracked connections when a port is published or withdrawn. A client that keeps
sending UDP from one port keeps its tracked connection alive, which directs the packets to the pod that had the
port before, or nowhere. With TCP, each new connection passes the rules. The kernel searches its whole connection
table, which takes some 20 ms on a large machine: so this is done for published UDP ports only.
"""

from __future__ import annotations

import _socket
import sys
from collections.abc import Callable, Iterable, Sequence

from kurma_core.errors import NetworkError
from kurma_core.linux.netlink import attribute, nest, parse_attributes
from kurma_core.models.network import PortMapping
from kurma_core.value import frozen
from kurma_net_bridge.packet_filter.netfilter import INET, Netfilter
from kurma_net_bridge.packet_filter.network_rules import NetworkRules, comment, is_id
from kurma_net_bridge.packet_filter.nftables import MAPS, PREFIX, run_nft, table_of

_FAMILIES = {4: _socket.AF_INET, 6: _socket.AF_INET6}
_SIZE = {4: 4, 6: 16}
_PROTOCOLS = {6: "tcp", 17: "udp", 132: "sctp"}
#: Host addresses that mean every address, and their family.
_ANY = {"": None, "0.0.0.0": 4, "::": 6}  # noqa: S104 - addresses to compare with, not to bind
# linux/netfilter/nfnetlink_conntrack.h
_GET, _DELETE = 1 << 8 | 1, 1 << 8 | 2
_ORIGINAL, _REPLY, _ID, _ZONE, _FILTER = 1, 2, 12, 18, 25
_TUPLE_IP, _TUPLE_PROTOCOL = 1, 2
_SOURCE, _DESTINATION = {4: 1, 6: 3}, {4: 2, 6: 4}
_NUMBER, _TO_PORT = 1, 3
_UDP = 17
_BY_SOURCE, _BY_PROTOCOL = 1 << 0, 1 << 3

#: Map, key and value in nft's notation.
Element = tuple[str, str, str]
#: Attributes of a tracked connection.
Tuple = dict[int, bytes]


@frozen
class Published:
    """One published port of the host, for one family.

    :param host_ip: "" is every address of the host.
    """

    family: int
    protocol: str
    host_ip: str
    host_port: int
    address: str
    pod_port: int


def published(
    network: NetworkRules, addresses: Iterable[str], ports: Iterable[PortMapping]
) -> tuple[Published, ...]:
    """The published ports by family; a port without a host address has one for each family of the pod.

    :param addresses: the pod's, with or without a prefix length; IPv6's link-local ones are ignored.
    :raises NetworkError: the pod has no address for a port, or the port cannot be published.
    """
    own: dict[int, str] = {}
    for each in addresses:
        family, address = _parsed(network, each.partition("/")[0])
        if not address.startswith(("fe8", "fe9", "fea", "feb")):
            own.setdefault(family, address)
    found = []
    for port in ports:
        if port.protocol not in _PROTOCOLS.values():
            raise NetworkError(
                f'network "{network.network}": a port of {port.protocol} cannot be published',
                hint="one of " + ", ".join(_PROTOCOLS.values()),
                network=network.network,
            )
        if port.host_ip in _ANY:
            wanted, address = _ANY[port.host_ip], ""
        else:
            wanted, address = _parsed(network, port.host_ip)
        families = [family for family in own if wanted in (None, family)]
        if not families:
            raise NetworkError(
                f'network "{network.network}": port {port.host_port}/{port.protocol} cannot be published on '
                f"{port.host_ip or 'the host'}: the pod has no IPv{wanted or 4} address",
                hint="give the network a subnet of that family, or publish on another address",
                network=network.network,
            )
        found += [
            Published(family, port.protocol, address, port.host_port, own[family], port.pod_port)
            for family in families
        ]
    return tuple(found)


def _parsed(network: NetworkRules, text: str) -> tuple[int, str]:
    """Family, and the address in the kernel's notation."""
    family = 6 if ":" in text else 4
    try:
        return family, _socket.inet_ntop(_FAMILIES[family], _socket.inet_pton(_FAMILIES[family], text))
    except (OSError, ValueError):
        raise NetworkError(
            f'network "{network.network}": {text!r} is not an address', network=network.network
        ) from None


# --- maps -------------------------------------------------------------------------------------------------------


def publish(netfilter: Netfilter, nft: str, network: NetworkRules, pod: str, wanted: Iterable[Published]) -> None:
    """Publishes these ports of the pod, and no others.

    A port of another pod becomes this pod's: the caller has made sure that the other is gone.

    :param nft: the program. :raises NetworkError: it refuses.
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
        failed = f'cannot publish ports of network "{network.network}"'
        run_nft(nft, "\n".join(lines) + "\n", failed, network.network)


def withdraw(netfilter: Netfilter, nft: Callable[[], str], network: NetworkRules, pod: str) -> tuple[str, ...]:
    """Withdraws all ports of the pod. It can be repeated, and starts no program if there are none.

    :param nft: finds the program. :returns: the pod's addresses with published UDP ports.
    """
    mark = comment(pod)
    held = [one for one in elements_of(netfilter, table_of(network)) if one[2] == mark]
    if held:
        lines = [_line("delete", network, place, value) for place, value, _ in held]
        failed = f'cannot withdraw ports of network "{network.network}"'
        run_nft(nft(), "\n".join(lines) + "\n", failed, network.network)
    return tuple({value.rpartition(" . ")[0] for place, value, _ in held if "udp" in place[1].split(" . ")})


def elements_of(netfilter: Netfilter, table: str) -> list[tuple[tuple[str, str], str, str]]:
    """Map and key, value, and pod of every published port of a table."""
    found = []
    for name in MAPS:
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


def found(netfilter: Netfilter) -> Sequence[tuple[str, str, str]]:
    """Network id, pod or "", and description of each of our tables and published ports."""
    found = []
    for name in netfilter.tables(INET):
        if not name.startswith(PREFIX) or not is_id(name.removeprefix(PREFIX)):
            continue
        network = name.removeprefix(PREFIX)
        found.append((network, "", f"nftables table inet {name}"))
        found += [
            (network, pod, f"element of {place[0]} in nftables table inet {name}: {place[1]} : {value}")
            for place, value, pod in elements_of(netfilter, name)
        ]
    return found


def _element(port: Published) -> Element:
    words = [port.host_ip] if port.host_ip else []
    words += [port.protocol, str(port.host_port)]
    name = f"{'one' if port.host_ip else 'any'}{port.family}"
    return name, " . ".join(words), f"{port.address} . {port.pod_port}"


def _line(verb: str, network: NetworkRules, place: tuple[str, str], value: str, pod: str = "") -> str:
    """A command for a map's element. To delete one, nft expects only its key."""
    name, key = place
    whole = key if verb == "delete" else f'{key} comment "{pod}" : {value}'
    return f"{verb} element inet {table_of(network)} {name} {{ {whole} }}"


# --- tracked connections ----------------------------------------------------------------------------------------


def forget_ports(netfilter: Netfilter, ports: Iterable[Published]) -> None:
    """Forgets tracked UDP connections to these ports of the host whose destination differs from the rules.

    :raises OSError: the kernel refuses to list or to delete them.
    """
    wanted: dict[int, dict[int, set[bytes]]] = {}
    for port in ports:
        if port.protocol == "udp":
            address = _socket.inet_pton(_FAMILIES[port.family], port.address)
            wanted.setdefault(port.family, {}).setdefault(port.host_port, set()).add(address)
    for family, leads in wanted.items():

        def stale(one: Tuple, family: int = family, leads: dict[int, set[bytes]] = leads) -> bool:
            number = int.from_bytes(_protocol(one, _ORIGINAL).get(_TO_PORT, b""), "big")
            return number in leads and _address(one, _REPLY, _SOURCE[family]) not in leads[number]

        _forget(netfilter, family, _by_udp(), stale)


def forget_pod(netfilter: Netfilter, addresses: Iterable[str]) -> None:
    """Forgets tracked connections by published ports to these addresses: of UDP, and for IPv4 of any protocol.

    :raises OSError: as above.
    """
    for address in addresses:
        family = 6 if ":" in address else 4
        value = _socket.inet_pton(_FAMILIES[family], address)

        def led(one: Tuple, family: int = family, value: bytes = value) -> bool:
            return (
                _address(one, _REPLY, _SOURCE[family]) == value
                and _address(one, _ORIGINAL, _DESTINATION[family]) != value
            )

        # With a filter for an IPv6 address, the kernel lists connections of other addresses, too (seen in 6.18).
        _forget(netfilter, family, _by_source(value) if family == 4 else _by_udp(), led)


def _by_source(address: bytes) -> bytes:
    """A filter for IPv4 connections that are answered from an address."""
    source = nest(_REPLY, nest(_TUPLE_IP, attribute(_SOURCE[4], address)))
    return source + nest(_FILTER, attribute(2, _BY_SOURCE.to_bytes(4, sys.byteorder)))


def _by_udp() -> bytes:
    udp = nest(_ORIGINAL, nest(_TUPLE_PROTOCOL, attribute(_NUMBER, bytes((_UDP,)))))
    return udp + nest(_FILTER, attribute(1, _BY_PROTOCOL.to_bytes(4, sys.byteorder)))


def _forget(netfilter: Netfilter, family: int, asked: bytes, which: Callable[[Tuple], bool]) -> None:
    """Deletes tracked connections. A kernel before 5.8 ignores the filter, and lists all; so each one is checked
    here.
    """
    number = _FAMILIES[family]
    for _, one in netfilter.dump(_GET, number, asked):
        if not which(one):
            continue
        body = nest(_ORIGINAL, one[_ORIGINAL])
        body += b"".join(attribute(kind, one[kind]) for kind in (_ID, _ZONE) if kind in one)
        try:
            list(netfilter.ask(_DELETE, 0, number, body))
        except FileNotFoundError:
            continue  # it has ended meanwhile


def _address(one: Tuple, direction: int, kind: int) -> bytes:
    return parse_attributes(parse_attributes(one.get(direction, b"")).get(_TUPLE_IP, b"")).get(kind, b"")


def _protocol(one: Tuple, direction: int) -> Tuple:
    return parse_attributes(parse_attributes(one.get(direction, b"")).get(_TUPLE_PROTOCOL, b""))
