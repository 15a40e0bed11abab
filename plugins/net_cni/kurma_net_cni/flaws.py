"""Where CNI's usual plugins fail for no good reason, and what is looked at instead. As of Debian 12 (1.1.1)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from kurma_core.appc.cni_result import address_family, parse_result
from kurma_core.models.network import PortMapping
from kurma_net_cni.leftovers import pod_chains
from kurma_net_cni.rules import FAMILIES, Table, families

Json = Any
#: Plugins that make nothing but the pod's interface, and whose DEL fails where what they made it of is gone.
LINK_ALONE = ("host-device", "ipvlan", "macvlan", "vlan")
#: Plugins that look whether a chain is there, and then make it: two that do so at the same time fail.
MAKE_CHAINS = ("firewall", "portmap")
_RATES = ("ingressRate", "egressRate")


def cannot_check(kind: str, document: Mapping[str, Json]) -> bool:
    """Whether a plugin's CHECK breaks on a document as such: that of ``bandwidth``, unless both directions have a
    limit.
    """
    if kind != "bandwidth":
        return False
    runtime: Mapping[str, Json] = (document.get("runtimeConfig") or {}).get("bandwidth") or {}
    limits = document if has_rates(document) else runtime
    return not all(limits.get(rate) for rate in _RATES)


def has_rates(plugin: Mapping[str, Json]) -> bool:
    """Whether the configuration of a plugin ``bandwidth`` has limits of its own, which win over the pod's."""
    return any(plugin.get(rate) for rate in _RATES)


def ports_stand(network: str, pod: str, ports: tuple[PortMapping, ...], result: Json) -> bool:
    """Whether the rules are there that ``portmap`` makes for these ports. Its own CHECK looks for those of one
    family among those of the other.
    """
    chain = pod_chains(network, pod)[1]
    for address in parse_result(result, network).addresses:
        ip = address.address.partition("/")[0]
        family = address_family(ip)
        program = FAMILIES[family == 6]
        wanted = [port for port in ports if not port.host_ip or address_family(port.host_ip) == family]
        if not wanted:
            continue
        if program not in families():
            return False
        table = Table(program, "nat")
        rules = table.chains.get(chain, [])
        if not table.references(chain) or not all(_leads(rules, port, ip) for port in wanted):
            return False
    return True


def _leads(rules: list[str], port: PortMapping, ip: str) -> bool:
    target = f"[{ip}]:{port.pod_port}" if ":" in ip else f"{ip}:{port.pod_port}"
    wanted = {("-p", port.protocol), ("--dport", str(port.host_port)), ("--to-destination", target)}
    return any(wanted <= set(pairwise(rule.split())) for rule in rules)
