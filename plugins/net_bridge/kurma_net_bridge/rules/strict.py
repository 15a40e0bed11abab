"""Hosts that forward nothing of their own accord: a policy of dropping, set by another program's rules.

What one chain accepts another may still drop. ``iptables`` has one chain for all, FORWARD, and whoever wants to
pass puts a rule into it, as Docker does: so do we. In a chain of somebody's own in nftables we have no business:
the user is told which it is and what to add.
"""

from __future__ import annotations

from collections.abc import Callable

from kurma_net_bridge.rules.netfilter import INET, IPV4, IPV6, Chain, Netfilter
from kurma_net_bridge.rules.plan import NetworkRules
from kurma_net_bridge.rules.xtables import Xtables, installed

_PROTOCOL = {4: IPV4, 6: IPV6}
_WORD = {INET: "inet", IPV4: "ip", IPV6: "ip6"}


def pass_forward(netfilter: Netfilter, network: NetworkRules, made: tuple[Xtables, ...]) -> None:
    """Lets the network's packets through FORWARD of ``iptables`` where something else stands in it.

    :param made: where the network's own rules stand, and not only what lets it pass.
    :raises NetworkError: ``iptables`` refuses.
    """
    for family in network.families:
        for xtables in installed(family):
            if xtables not in made and _stands_in_the_way(netfilter, xtables):
                from kurma_net_bridge.rules.iptables import ensure_static, passage_rules

                ensure_static(netfilter, xtables, network, passage_rules(network, family))


def _stands_in_the_way(netfilter: Netfilter, xtables: Xtables) -> bool:
    if xtables.legacy:
        return xtables.used(netfilter, "filter")
    protocol = _PROTOCOL[xtables.family]
    if any(_is_forward(chain) and chain.drops for chain in netfilter.chains(protocol)):
        return True
    return bool(netfilter.rules(protocol, "filter", "FORWARD"))


def tell_of_drops(netfilter: Netfilter, network: NetworkRules, note: Callable[[str], None]) -> None:
    """Names each chain of somebody's that drops what it does not accept, and knows nothing of the bridge."""
    protocols = {_PROTOCOL[family] for family in network.families} | {INET}
    passed = {_PROTOCOL[family] for family in network.families if any(not x.legacy for x in installed(family))}
    name = network.bridge.encode() + b"\0"
    for chain in netfilter.chains():
        if not chain.drops or chain.family not in protocols or (_is_forward(chain) and chain.family in passed):
            continue
        if any(name in rule.words for rule in netfilter.rules(chain.family, chain.table)):
            continue
        where = f"{_WORD[chain.family]} {chain.table} {chain.name}"
        note(
            f'network "{network.network}": the chain {chain.name} of the nftables table {_WORD[chain.family]} '
            f"{chain.table} drops what goes to and from its pods; add: nft insert rule {where} iifname "
            f"{network.bridge} accept; nft insert rule {where} oifname {network.bridge} accept"
        )


def _is_forward(chain: Chain) -> bool:
    """The chain that ``iptables`` itself keeps in nftables."""
    return chain.family in (IPV4, IPV6) and (chain.table, chain.name) == ("filter", "FORWARD")
