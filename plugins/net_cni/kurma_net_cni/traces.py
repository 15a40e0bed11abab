"""What CNI's usual plugins have on the host, and which pod each piece of it says it is of (W12).

Other runtimes use the same plugins, files and chains. What is found here is nobody's until it is compared.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from kurma_core.errors import NetworkError
from kurma_core.value import frozen
from kurma_net_cni.chain import Chain
from kurma_net_cni.rules import Table, families
from kurma_net_cni.shared import address_directory, is_address

Json = Any


@frozen
class Trace:
    """:param kind: ``chain`` or ``address``. :param place: a chain's family, an address' file.
    :param network: whose name it bears. :param container: for whom it was made, as it says.
    """

    kind: str
    what: str
    place: str
    network: str
    container: str


def find(chains: Iterable[Chain]) -> list[Trace]:
    """:param chains: networks whose records of addresses are looked into."""
    directories = {}
    for chain in chains:
        for plugin in chain.plugins:
            ipam = plugin.get("ipam") or {}
            if ipam.get("type") == "host-local":
                directories[address_directory(chain.name, ipam)] = chain.name
    found = [trace for directory, network in directories.items() for trace in _addresses(directory, network)]
    for family in families():
        found += _chains(family)
    return found


def free(trace: Trace) -> None:
    """Takes it away; it being gone is success.

    :raises NetworkError: it cannot be.
    """
    if trace.kind == "chain":
        table = Table(trace.place, "nat")
        table.drop(trace.what)
        table.commit()
        return
    try:
        with _held(os.path.dirname(trace.place)):
            if _owner(trace.place) == trace.container:
                os.unlink(trace.place)
    except FileNotFoundError:
        return
    except OSError as error:
        raise NetworkError(
            f"cannot free the address {trace.what}: {error.strerror}: {trace.place}",
            network=trace.network,
            path=trace.place,
            errno=error.errno,
        ) from error


def _chains(family: str) -> list[Trace]:
    """Chains that a rule leads to whose comment names network and container: those for ports (portmap), and for
    masquerading (bridge, ptp)."""
    found = {}
    for rules in Table(family, "nat").chains.values():
        for rule in rules:
            try:
                words = shlex.split(rule)
            except ValueError:
                continue
            options = dict(itertools.pairwise(words))
            target = options.get("-j", "")
            name, identity = _named(options.get("--comment", ""))
            if target.startswith("CNI-") and identity:
                found[target] = Trace("chain", target, family, name, identity)
    return list(found.values())


def _named(comment: str) -> tuple[str, str]:
    """Of ``name: "NETWORK" id: "CONTAINER"``, which portmap begins with ``dnat``."""
    try:
        words = shlex.split(comment)
    except ValueError:
        return "", ""
    said: Mapping[str, str] = dict(itertools.pairwise(words))
    return said.get("name:", ""), said.get("id:", "")


def _addresses(directory: str, network: str) -> list[Trace]:
    """Files of host-local: the address is the name, the first line says for whom."""
    try:
        names = sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = []
    for name in names:
        path = os.path.join(directory, name)
        if is_address(name) and (owner := _owner(path)):
            found.append(Trace("address", name, path, network, owner))
    return found


def _owner(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(4096).partition("\n")[0].strip()
    except FileNotFoundError:
        return ""


class _held:
    """The lock of host-local on its directory."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, "lock")
        self._fd = -1

    def __enter__(self) -> None:
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            os.close(self._fd)
