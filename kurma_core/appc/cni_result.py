"""The Result that a network's ``add`` returns (Kurma Network Specification, add), in every shape of CNI.

CNI 0.1.0 and 0.2.0 have ``ip4`` and ``ip6`` objects, as in the Kurma document; 0.3.0 to 0.4.0 have a list
``ips`` whose members have a ``version``; from 1.0.0 on they have none. A plugin's output is untrusted: every value
that is kept has been checked.
"""

from __future__ import annotations

from kurma_core.appc.types import address_family, is_cidr
from kurma_core.errors import NetworkError
from kurma_core.models.network import AddressResult, NetworkResult

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = Any

#: Versions of CNI results that are understood.
VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
_LIST_MAX = 256


class _Reader:
    """Checks values of one result; every error names the network and the place."""

    def __init__(self, network: str) -> None:
        self._network = network

    def wrong(self, path: str, expected: str, value: Json) -> NetworkError:
        found = repr(value)
        return NetworkError(
            f'network "{self._network}" returned a wrong result: {path}: expected {expected}, '
            f"found {found if len(found) <= 80 else found[:79] + '…'}",
            network=self._network,
        )

    def object(self, value: Json, path: str) -> dict[str, Json]:
        if not isinstance(value, dict):
            raise self.wrong(path, "an object", value)
        return value

    def list(self, value: Json, path: str) -> list[Json]:
        if value is None:  # Go prints null for an empty list
            return []
        if not isinstance(value, list) or len(value) > _LIST_MAX:
            raise self.wrong(path, f"a list of at most {_LIST_MAX}", value)
        return value

    def cidr(self, value: Json, path: str) -> str:
        if not isinstance(value, str) or not is_cidr(value):
            raise self.wrong(path, "an address with a prefix length", value)
        return value

    def address(self, value: Json, path: str) -> str:
        if not isinstance(value, str) or not address_family(value):
            raise self.wrong(path, "an address", value)
        return value

    def gateway(self, value: Json, path: str) -> str | None:
        return self.address(value, path) if value not in (None, "") else None

    def words(self, value: Json, path: str) -> tuple[str, ...]:
        words = self.list(value, path)
        for index, word in enumerate(words):
            if not isinstance(word, str) or not word.isprintable() or not 0 < len(word) <= 255 or " " in word:
                raise self.wrong(f"{path}[{index}]", "one word", word)
        return tuple(words)

    def routes(self, value: Json, path: str) -> tuple[tuple[str, str | None], ...]:
        found = []
        for index, item in enumerate(self.list(value, path)):
            here = f"{path}[{index}]"
            route = self.object(item, here)
            found.append((self.cidr(route.get("dst"), f"{here}.dst"), self.gateway(route.get("gw"), f"{here}.gw")))
        return tuple(found)


def parse_result(value: Json, network: str) -> NetworkResult:
    """Converts a CNI Result to a :class:`~kurma_core.models.network.NetworkResult`.

    :param value: the printed JSON value.
    :param network: the network's name, for errors.
    :raises NetworkError: it is malformed; names the value. A result without addresses is accepted here, and
        refused by the core.
    """
    read = _Reader(network)
    result = read.object(value, "$")
    version = result.get("cniVersion") or "0.1.0"
    if version not in VERSIONS:
        raise read.wrong("$.cniVersion", f"one of {', '.join(VERSIONS)}", version)
    addresses: list[AddressResult] = []
    routes: list[tuple[str, str | None]] = []
    if "ips" in result:
        for index, item in enumerate(read.list(result["ips"], "$.ips")):
            here = f"$.ips[{index}]"
            ip = read.object(item, here)
            addresses.append(_address(read, ip.get("address"), ip.get("gateway"), here, "address"))
        routes += read.routes(result.get("routes"), "$.routes")
    else:
        for key, family in (("ip4", 4), ("ip6", 6)):
            if result.get(key) is None:
                continue
            ip = read.object(result[key], f"$.{key}")
            address = _address(read, ip.get("ip"), ip.get("gateway"), f"$.{key}", "ip")
            if address_family(address.address.partition("/")[0]) != family:
                raise read.wrong(f"$.{key}.ip", f"an IPv{family} address", address.address)
            addresses.append(address)
            routes += read.routes(ip.get("routes"), f"$.{key}.routes")
    dns = read.object(result.get("dns") or {}, "$.dns")
    nameservers = read.words(dns.get("nameservers"), "$.dns.nameservers")
    for index, server in enumerate(nameservers):
        read.address(server, f"$.dns.nameservers[{index}]")
    domain = read.words([dns["domain"]] if dns.get("domain") else [], "$.dns.domain")
    return NetworkResult(
        addresses=tuple(addresses),
        routes=tuple(routes),
        nameservers=nameservers,
        search=read.words(dns.get("search"), "$.dns.search") or domain,
        options=read.words(dns.get("options"), "$.dns.options"),
        raw=value,
    )


def _address(read: _Reader, address: Json, gateway: Json, path: str, key: str) -> AddressResult:
    return AddressResult(read.cidr(address, f"{path}.{key}"), read.gateway(gateway, f"{path}.gateway"))
