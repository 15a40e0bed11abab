"""Finds private subnets that do not overlap the host's routes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from kurma_core.errors import HostError, NetworkError

if TYPE_CHECKING:
    from ipaddress import IPv4Network


#: Prefix length of the widest private networks, such as 10.0.0.0/8: wider routes count as default routes.
_WIDEST = 8
_WIDEST6 = 7


def candidates() -> Iterator[IPv4Network]:
    """Private subnets; those that other programs prefer (10.88.0.0/16 podman, 172.17.0.0/16 docker) come last."""
    from ipaddress import IPv4Network

    for second in (*range(96, 128), *range(64, 96)):
        yield IPv4Network(f"10.{second}.0.0/16")
    for second in range(31, 15, -1):
        yield IPv4Network(f"172.{second}.0.0/16")
    for third in range(255, -1, -1):
        yield IPv4Network(f"192.168.{third}.0/24")


def free_subnet(taken: Iterable[str], first: int = 0) -> str:
    """A private subnet that overlaps none of ``taken``.

    :param taken: networks in CIDR form. Those wider than any private network are ignored as default routes, such
        as the halves 0.0.0.0/1 and 128.0.0.0/1 of VPNs.
    :param first: index of the first candidate of the first kind, so that state directories differ.
    :raises NetworkError: all candidates overlap with a taken network.
    """
    from ipaddress import IPv4Network

    networks = [IPv4Network(text, strict=False) for text in taken]
    used = [network for network in networks if network.prefixlen >= _WIDEST]
    subnets = list(candidates())
    large = 64
    start = first % large
    for subnet in [*subnets[start:large], *subnets[:start], *subnets[large:]]:
        if not any(subnet.overlaps(network) for network in used):
            return str(subnet)
    raise NetworkError(
        "no private subnet is free for the default network: the host has routes to all of them",
        hint='configure a network of the name "default" in kurma.yml',
        network="default",
    )


def host_networks() -> list[str]:
    """The IPv4 networks that this host has routes to, in any table, and its name servers."""
    try:
        with open("/proc/net/fib_trie", encoding="ascii") as file:
            found = parse_fib_trie(file)
    except OSError as error:
        raise HostError(f"cannot read the host's routes: {error.strerror}", path="/proc/net/fib_trie") from error
    return found + _nameservers()


def parse_fib_trie(lines: Iterable[str]) -> list[str]:
    """The routes in ``/proc/net/fib_trie``: each ``|-- ADDRESS`` is followed by its ``/LENGTH …`` lines."""
    found: list[str] = []
    address = ""
    for line in lines:
        words = line.split()
        if len(words) == 2 and words[0] == "|--":
            address = words[1]
        elif words and words[0].startswith("/") and address:
            found.append(address + words[0])
    return found


def _nameservers() -> list[str]:
    """The host's name servers: while a tunnel is down, only a name server's address shows its network."""
    try:
        with open("/etc/resolv.conf", encoding="utf-8", errors="replace") as file:
            words = [line.split() for line in file]
    except OSError:
        return []  # no resolver is configured: nothing to avoid
    from kurma_core.appc.cni_result import address_family

    return [f"{w[1]}/32" for w in words if len(w) > 1 and w[0] == "nameserver" and address_family(w[1]) == 4]


# --- IPv6 ------------------------------------------------------------------------------------------------------


def free_subnet6(taken: Iterable[str], digits: str) -> str | None:
    """A unique local subnet with a prefix of 64 bits (RFC 4193) that overlaps none of ``taken``.

    :param taken: networks in CIDR form; those wider than fc00::/7, the range of all such subnets, are ignored.
    :param digits: hexadecimal digits of a hash; any ten consecutive ones make a candidate.
    :returns: None: all candidates overlap with a taken network, for example with a route to fc00::/7.
    """
    from ipaddress import IPv6Network

    networks = [IPv6Network(text, strict=False) for text in taken]
    used = [network for network in networks if network.prefixlen >= _WIDEST6]
    for start in range(len(digits) - 9):
        subnet = IPv6Network(((0xFD << 40 | int(digits[start : start + 10], 16)) << 80, 64))
        if not any(subnet.overlaps(network) for network in used):
            return str(subnet)
    return None


def host_networks6() -> list[str]:
    """The IPv6 networks that this host has routes to, in any table; none without IPv6."""
    try:
        with open("/proc/net/ipv6_route", encoding="ascii") as file:
            return parse_ipv6_route(file)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise HostError(f"cannot read the host's routes: {error.strerror}", path="/proc/net/ipv6_route") from error


def parse_ipv6_route(lines: Iterable[str]) -> list[str]:
    """The routes in ``/proc/net/ipv6_route``: destination and prefix length are hexadecimal."""
    from ipaddress import IPv6Address

    words = [line.split() for line in lines]
    return [f"{IPv6Address(int(w[0], 16))}/{int(w[1], 16)}" for w in words if len(w) > 1]


def has_ipv6() -> bool:
    """Whether interfaces of this host can have IPv6 addresses."""
    try:
        for which in ("all", "default"):
            with open(f"/proc/sys/net/ipv6/conf/{which}/disable_ipv6", encoding="ascii") as file:
                if file.read().strip() != "0":
                    return False
    except OSError:
        return False
    return True
