"""Connections that the kernel still remembers when a port begins, or ceases, to lead to a pod.

Who sends UDP from one port again and again keeps its remembered connection alive, and that says where the packets
go: to the pod that had the port before, or nowhere. So what is remembered is forgotten, by ctnetlink; the program
``conntrack`` is not needed. TCP begins each connection anew and asks the rules then. The kernel looks through all
that it remembers, which takes some 20 ms on a large machine: it is asked only where a port of UDP is published.
"""

from __future__ import annotations

import _socket
import sys
from collections.abc import Callable, Iterable

from kurma_core.linux.netlink import attribute, nest, parse_attributes
from kurma_net_bridge.rules.netfilter import Netfilter
from kurma_net_bridge.rules.plan import Published

# linux/netfilter/nfnetlink_conntrack.h
_GET, _DELETE = 1 << 8 | 1, 1 << 8 | 2
_ORIGINAL, _REPLY, _ID, _ZONE, _FILTER = 1, 2, 12, 18, 25
_TUPLE_IP, _TUPLE_PROTOCOL = 1, 2
_SOURCE, _DESTINATION = {4: 1, 6: 3}, {4: 2, 6: 4}
_NUMBER, _TO_PORT = 1, 3
_FAMILIES = {4: _socket.AF_INET, 6: _socket.AF_INET6}
_UDP = 17
_BY_SOURCE, _BY_PROTOCOL = 1 << 0, 1 << 3

Tuple = dict[int, bytes]


def forget_ports(netfilter: Netfilter, ports: Iterable[Published]) -> None:
    """Connections by UDP to these ports of the host that lead elsewhere than the rules say now.

    :raises OSError: the kernel does not tell or does not forget.
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
    """Connections that a port has led to these addresses: by UDP, of IPv4 by any protocol.

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

        # Asked for an address of IPv6, the kernel tells of those with any other (seen in 6.18).
        _forget(netfilter, family, _by_source(value) if family == 4 else _by_udp(), led)


def _by_source(address: bytes) -> bytes:
    """Asks for connections of IPv4 that are answered from an address."""
    source = nest(_REPLY, nest(_TUPLE_IP, attribute(_SOURCE[4], address)))
    return source + nest(_FILTER, attribute(2, _BY_SOURCE.to_bytes(4, sys.byteorder)))


def _by_udp() -> bytes:
    udp = nest(_ORIGINAL, nest(_TUPLE_PROTOCOL, attribute(_NUMBER, bytes((_UDP,)))))
    return udp + nest(_FILTER, attribute(1, _BY_PROTOCOL.to_bytes(4, sys.byteorder)))


def _forget(netfilter: Netfilter, family: int, asked: bytes, which: Callable[[Tuple], bool]) -> None:
    """A kernel that knows no such filter (before 5.8) lists everything; so each one is looked at in any case."""
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
