"""Subnets and addresses as numbers: quick to import, unlike ``ipaddress``, since each start of a pod needs
them."""

from __future__ import annotations

import _socket

from kurma_core.value import frozen

_FAMILIES = {4: _socket.AF_INET, 6: _socket.AF_INET6}


@frozen
class Subnet:
    """A subnet for the addresses of pods.

    :param family: 4 or 6. :param first: its own address, as a number. :param length: of its prefix, in bits.
    """

    family: int
    first: int
    length: int

    def __str__(self) -> str:
        return f"{text_of(self.family, self.first)}/{self.length}"

    @property
    def bits(self) -> int:
        """The length of an address of its family, in bits."""
        return 32 if self.family == 4 else 128

    @property
    def last(self) -> int:
        """Its highest address; for IPv4, the broadcast address."""
        return int(self.first | (1 << (self.bits - self.length)) - 1)

    @property
    def gateway(self) -> int:
        """The first address: the bridge's own."""
        return self.first + 1

    @property
    def usable(self) -> tuple[int, int]:
        """The first and the last address for pods: without the subnet's own, the gateway's, and, for IPv4, the
        broadcast address."""
        return self.first + 2, self.last - (1 if self.family == 4 else 0)

    def contains(self, address: int) -> bool:
        return self.first <= address <= self.last

    def overlaps(self, other: Subnet) -> bool:
        return self.family == other.family and self.first <= other.last and other.first <= self.last

    def text(self, address: int) -> str:
        """An address of the subnet as text."""
        return text_of(self.family, address)


def packed(family: int, address: int) -> bytes:
    """An address in network byte order."""
    return address.to_bytes(4 if family == 4 else 16, "big")


def text_of(family: int, address: int) -> str:
    """An address as text, in its usual, shortest form."""
    return _socket.inet_ntop(_FAMILIES[family], packed(family, address))


def parse_address(text: str) -> tuple[int, int] | None:
    """Family and number of an address; None: the text is not an address."""
    for family, number in _FAMILIES.items():
        try:
            return family, int.from_bytes(_socket.inet_pton(number, text), "big")
        except (OSError, ValueError):  # ValueError: a NUL or a character beyond ASCII
            continue
    return None


def parse_cidr(text: str) -> tuple[int, int, int] | None:
    """Family, number and prefix length of ``ADDRESS/LENGTH``; None: the text has another form."""
    address, slash, length = text.partition("/")
    found = parse_address(address)
    if found is None or not (slash and length.isascii() and length.isdigit() and len(length) <= 3):
        return None
    if int(length) > (32 if found[0] == 4 else 128):
        return None
    return (*found, int(length))
