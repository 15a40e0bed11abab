"""The built-in bridge network ``default``: chooses its bridge and private subnets and records them.

The choice is made once per state directory, at the network's first use, and recorded in ``networks/default.json``.
So running pods keep valid addresses, and two state directories on one host use different bridges and subnets.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from kurma_core.errors import FormatVersionError, HostError, NetworkError
from kurma_core.json_text import loads
from kurma_core.linux.files import lock_file, replace_file
from kurma_core.schema import SchemaError, fit

if TYPE_CHECKING:
    from ipaddress import IPv4Network


Json = Any

#: Built-in names: ``host`` shares the host's network namespace, ``none`` is only loopback.
DEFAULT, HOST, NONE, LO = "default", "host", "none", "lo"
#: The plugins that serve the built-in networks. An entry of ``container_networks`` with the network's name
#: replaces the network, plugin and all.
DRIVERS: Mapping[str, str] = {LO: "lo", DEFAULT: "bridge"}
#: The bridge of the usual state directory; others get one with a hash of their path.
BRIDGE = "kurma0"
STATE_DIR = "/var/lib/kurma"
VERSION = 2
#: Schema of the record.
_RECORD = {"bridge": str, "subnet": str, "subnet6": (str, None)}


class DefaultNetwork:
    """The built-in network of one state directory.

    :param state_dir: absolute.
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
        self._state_dir = os.path.realpath(state_dir)
        self._directory = os.path.join(state_dir, "networks")
        self._record = os.path.join(self._directory, "default.json")
        self._routes = routes
        self._routes6 = routes6
        self._ipv6 = ipv6

    def served(self, *, choose: bool = True) -> tuple[str, dict[str, Json]]:
        """The plugin that serves it, and its configuration for that plugin.

        :param choose: choose and record it at the first use; False: the configuration of an unused one is empty.
        :raises NetworkError: no subnet is free.
        :raises HostError: the record cannot be read or written.
        :raises FormatVersionError: a newer Kurma wrote the record.
        """
        record = self._read() or (self._choose() if choose else None)
        if record is None:
            return DRIVERS[DEFAULT], {}
        subnets = [record["subnet"]]
        if record["subnet6"] is not None and self._has_ipv6():
            subnets.append(record["subnet6"])
        return DRIVERS[DEFAULT], {"name": DEFAULT, "bridge": record["bridge"], "subnets": subnets}

    def chosen(self) -> bool:
        """Whether it was ever used. A record that cannot be read counts as one."""
        return os.path.lexists(self._record)

    def forget(self) -> None:
        """Removes the record, so that the next use chooses again; succeeds if there is none."""
        with self._locked():
            with suppress(FileNotFoundError):
                os.unlink(self._record)

    def _read(self) -> dict[str, Json] | None:
        try:
            with open(self._record, encoding="utf-8") as file:
                record = loads(file.read(), own=True)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise HostError(
                f"cannot read {self._record}: {error}",
                hint="without that file, the next pod on the network chooses bridge and subnet anew",
                path=self._record,
            ) from error
        version = record.get("version") if isinstance(record, dict) else None
        if version != VERSION:
            raise FormatVersionError(f"{self._record} has version {version}, this Kurma knows {VERSION}")
        try:
            fit(record, _RECORD, "the record")
        except SchemaError as error:
            raise HostError(
                f"cannot read {self._record}: {error}",
                hint="without that file, the next pod on the network chooses bridge and subnet anew",
                path=self._record,
            ) from None
        return dict(record)

    def _choose(self) -> dict[str, Json]:
        with self._locked():
            record = self._read()  # another process may have chosen meanwhile
            if record is None:
                record = self._write(
                    {"bridge": self._bridge(), "subnet": self._subnet(), "subnet6": self._subnet6()}
                )
        return record

    def _write(self, chosen: dict[str, Json]) -> dict[str, Json]:
        record = {"version": VERSION, **chosen}
        replace_file(self._record, (json.dumps(record, indent=2) + "\n").encode(), 0o600)
        return record

    def _hash(self) -> str:
        import hashlib

        return hashlib.sha256(os.fsencode(self._state_dir)).hexdigest()

    def _bridge(self) -> str:
        return BRIDGE if self._state_dir == STATE_DIR else f"kurma-{self._hash()[:8]}"

    def _subnet(self) -> str:
        taken = host_networks() if self._routes is None else self._routes
        first = 0 if self._state_dir == STATE_DIR else int(self._hash()[8:16], 16)
        return free_subnet(taken, first)

    def _subnet6(self) -> str | None:
        return free_subnet6(host_networks6() if self._routes6 is None else self._routes6, self._hash()[16:])

    def _has_ipv6(self) -> bool:
        if self._ipv6 is None:
            self._ipv6 = has_ipv6()
        return self._ipv6

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Holds the record's lock exclusively."""
        path = os.path.join(self._directory, "lock")
        try:
            lock = lock_file(path)
        except OSError as error:
            raise HostError(f"cannot write {path}: {error.strerror}", path=path, errno=error.errno) from error
        try:
            yield
        except OSError as error:
            raise HostError(
                f"cannot write {self._record}: {error.strerror}", path=self._record, errno=error.errno
            ) from error
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
    start = first % _FIRST
    for subnet in [*subnets[start:_FIRST], *subnets[:start], *subnets[_FIRST:]]:
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
