"""What the plugins' DEL leaves of a pod whose namespace was gone first, or whose earlier DEL was broken off.

The names of chains are those that the plugins derive from network and pod.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from kurma_net_cni.links import delete_link
from kurma_net_cni.rules import Table, families

Json = Any
_CHAIN_MAX = 28


def sweep(network: str, pod: str, result: Json) -> None:
    """Removes the pod's NAT rules and its host-side links; nothing there is success.

    :param result: of the last ADD, or None.
    :raises NetworkError: something is there and cannot be removed.
    """
    for family in families():
        table = Table(family, "nat")
        for chain in pod_chains(network, pod):
            table.drop(chain)
        table.commit()
    for name, mac in host_links(result):
        delete_link(name, mac=mac)


def pod_chains(network: str, pod: str) -> tuple[str, ...]:
    """Chains of a pod: for masquerading (bridge, ptp), and for its ports (portmap)."""
    digest = hashlib.sha512((network + pod).encode()).hexdigest()
    return tuple((prefix + digest)[:_CHAIN_MAX] for prefix in ("CNI-", "CNI-DN-"))


def host_links(result: Json) -> list[tuple[str, str]]:
    """Name and MAC of the pod's ends of cables on the host (``veth…``), as a result tells them."""
    interfaces = result.get("interfaces") if isinstance(result, Mapping) else None
    return [
        (one["name"], one["mac"])
        for one in interfaces or ()
        if isinstance(one, Mapping)
        and not one.get("sandbox")
        and isinstance(one.get("mac"), str)
        and str(one.get("name")).startswith("veth")
    ]
