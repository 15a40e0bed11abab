"""What rules there should be, as values: of a network as a whole, and of each port that a pod publishes (W9)."""

from __future__ import annotations

import _socket
from collections.abc import Iterable

from kurma_core.errors import NetworkError
from kurma_core.models.network import PortMapping
from kurma_core.value import frozen

PROTOCOLS = ("tcp", "udp", "sctp")
_FAMILIES = {4: _socket.AF_INET, 6: _socket.AF_INET6}
_ANY = {"": None, "0.0.0.0": 4, "::": 6}  # noqa: S104 - addresses to compare with, not to bind
_ID_DIGITS = 8
_HEX = frozenset("0123456789abcdef")
#: What an interface's name may have in rules: nft knows no way to quote ``"`` and takes ``*`` for any end,
#: iptables takes ``+`` for any end and ``!`` for a denial.
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-@")
#: A rule's comment has 127 bytes at most, in either filter; ours tell a network or a pod.
_COMMENT_BYTES = 64


@frozen
class NetworkRules:
    """What holds for a network as a whole.

    :param id: 8 hex digits, stable for a state directory and a network; tables and chains are named by it.
    :param network: its name, for people. :param bridge: the interface on the host that its pods hang on.
    :param subnets: ``10.1.0.0/24``, ``fd00:1::/64``; the host's address there is the bridge's.
    :param masquerade: what leaves the subnets has the host's address.
    :param isolated: the network's pods do not reach each other by the host either.
    :param reaches: bridges of others that its pods may reach, whatever hangs on them.
    :param open: bridges of others that its pods reach: those, and what leads to the outside.
    :param closed: bridges of others on which containers and machines of others are.
    """

    id: str
    network: str
    bridge: str
    subnets: tuple[str, ...]
    masquerade: bool = True
    isolated: bool = False
    reaches: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()

    def subnets_of(self, family: int) -> tuple[str, ...]:
        return tuple(each for each in self.subnets if (6 if ":" in each else 4) == family)

    @property
    def families(self) -> tuple[int, ...]:
        """4, 6 or both, as there are subnets."""
        return tuple(family for family in (4, 6) if self.subnets_of(family))


@frozen
class Published:
    """One port of the host, of one family, that leads to a pod.

    :param host_ip: "" is every address of the host.
    """

    family: int
    protocol: str
    host_ip: str
    host_port: int
    address: str
    pod_port: int


def check_network(network: NetworkRules) -> None:
    """:raises NetworkError: a rule cannot be written for it."""
    if not is_id(network.id):
        raise NetworkError(
            f'network "{network.network}": {network.id!r} is no id for rules', network=network.network
        )
    if not can_be_named(network.bridge):
        raise NetworkError(
            f'network "{network.network}": no rule can be written for an interface {network.bridge!r}',
            hint="give the bridge a name of letters, digits, `_`, `.` and `-`",
            network=network.network,
        )


def can_be_named(interface: str) -> bool:
    """Rules can be written for an interface of this name."""
    return bool(interface) and set(interface) <= _NAME and not interface.startswith("-")


def is_id(text: str) -> bool:
    """It is what :attr:`NetworkRules.id` must be."""
    return len(text) == _ID_DIGITS and set(text) <= _HEX


def comment(text: str) -> str:
    """``text`` as a rule's comment can have it."""
    return "".join(char if char in _NAME or char == ":" else "_" for char in text)[:_COMMENT_BYTES]


def published(
    network: NetworkRules, addresses: Iterable[str], ports: Iterable[PortMapping]
) -> tuple[Published, ...]:
    """What leads where, a port that names no address once for each family that the pod has.

    :param addresses: the pod's, with or without a prefix length; IPv6's link-local ones lead nowhere.
    :raises NetworkError: the pod has no address that a port could lead to, or nothing can lead there.
    """
    own: dict[int, str] = {}
    for each in addresses:
        family, address = _parsed(network, each.partition("/")[0])
        if not address.startswith(("fe8", "fe9", "fea", "feb")):
            own.setdefault(family, address)
    found = []
    for port in ports:
        if port.protocol not in PROTOCOLS:
            raise NetworkError(
                f'network "{network.network}": a port of {port.protocol} cannot be published',
                hint="one of " + ", ".join(PROTOCOLS),
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
    """Family and the address as the kernel writes it."""
    family = 6 if ":" in text else 4
    try:
        return family, _socket.inet_ntop(_FAMILIES[family], _socket.inet_pton(_FAMILIES[family], text))
    except (OSError, ValueError):
        raise NetworkError(
            f'network "{network.network}": {text!r} is no address', network=network.network
        ) from None
