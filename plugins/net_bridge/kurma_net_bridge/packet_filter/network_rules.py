"""Describes the packet filter rules of a network as a value, and checks that rules can be written for it."""

from __future__ import annotations

from kurma_core.errors import NetworkError
from kurma_core.value import frozen

_ID_DIGITS = 8
_HEX = frozenset("0123456789abcdef")
#: Characters of an interface's name in rules: nft cannot quote ``"`` and takes ``*`` for any end, iptables takes
#: ``+`` for any end and ``!`` for a denial.
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-@")
#: A rule's comment has 127 bytes at most; ours name a network or a pod.
_COMMENT_BYTES = 64


@frozen
class NetworkRules:
    """The parameters of a network's rules.

    :param id: 8 hex digits, stable for a state directory and a network; tables and chains are named by it.
    :param network: its name, for people. :param bridge: the bridge of its pods.
    :param subnets: ``10.1.0.0/24``, ``fd00:1::/64``; the bridge has the host's address in each.
    :param masquerade: packets that leave the subnets get the host's address.
    :param isolated: the network's pods do not reach each other, by the host either.
    :param reaches: other programs' bridges that its pods may reach.
    :param open: the bridges that its pods reach: ``reaches``, and bridges that lead to the outside.
    """

    id: str
    network: str
    bridge: str
    subnets: tuple[str, ...]
    masquerade: bool = True
    isolated: bool = False
    reaches: tuple[str, ...] = ()
    open: tuple[str, ...] = ()

    def subnets_of(self, family: int) -> tuple[str, ...]:
        return tuple(each for each in self.subnets if (6 if ":" in each else 4) == family)

    @property
    def families(self) -> tuple[int, ...]:
        """The families of its subnets: 4, 6 or both."""
        return tuple(family for family in (4, 6) if self.subnets_of(family))


def check_network(network: NetworkRules) -> None:
    """Checks that rules can be written for the network. :raises NetworkError: they cannot."""
    if not is_id(network.id):
        raise NetworkError(
            f'network "{network.network}": {network.id!r} is not an id for rules', network=network.network
        )
    if not can_be_named(network.bridge):
        raise NetworkError(
            f'network "{network.network}": no rule can be written for an interface {network.bridge!r}',
            hint="give the bridge a name of letters, digits, `_`, `.` and `-`",
            network=network.network,
        )


def can_be_named(interface: str) -> bool:
    """Whether rules can contain an interface of this name."""
    return bool(interface) and set(interface) <= _NAME and not interface.startswith("-")


def is_id(text: str) -> bool:
    """Whether the text is valid as :attr:`NetworkRules.id`."""
    return len(text) == _ID_DIGITS and set(text) <= _HEX


def comment(text: str) -> str:
    """``text``, shortened and cleaned for a rule's comment."""
    return "".join(char if char in _NAME or char == ":" else "_" for char in text)[:_COMMENT_BYTES]
