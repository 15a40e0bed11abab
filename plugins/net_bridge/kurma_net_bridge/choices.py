"""Chooses the bridge and the subnets of networks whose configuration leaves them open, and records the choice.

A choice is made once, at the network's first use, before anything is made on the host. So running pods keep valid
addresses after a crash, and two state directories on one host use different bridges and subnets.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from kurma_core.errors import FormatVersionError, HostError, KurmaError, NetworkError
from kurma_core.json_text import loads
from kurma_core.linux.files import lock_file, replace_file
from kurma_core.schema import SchemaError, fit
from kurma_net_bridge.records import NetworkRecords, known_networks, quoted
from kurma_net_bridge.settings import parse_settings

if TYPE_CHECKING:
    from ipaddress import IPv4Network

Json = Any

#: The driver's directory below the usual state directory. Its bridges are kurma0, kurma1 …; those of other
#: directories have a hash of the path in their names.
USUAL = "/var/lib/kurma/plugins/kurma.networks/bridge"
VERSION = 1
#: Schema of the record.
_RECORD = {"bridge": str, "subnet": str, "subnet6": (str, None)}
#: The keys that a configuration may leave open.
_OPEN = frozenset(["bridge", "subnets"])
#: Values of any choice, to check the rest of a configuration.
_ANY: Mapping[str, Json] = {"bridge": "kurma0", "subnets": ["10.96.0.0/16"]}


def with_any(config: Mapping[str, Json]) -> Mapping[str, Json]:
    """The configuration, with placeholders for what it leaves open."""
    return config if config.keys() >= _OPEN else {**_ANY, **config}


class Choices:
    """The choices of one driver: ``choices/NETWORK.json`` in its directory.

    :param state_dir: of the driver, absolute.
    :param routes: the host's IPv4 routes, as networks in CIDR form; tests pass this and the following.
    :param routes6: the IPv6 routes. :param ipv6: whether the host has IPv6; None: ask the kernel.
    """

    def __init__(
        self,
        state_dir: str,
        routes: Iterable[str] | None = None,
        routes6: Iterable[str] | None = None,
        ipv6: bool | None = None,
    ) -> None:
        self._state_dir = state_dir
        self._directory = os.path.join(state_dir, "choices")
        self._routes = routes
        self._routes6 = routes6
        self._ipv6 = ipv6

    def complete(self, config: Mapping[str, Json], choose: bool) -> Mapping[str, Json] | None:
        """Completes the configuration of a network.

        :param choose: choose and record at the first use; False: None if nothing was chosen yet.
        :raises NetworkError: no subnet is free, or the configuration is wrong.
        :raises HostError: the record cannot be read or written.
        :raises FormatVersionError: a newer version of this plugin wrote the record.
        """
        if config.keys() >= _OPEN:
            return config
        name = config["name"]
        record = self._read(name)
        if record is None:
            if not choose:
                return None
            parse_settings(with_any(config))  # nothing is chosen for a configuration that cannot work
            record = self._choose(name)
        subnets = [record["subnet"]]
        if record["subnet6"] is not None and self._has_ipv6():
            subnets.append(record["subnet6"])
        chosen = {"bridge": record["bridge"], "subnets": subnets}
        return {**config, **{key: value for key, value in chosen.items() if key not in config}}

    def forget(self, network: str) -> None:
        """Removes the record, so that the next use chooses again; succeeds if there is none."""
        if os.path.lexists(self._path(network)):
            with self._locked(network), suppress(FileNotFoundError):
                os.unlink(self._path(network))

    def _path(self, network: str) -> str:
        return os.path.join(self._directory, f"{quoted(network)}.json")

    def _read(self, network: str) -> dict[str, Json] | None:
        path = self._path(network)
        hint = "without that file, the next pod on the network chooses bridge and subnet anew"
        try:
            with open(path, encoding="utf-8") as file:
                record = loads(file.read(), own=True)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise HostError(f"cannot read {path}: {error}", hint=hint, path=path) from error
        version = record.get("version") if isinstance(record, dict) else None
        if version != VERSION:
            raise FormatVersionError(f"{path} has version {version}, this plugin knows {VERSION}")
        try:
            fit(record, _RECORD, "the record")
        except SchemaError as error:
            raise HostError(f"cannot read {path}: {error}", hint=hint, path=path) from None
        return dict(record)

    def _choose(self, network: str) -> dict[str, Json]:
        """One lock for all networks: none of them chooses what another has just chosen."""
        with self._locked(network):
            record = self._read(network)  # another process may have chosen meanwhile
            if record is None:
                bridges, subnets = self._taken(network)
                record = {
                    "version": VERSION,
                    "bridge": self._bridge(network, bridges),
                    "subnet": self._subnet(network, subnets),
                    "subnet6": self._subnet6(network, subnets),
                }
                replace_file(self._path(network), json.dumps(record).encode() + b"\n", alone=True)
        return record

    def _taken(self, network: str) -> tuple[set[str], list[str]]:
        """The bridges and subnets of this driver's other networks, which may not be in the kernel now."""
        bridges, subnets = set(), []
        for name in {*known_networks(self._state_dir), *self._chosen()} - {network}:
            with suppress(KurmaError):  # a damaged record is reported when its network is used
                chosen = self._read(name)
                if chosen is not None:
                    bridges.add(chosen["bridge"])
                    subnets += [chosen["subnet"], chosen["subnet6"]]
                used = NetworkRecords(self._state_dir, name).read()
                if used is not None:
                    bridges.add(used.bridge)
                    subnets += used.subnets
        return bridges, [subnet for subnet in subnets if subnet is not None]

    def _chosen(self) -> Iterator[str]:
        from urllib.parse import unquote

        for name in os.listdir(self._directory):
            if name.endswith(".json"):
                yield unquote(name.removesuffix(".json"))

    def _hash(self, network: str) -> str:
        import hashlib

        return hashlib.sha256(os.fsencode(f"{os.path.realpath(self._state_dir)}\0{network}")).hexdigest()

    def _bridge(self, network: str, taken: set[str]) -> str:
        if os.path.realpath(self._state_dir) != USUAL:
            return f"kurma-{self._hash(network)[:8]}"
        return next(name for number in range(len(taken) + 1) if (name := f"kurma{number}") not in taken)

    def _subnet(self, network: str, others: Iterable[str]) -> str:
        taken = host_networks() if self._routes is None else self._routes
        first = 0 if os.path.realpath(self._state_dir) == USUAL else int(self._hash(network)[8:16], 16)
        found = free_subnet([*taken, *(subnet for subnet in others if ":" not in subnet)], first)
        if found is None:
            raise NetworkError(
                f'network "{network}": no private subnet is free: the host has routes to all of them',
                hint=f'configure `subnets` of the network "{network}" in kurma.yml',
                network=network,
            )
        return found

    def _subnet6(self, network: str, others: Iterable[str]) -> str | None:
        taken = host_networks6() if self._routes6 is None else self._routes6
        return free_subnet6([*taken, *(subnet for subnet in others if ":" in subnet)], self._hash(network)[16:])

    def _has_ipv6(self) -> bool:
        if self._ipv6 is None:
            self._ipv6 = has_ipv6()
        return self._ipv6

    @contextmanager
    def _locked(self, network: str) -> Iterator[None]:
        """Holds the lock of all choices."""
        path = os.path.join(self._directory, "lock")
        try:
            lock = lock_file(path)
        except OSError as error:
            raise HostError(f"cannot write {path}: {error.strerror}", path=path, errno=error.errno) from error
        try:
            yield
        except OSError as error:
            path = self._path(network)
            raise HostError(f"cannot write {path}: {error.strerror}", path=path, errno=error.errno) from error
        finally:
            os.close(lock)


