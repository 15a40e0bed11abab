"""Parses and checks a bridge network's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kurma_core.errors import NetworkError
from kurma_core.schema import JsonValue, List, Made, SchemaError, Shape, Whole, describe, nearest, shape
from kurma_core.value import field, frozen
from kurma_net_bridge.subnets import Subnet, parse_address, parse_cidr, text_of

Json = Any
_NAME_BYTES = 15
#: Smallest MTU, smallest MTU with IPv6, and the kernel's largest for such interfaces.
_MTU_LEAST, _MTU_LEAST_6, _MTU_MOST = 68, 1280, 65535
#: Longest prefix by family: the subnet must have an address for a pod besides the bridge's.
_LONGEST = {4: 30, 6: 126}
#: Ranges that no bridge can use, or that it would take from the host.
_NOBODYS = {
    "127.0.0.0/8": "loopback",
    "::1/128": "loopback",
    "224.0.0.0/4": "multicast",
    "ff00::/8": "multicast",
    "fe80::/10": "link-local",
}


def _interface(name: str) -> str:
    if (
        not 0 < len(name.encode()) <= _NAME_BYTES
        or name in (".", "..")
        or any(c in "/:%" or c <= " " for c in name)
    ):
        raise ValueError(name)
    return name


def _cidr(text: str) -> tuple[int, int, int]:
    """Parses a subnet. :raises ValueError: the text is not a subnet, or its address has bits after the prefix."""
    found = parse_cidr(text)
    if found is None:
        raise ValueError(text)
    family, first, length = found
    if first & (1 << Subnet(family, first, length).bits - length) - 1:
        raise ValueError(text)
    return found


def _address(text: str) -> tuple[int, int]:
    found = parse_address(text)
    if found is None:
        raise ValueError(text)
    return found


_INTERFACE = Made(f"the name of an interface: 1 to {_NAME_BYTES} bytes, without blanks and / : %", _interface, str)
_CIDR = Made("a subnet, ADDRESS/LENGTH, whose address has no bits behind its prefix", _cidr, str)
_ADDRESS = Made("an address", _address, str)


class _Subnets(Shape):
    """A list of subnets, at most one per family, so that a pod has one source address per family."""

    __slots__ = ()
    plain = False
    expected = "a list of subnets, such as [10.90.0.0/24]"

    def read(self, value: Json, path: str) -> tuple[Subnet, ...]:
        found: dict[int, Subnet] = {}
        if not isinstance(value, list | tuple) or not value:
            raise self._wrong(value, path)
        for index, each in enumerate(value):
            at = f"{path}[{index}]"
            subnet = Subnet(*_CIDR.read(each, at))
            longest = _LONGEST[subnet.family]
            if subnet.length > longest:
                raise SchemaError(at, f"a prefix of at most {longest} bits (room for pods)", describe(each))
            for text, what in _NOBODYS.items():
                if subnet.overlaps(Subnet(*_cidr(text))):
                    raise SchemaError(at, f"no {what} addresses ({text})", describe(each))
            if subnet.family in found:
                raise SchemaError(at, f"one subnet of IPv{subnet.family}", f"{describe(each)} as well")
            found[subnet.family] = subnet
        return tuple(found.values())


@frozen
class Route(JsonValue):
    """A route that pods get.

    :param destination: family, first address and prefix length. :param gateway: family and address; None: the
        subnet's.
    """

    PARTIAL = True

    destination: tuple[int, int, int] = field(key="dst", shape=_CIDR)
    gateway: tuple[int, int] | None = field(default=None, key="gw", shape=_ADDRESS)

    @property
    def family(self) -> int:
        return self.destination[0]

    def __str__(self) -> str:
        family, first, length = self.destination
        return f"{text_of(family, first)}/{length}"


@frozen
class Settings(JsonValue):
    """A bridge network's configuration.

    :param name: the network's.
    :param bridge: name of the interface on the host.
    :param masquerade: packets of pods to the outside get the host's addresses.
    :param hairpin: a pod can connect to its own published ports.
    :param mtu: of the bridge and of the pods' interfaces, bytes; None: the kernel's choice.
    :param isolated: pods of this network do not reach each other.
    :param reaches: names of other programs' bridges whose containers and machines pods may reach.
    :param routes: None: the default route of each family.
    """

    PARTIAL = True

    name: str
    bridge: str = field(shape=_INTERFACE)
    subnets: tuple[Subnet, ...] = field(shape=_Subnets())
    masquerade: bool = True
    hairpin: bool = True
    mtu: int | None = field(default=None, shape=Whole(_MTU_LEAST, _MTU_MOST))
    isolated: bool = False
    reaches: tuple[str, ...] = field(default=(), shape=List(_INTERFACE, lambda names: tuple(sorted(set(names)))))
    routes: tuple[Route, ...] | None = field(default=None, shape=List(shape(Route), tuple))

    def subnet(self, family: int) -> Subnet | None:
        for one in self.subnets:
            if one.family == family:
                return one
        return None

    def check(self) -> None:
        """Checks keys against each other. :raises SchemaError: they contradict each other."""
        if self.mtu is not None and self.mtu < _MTU_LEAST_6 and self.subnet(6):
            raise SchemaError("$.mtu", f"at least {_MTU_LEAST_6} bytes, which IPv6 needs", describe(self.mtu))
        for index, route in enumerate(self.routes or ()):
            at, subnet = f"$.routes[{index}]", self.subnet(route.family)
            if subnet is None:
                raise SchemaError(f"{at}.dst", "a destination of a family that a subnet has", f'"{route}"')
            if route.gateway is not None and not (
                route.gateway[0] == route.family and subnet.contains(route.gateway[1])
            ):
                raise SchemaError(f"{at}.gw", f"an address of {subnet}", f'"{text_of(*route.gateway)}"')


def parse_settings(config: Mapping[str, Json]) -> Settings:
    """Parses a network's configuration. :param config: an entry of ``container_networks`` without the core's keys.
    :raises NetworkError: names what is wrong, and where.
    """
    name = config["name"]

    def unknown(path: str, key: str, known: list[str]) -> None:
        near = nearest(key, known)
        hint = f"did you mean {near}?" if near else f"there are: {', '.join(known)}"
        raise _wrong(name, f"{path}.{key}: unknown key", hint)

    try:
        shape(Settings).find_unknown(dict(config), "$", unknown)
        settings = Settings.from_json(dict(config), "$")
        settings.check()
    except SchemaError as error:
        raise _wrong(name, f"{error.path}: expected {error.expected}, found {error.found}") from None
    return settings


def _wrong(network: str, why: str, hint: str | None = None) -> NetworkError:
    why = why.removeprefix("$.")
    return NetworkError(f'network "{network}" has a wrong configuration: {why}', hint=hint, network=network)
