"""Removes what the pods of a network share on the host, which plugins never do: bridge, addresses, base chains."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

from kurma_cni.chain import Chain
from kurma_cni.iptables import Table, families

from kurma_core.errors import NetworkError
from kurma_core.linux import programs
from kurma_net_cni.links import bridge_ports, delete_link, exists

Json = Any
#: Defaults of the plugins bridge and host-local.
_BRIDGE = "cni0"
_ADDRESSES = "/var/lib/cni/networks"
#: Chains of the plugin firewall with ``ingressPolicy: same-bridge``: two rules a bridge, and one last.
_STAGES = ("CNI-ISOLATION-STAGE-1", "CNI-ISOLATION-STAGE-2")


def remove_shared(chain: Chain) -> None:
    """Removes bridge, address records and base chains of a network without pods. Repeatable.

    :raises NetworkError: another program uses them.
    """
    bridges = []
    for plugin in chain.plugins:
        if plugin["type"] == "bridge":
            bridge = plugin.get("bridge") or _BRIDGE
            if _is_link_name(bridge):  # no plugin has made one of another
                bridges.append(bridge)
                _remove_bridge(chain.name, bridge)
        ipam = plugin.get("ipam") or {}
        if ipam.get("type") == "host-local":
            _remove_addresses(chain.name, ipam)
    for family in families(programs):
        _remove_base_chains(family, bridges)


def _is_link_name(value: Json) -> bool:
    return isinstance(value, str) and value.isprintable() and value not in (".", "..") and "/" not in value


def _remove_bridge(network: str, bridge: str) -> None:
    if not exists(bridge):
        return
    ports = bridge_ports(bridge)
    if ports:
        raise NetworkError(
            f'network "{network}": its bridge {bridge} is in use by {", ".join(ports)}', network=network
        )
    delete_link(bridge)


def _remove_addresses(network: str, ipam: Mapping[str, Json]) -> None:
    """Removes the directory in which host-local has a file for each allocated address."""
    directory = address_directory(network, ipam)
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return
    if any(is_address(name) for name in names):
        raise NetworkError(
            f'network "{network}": addresses of it are given out still: {directory}',
            network=network,
            path=directory,
        )
    for name in names:
        if name == "lock" or name.startswith("last_reserved_ip."):
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(directory, name))
    with suppress(OSError):  # the directory stays if it has foreign files
        os.rmdir(directory)


def address_directory(network: str, ipam: Mapping[str, Json]) -> str:
    """The directory of the plugin host-local for the network's addresses."""
    return os.path.join(str(ipam.get("dataDir") or _ADDRESSES), network)


def is_address(name: str) -> bool:
    """Whether the name of a file of that directory is an address."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _remove_base_chains(family: str, bridges: Collection[str]) -> None:
    """Removes the chains of portmap and firewall that all networks of the host share, if they are empty: other
    programs use the same plugins, and administrators add rules to CNI-ADMIN.

    :param bridges: removed bridges, which need no isolation any more.
    """
    nat = Table(programs, family, "nat")
    if not nat.chains.get("CNI-HOSTPORT-DNAT"):
        nat.drop("CNI-HOSTPORT-DNAT")
        if not nat.references("CNI-HOSTPORT-SETMARK"):
            nat.drop("CNI-HOSTPORT-SETMARK")
            nat.drop("CNI-HOSTPORT-MASQ")
    nat.commit()
    filters = Table(programs, family, "filter")
    rules = filters.chains.get("CNI-FORWARD", [])
    # A new CNI-FORWARD would come before the rules that isolate bridges, and accept all packets.
    if not _remove_isolation(filters, bridges):
        rules = [*rules, "needed"]
    if rules == filters.references("CNI-ADMIN") and not filters.chains.get("CNI-ADMIN"):
        filters.drop("CNI-FORWARD")
        filters.drop("CNI-ADMIN")
    filters.commit()


def _remove_isolation(filters: Table, bridges: Collection[str]) -> bool:
    """Removes the rules that isolate these bridges from others, and the chains that are empty then.

    :returns: whether all such chains are removed.
    """
    for stage in _STAGES:
        for rule in list(filters.chains.get(stage, ())):
            if any(bridge in rule.split() for bridge in bridges):
                filters.delete(rule)
    if any(" -j RETURN" not in rule for stage in _STAGES for rule in filters.chains.get(stage, ())):
        return False
    for stage in _STAGES:
        filters.drop(stage)
    return True
