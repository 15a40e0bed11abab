"""Works around failures of CNI's usual plugins: checks that break, links and rules that DEL leaves (1.1.1)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from kurma_cni.iptables import FAMILIES, Table, drop_pod_chains, families

from kurma_core.appc.cni_result import parse_result
from kurma_core.appc.types import address_family
from kurma_core.linux import programs
from kurma_core.models.network import PortMapping
from kurma_net_cni.links import delete_link

Json = Any
#: Plugins that make only the pod's interface, and whose DEL fails if its parent on the host is gone.
LINK_ALONE = ("host-device", "ipvlan", "macvlan", "vlan")
#: Plugins that check whether a chain exists, and then make it: two such plugins at the same time fail.
MAKE_CHAINS = ("firewall", "portmap")
_RATES = ("ingressRate", "egressRate")
#: Most characters of a chain's name.
_CHAIN_MAX = 28


def cannot_check(kind: str, document: Mapping[str, Json]) -> bool:
    """Whether a plugin's CHECK always fails on a document: that of ``bandwidth``, unless both directions have a
    limit.
    """
    if kind != "bandwidth":
        return False
    runtime: Mapping[str, Json] = (document.get("runtimeConfig") or {}).get("bandwidth") or {}
    limits = document if has_rates(document) else runtime
    return not all(limits.get(rate) for rate in _RATES)


def has_rates(plugin: Mapping[str, Json]) -> bool:
    """Whether the configuration of a plugin ``bandwidth`` has its own limits, which override the pod's."""
    return any(plugin.get(rate) for rate in _RATES)


def ports_stand(network: str, pod: str, ports: tuple[PortMapping, ...], result: Json) -> bool:
    """Whether the rules of ``portmap`` for these ports exist. The plugin's own CHECK searches for the rules of one
    family in the tables of the other.
    """
    chain = pod_chains(network, pod)[1]
    for address in parse_result(result, network).addresses:
        ip = address.address.partition("/")[0]
        family = address_family(ip)
        program = tuple(FAMILIES)[family == 6]
        wanted = [port for port in ports if not port.host_ip or address_family(port.host_ip) == family]
        if not wanted:
            continue
        if program not in families(programs):
            return False
        table = Table(programs, program, "nat")
        rules = table.chains.get(chain, [])
        if not table.references(chain) or not all(_leads(rules, port, ip) for port in wanted):
            return False
    return True


def _leads(rules: list[str], port: PortMapping, ip: str) -> bool:
    target = f"[{ip}]:{port.pod_port}" if ":" in ip else f"{ip}:{port.pod_port}"
    wanted = {("-p", port.protocol), ("--dport", str(port.host_port)), ("--to-destination", target)}
    return any(wanted <= set(pairwise(rule.split())) for rule in rules)


def sweep(network: str, pod: str, result: Json) -> None:
    """Removes the pod's NAT rules and its host-side links, which DEL leaves if the pod's namespace was removed
    first, or if an earlier DEL was interrupted. It can be repeated.

    :param result: of the last ADD, or None.
    :raises CniError, NetworkError: a rule or link cannot be removed.
    """
    drop_pod_chains(programs, pod, network, pod_chains(network, pod))
    for name, mac in host_links(result):
        delete_link(name, mac=mac)


def pod_chains(network: str, pod: str) -> tuple[str, ...]:
    """The names of a pod's chains: for masquerading (bridge, ptp) and for ports (portmap)."""
    digest = hashlib.sha512((network + pod).encode()).hexdigest()
    return tuple((prefix + digest)[:_CHAIN_MAX] for prefix in ("CNI-", "CNI-DN-"))


def host_links(result: Json) -> list[tuple[str, str]]:
    """Name and MAC of the host's ends of the pod's veth pairs, from a result."""
    interfaces = result.get("interfaces") if isinstance(result, Mapping) else None
    return [
        (one["name"], one["mac"])
        for one in interfaces or ()
        if isinstance(one, Mapping)
        and not one.get("sandbox")
        and isinstance(one.get("mac"), str)
        and str(one.get("name")).startswith("veth")
    ]
