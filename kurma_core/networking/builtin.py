"""The network that is there without any configuration: ``default`` (W8).

A bridge with NAT and a private subnet of its own. Bridge and subnet are chosen once per state directory, when the
network is first used, and recorded in ``networks/default.json``: pods that run keep their addresses valid, and two
state directories on one host do not meet.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from kurma_core.errors import FormatVersionError, HostError, NetworkError
from kurma_core.linux.files import replace_file

if TYPE_CHECKING:
    from ipaddress import IPv4Network

Json = Any

#: Names that are not configured: ``host`` shares the host's namespace, ``none`` is loopback alone.
DEFAULT, HOST, NONE, LO = "default", "host", "none", "lo"
#: The plugins that serve the built-in networks. An entry of ``container_networks`` with the network's name
#: replaces the network, plugin and all.
DRIVERS: Mapping[str, str] = {LO: "lo", DEFAULT: "cni"}
#: The bridge of the usual state directory; others get one with a hash of their path.
BRIDGE = "kurma0"
STATE_DIR = "/var/lib/kurma"
VERSION = 1
#: Understood by every CNI plugin in use, old and new, and the first with CHECK and a useful DEL.
CNI_VERSION = "0.4.0"


class DefaultNetwork:
    """The built-in network of one state directory.

    :param state_dir: absolute.
    :param routes: tells the host's routes, as networks in CIDR form; a seam for tests.
    """

    def __init__(self, state_dir: str, routes: Iterable[str] | None = None) -> None:
        self._state_dir = os.path.realpath(state_dir)
        self._directory = os.path.join(state_dir, "networks")
        self._record = os.path.join(self._directory, "default.json")
        self._routes = routes

    def config(self, *, ports: bool = True) -> dict[str, Json]:
        """Its CNI configuration, for ``cni`` or whatever else understands it. Chooses and records it if need be.

        :param ports: False leaves out the plugin that publishes ports: a pod without any is spared its time.
        :raises NetworkError: no subnet is free.
        :raises HostError: the record cannot be read or written.
        :raises FormatVersionError: a newer Kurma wrote the record.
        """
        record = self._read() or self._choose()
        bridge = {
            "type": "bridge",
            "bridge": record["bridge"],
            "isGateway": True,
            "ipMasq": True,
            "hairpinMode": True,
            "capabilities": {"ips": True, "mac": True},
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": record["subnet"]}]],
                "routes": [{"dst": "0.0.0.0/0"}],
                "dataDir": os.path.join(self._directory, "addresses"),
            },
        }
        publish = {"type": "portmap", "capabilities": {"portMappings": True}}
        # Accepts the pod's traffic where the host's policy (a firewall, docker) is to drop what it forwards.
        accept = {"type": "firewall"}
        config: dict[str, Json] = {"cniVersion": CNI_VERSION, "name": DEFAULT}
        if ports:
            # portmap 1.1's CHECK looks for the IPv4 rules among the IPv6 ones, and fails.
            return {**config, "disableCheck": True, "plugins": [bridge, publish, accept]}
        return {**config, "plugins": [bridge, accept]}

    def chosen(self) -> bool:
        """Whether it has ever been used."""
        return self._read() is not None

    def forget(self) -> None:
        """Drops the choice; the next use chooses anew. Nothing to drop is success."""
        with self._locked():
            with suppress(FileNotFoundError):
                os.unlink(self._record)

    def _read(self) -> dict[str, str] | None:
        try:
            with open(self._record, encoding="utf-8") as file:
                record = json.load(file)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise HostError(f"cannot read {self._record}: {error}", path=self._record) from error
        version = record.get("version") if isinstance(record, dict) else None
        if not isinstance(version, int) or version > VERSION:
            raise FormatVersionError(f"{self._record} has version {version}, this Kurma knows {VERSION}")
        return {"bridge": record["bridge"], "subnet": record["subnet"]}

    def _choose(self) -> dict[str, str]:
        with self._locked():
            record = self._read()  # another process may have been faster
            if record is None:
                record = {"bridge": self._bridge(), "subnet": self._subnet()}
                content = json.dumps({"version": VERSION, **record}, indent=2) + "\n"
                replace_file(self._record, content.encode(), 0o600)
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

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """The lock of the record, held by this process alone."""
        path = os.path.join(self._directory, "lock")
        try:
            os.makedirs(self._directory, 0o700, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise HostError(f"cannot write {path}: {error.strerror}", path=path, errno=error.errno) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        except OSError as error:
            raise HostError(f"cannot write {self._record}: {error.strerror}", errno=error.errno) from error
        finally:
            os.close(lock)


# --- a subnet that does not clash ------------------------------------------------------------------------------


def candidates() -> Iterator[IPv4Network]:
    """Private subnets, those that others like (10.88.0.0/16 podman's, 172.17.0.0/16 docker's) among the last."""
    from ipaddress import IPv4Network

    for second in (*range(96, 128), *range(64, 96)):
        yield IPv4Network(f"10.{second}.0.0/16")
    for second in range(31, 15, -1):
        yield IPv4Network(f"172.{second}.0.0/16")
    for third in range(255, -1, -1):
        yield IPv4Network(f"192.168.{third}.0/24")


def free_subnet(taken: Iterable[str], first: int = 0) -> str:
    """A private subnet that overlaps none of ``taken``.

    :param taken: networks in CIDR form; 0.0.0.0/0, which overlaps everything, does not count.
    :param first: where among the candidates of the first kind to begin, so that state directories differ.
    :raises NetworkError: every candidate overlaps something.
    """
    from ipaddress import IPv4Network

    used = [network for text in taken if (network := IPv4Network(text, strict=False)).prefixlen]
    subnets = list(candidates())
    large = 64
    start = first % large
    for subnet in [*subnets[start:large], *subnets[:start], *subnets[large:]]:
        if not any(subnet.overlaps(network) for network in used):
            return str(subnet)
    raise NetworkError(
        "no private subnet is free for the default network: the host has routes to all of them",
        hint='configure a network of the name "default" in kurma.yml',
        network=DEFAULT,
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
    """Behind a tunnel that comes and goes, a name server's address may be all there is to know of a network."""
    try:
        with open("/etc/resolv.conf", encoding="utf-8", errors="replace") as file:
            words = [line.split() for line in file]
    except OSError:
        return []  # no resolver is configured: nothing to avoid
    from kurma_core.appc.cni_result import address_family

    return [f"{w[1]}/32" for w in words if len(w) > 1 and w[0] == "nameserver" and address_family(w[1]) == 4]
