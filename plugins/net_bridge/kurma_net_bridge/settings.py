"""A bridge network's configuration, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kurma_core.errors import NetworkError
from kurma_core.value import frozen
from kurma_net_bridge.subnets import Subnet, parse_address, parse_cidr, text_of

Json = Any
KEYS = ("name", "bridge", "subnets", "masquerade", "hairpin", "mtu", "isolated", "reaches", "routes")
_NAME_BYTES = 15
#: The least that IPv6 works over, and the most that the kernel gives an interface of this kind.
_MTU_LEAST, _MTU_LEAST_6, _MTU_MOST = 68, 1280, 65535
#: At least one address for a pod beside the bridge's.
_LONGEST = {4: 30, 6: 126}
#: What no bridge can be given without taking it from the host, or to no use.
_NOBODYS = {
    "127.0.0.0/8": "loopback",
    "::1/128": "loopback",
    "224.0.0.0/4": "multicast",
    "ff00::/8": "multicast",
    "fe80::/10": "link-local",
}


@frozen
class Route:
    """A route that pods get.

    :param destination: family, first address and prefix length. :param gateway: None: the subnet's.
    """

    destination: tuple[int, int, int]
    gateway: int | None = None

    @property
    def family(self) -> int:
        return self.destination[0]

    def __str__(self) -> str:
        family, first, length = self.destination
        return f"{text_of(family, first)}/{length}"


@frozen
class Settings:
    """What a network is.

    :param name: the network's.
    :param bridge: name of the interface on the host.
    :param subnets: at most one of a family, so that what a pod sends from is no matter of luck.
    :param masquerade: pods speak to the outside from the host's own addresses.
    :param hairpin: a pod reaches itself by a port that it has published.
    :param mtu: of the bridge and of the pods' interfaces, bytes; None: the kernel's choice.
    :param isolated: pods of this network do not reach each other.
    :param reaches: bridges of others, by name, whose containers and machines pods may reach.
    :param routes: None: the default route of each family.
    """

    name: str
    bridge: str
    subnets: tuple[Subnet, ...]
    masquerade: bool = True
    hairpin: bool = True
    mtu: int | None = None
    isolated: bool = False
    reaches: tuple[str, ...] = ()
    routes: tuple[Route, ...] | None = None

    def subnet(self, family: int) -> Subnet | None:
        for one in self.subnets:
            if one.family == family:
                return one
        return None


def parse_settings(config: Mapping[str, Json]) -> Settings:
    """:param config: an entry of ``container_networks``, without what is the core's.
    :raises NetworkError: says what is wrong, and where.
    """
    name = config["name"]
    for key in config:
        if key not in KEYS:
            raise _unknown(name, key)
    subnets = _subnets(name, config.get("subnets"))
    return Settings(
        name=name,
        bridge=_bridge(name, config.get("bridge")),
        subnets=subnets,
        masquerade=_truth(name, config, "masquerade", True),
        hairpin=_truth(name, config, "hairpin", True),
        mtu=_mtu(name, config.get("mtu"), subnets),
        isolated=_truth(name, config, "isolated", False),
        reaches=_reaches(name, config.get("reaches", ())),
        routes=_routes(name, config.get("routes"), subnets),
    )


def _bridge(network: str, value: Json, key: str = "bridge") -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(network, f"{key}: the name of an interface is wanted", "e.g. `bridge: mynet0`")
    if len(value.encode()) > _NAME_BYTES or value in (".", "..") or any(c in "/:%" or c <= " " for c in value):
        raise _wrong(network, f"{key}: {value!r} is no interface's name: 1 to 15 bytes, without blanks and / : %")
    return value


def _reaches(network: str, value: Json) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise _wrong(network, "reaches: a list of bridges is wanted", "e.g. `reaches: [lab0]`")
    return tuple(sorted({_bridge(network, each, "reaches") for each in value}))


def _subnets(network: str, value: Json) -> tuple[Subnet, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise _wrong(network, "subnets: a list of subnets is wanted", "e.g. `subnets: [10.90.0.0/24]`")
    subnets: list[Subnet] = []
    for each in value:
        parsed = parse_cidr(each) if isinstance(each, str) else None
        if parsed is None:
            raise _wrong(network, f"subnets: {each!r} is no subnet", "write ADDRESS/LENGTH, e.g. 10.90.0.0/24")
        family, first, length = parsed
        if length > _LONGEST[family]:
            raise _wrong(
                network, f"subnets: {each} has no room: an IPv{family} prefix has at most {_LONGEST[family]} bits"
            )
        subnet = Subnet(family, first, length)
        if first != first >> (subnet.bits - length) << (subnet.bits - length):
            raise _wrong(
                network, f"subnets: {each} has bits behind its prefix", "the gateway is the first address"
            )
        for text, what in _NOBODYS.items():
            reserved = parse_cidr(text)
            if reserved is not None and subnet.overlaps(Subnet(*reserved)):
                raise _wrong(network, f"subnets: {each} is {what}, or holds such addresses ({text})")
        if any(one.family == family for one in subnets):
            raise _wrong(network, f"subnets: {each} is the second of IPv{family}, and one of a family is allowed")
        subnets.append(subnet)
    return tuple(subnets)


def _truth(network: str, config: Mapping[str, Json], key: str, default: bool) -> bool:
    value = config.get(key, default)
    if not isinstance(value, bool):
        raise _wrong(network, f"{key}: true or false is wanted, not {value!r}")
    return value


def _mtu(network: str, value: Json, subnets: tuple[Subnet, ...]) -> int | None:
    if value is None:
        return None
    least = _MTU_LEAST_6 if any(one.family == 6 for one in subnets) else _MTU_LEAST
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MTU_MOST:
        raise _wrong(network, f"mtu: {least} to {_MTU_MOST} bytes are wanted, not {value!r}")
    return value


def _routes(network: str, value: Json, subnets: tuple[Subnet, ...]) -> tuple[Route, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple):
        raise _wrong(network, "routes: a list is wanted", "e.g. `routes: [{dst: 10.0.0.0/8}]`")
    return tuple([_route(network, each, subnets) for each in value])


def _route(network: str, value: Json, subnets: tuple[Subnet, ...]) -> Route:
    if not isinstance(value, Mapping) or not {"dst"} <= set(value) <= {"dst", "gw"}:
        raise _wrong(network, f"routes: {value!r} is no object with dst and, if need be, gw")
    destination = parse_cidr(value["dst"]) if isinstance(value["dst"], str) else None
    if destination is None:
        raise _wrong(network, f"routes: {value['dst']!r} is no subnet", "write ADDRESS/LENGTH, e.g. 0.0.0.0/0")
    family, first, length = destination
    size = (32 if family == 4 else 128) - length
    if first >> size << size != first:
        raise _wrong(network, f"routes: {value['dst']} has bits behind its prefix")
    through = [one for one in subnets if one.family == family]
    if not through:
        raise _wrong(network, f"routes: {value['dst']} is IPv{family}, and the network has no such subnet")
    if value.get("gw") is None:
        return Route(destination)
    gateway = parse_address(value["gw"]) if isinstance(value["gw"], str) else None
    if gateway is None or gateway[0] != family or not through[0].contains(gateway[1]):
        raise _wrong(network, f"routes: the gateway {value['gw']!r} is no address of {through[0]}")
    return Route(destination, gateway[1])


def _unknown(network: str, key: str) -> NetworkError:
    from difflib import get_close_matches

    near = get_close_matches(str(key), KEYS[1:], 1)
    known = f"did you mean {near[0]}?" if near else f"there are: {', '.join(KEYS[1:])}"
    return _wrong(network, f"unknown key {key}", known)


def _wrong(network: str, why: str, hint: str | None = None) -> NetworkError:
    return NetworkError(f'network "{network}" has a wrong configuration: {why}', hint=hint, network=network)