#: Prefix length of the widest private networks, such as 10.0.0.0/8: wider routes count as default routes.
_WIDEST = 8
_WIDEST6 = 7
#: So many candidates are no other program's first choice: a state directory begins with one of these.
_FIRST = 63


def candidates() -> Iterator[IPv4Network]:
    """Private subnets; those that other programs prefer (10.88.0.0/16 podman, 172.17.0.0/16 docker) come last."""
    from ipaddress import IPv4Network

    for second in (*range(96, 128), *range(64, 88), *range(89, 96), 88):
        yield IPv4Network(f"10.{second}.0.0/16")
    for second in range(31, 15, -1):
        yield IPv4Network(f"172.{second}.0.0/16")
    for third in range(255, -1, -1):
        yield IPv4Network(f"192.168.{third}.0/24")


def free_subnet(taken: Iterable[str], first: int = 0) -> str | None:
    """A private subnet that overlaps none of ``taken``.

    :param taken: networks in CIDR form. Those wider than any private network are ignored as default routes, such
        as the halves 0.0.0.0/1 and 128.0.0.0/1 of VPNs.
    :param first: index of the first candidate of the first kind, so that state directories differ.
    :returns: None: all candidates overlap with a taken network.
    """
    from ipaddress import IPv4Network

    networks = [IPv4Network(text, strict=False) for text in taken]
    used = [network for network in networks if network.prefixlen >= _WIDEST]
    subnets = list(candidates())
    start = first % _FIRST
    for subnet in [*subnets[start:_FIRST], *subnets[:start], *subnets[_FIRST:]]:
        if not any(subnet.overlaps(network) for network in used):
            return str(subnet)
    return None


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
    from kurma_core.appc.types import address_family

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
