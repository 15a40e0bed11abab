"""Makes the nftables table of a network: forwarding, masquerade, and the maps of published ports.

::

    table inet kurma-1f2e3d4c
        any4, any6          maps: protocol . port             : address of the pod . its port
        one4, one6          maps: address . protocol . port   : the same, of ports that name an address of the host
        chain guard         drops forged packets from the bridge or to it with addresses of 127.0.0.0/8
        chain to_pods       the packets that may go to the bridge
        chain from_pods     the packets that may go from it to another bridge
        chain publish       looks up packets to the host in the maps; from `prerouting` and `output`
        chain postrouting   masquerade

An element's comment is the pod. A rule's comment has a checksum of all rules, so that one request to the kernel
shows whether a rule is missing or of another version.
"""

from __future__ import annotations

import os
import zlib
from collections import Counter

from kurma_core.errors import NetworkError
from kurma_core.linux.programs import run, search_path
from kurma_net_bridge.packet_filter.netfilter import INET, Netfilter
from kurma_net_bridge.packet_filter.network_rules import NetworkRules, comment

PREFIX = "kurma-"
MAPS = {
    "one4": "ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service",
    "one6": "ipv6_addr . inet_proto . inet_service : ipv6_addr . inet_service",
    "any4": "inet_proto . inet_service : ipv4_addr . inet_service",
    "any6": "inet_proto . inet_service : ipv6_addr . inet_service",
}
_BASE = {
    "guard": "type filter hook prerouting priority -300; policy accept;",
    "forward": "type filter hook forward priority 0; policy accept;",
    "prerouting": "type nat hook prerouting priority -100; policy accept;",
    "output": "type nat hook output priority -100; policy accept;",
    "postrouting": "type nat hook postrouting priority 100; policy accept;",
}
_OTHERS = ("to_pods", "from_pods", "publish")
_WORD = {4: "ip", 6: "ip6"}
_LOOPBACK = {4: "127.0.0.0/8", 6: "::1"}
_MULTICAST = {4: "224.0.0.0/4", 6: "ff00::/8"}


def table_of(network: NetworkRules) -> str:
    """Name of the network's table."""
    return PREFIX + network.id


def static_rules(network: NetworkRules) -> list[tuple[str, str]]:
    """Chain and rule, in order, without the comments."""
    bridge = f'"{network.bridge}"'
    # By the kind of interface, so that the rule also covers bridges that are made later.
    other = 'meta oifkind "bridge" '
    if network.open:
        other += "oifname != { " + ", ".join(f'"{name}"' for name in network.open) + " } "
    rules = [
        ("forward", f"oifname {bridge} jump to_pods"),
        ("forward", f"iifname {bridge} {other}jump from_pods"),
        ("from_pods", "ct state established,related accept"),
        ("from_pods", "ct status dnat accept"),
        ("from_pods", "reject with icmpx admin-prohibited"),
        ("to_pods", "ct state established,related accept"),
        ("to_pods", "ct status dnat accept"),
    ]
    if not network.isolated:
        rules.append(("to_pods", f"iifname {bridge} accept"))
    rules += [("to_pods", "ct state invalid drop"), ("to_pods", "reject with icmpx admin-prohibited")]
    for family in network.families:
        word = _WORD[family]
        loopback = _LOOPBACK[family]
        rules += [
            ("guard", f"iifname {bridge} {word} daddr {loopback} drop"),
            ("guard", f"iifname {bridge} {word} saddr {loopback} drop"),
            # `output` handles packets from the host to itself. Other packets to a loopback address are forged.
            ("prerouting", f"{word} daddr {loopback} return"),
            ("publish", f"dnat {word} to {word} daddr . meta l4proto . th dport map @one{family}"),
            ("publish", f"dnat {word} to meta l4proto . th dport map @any{family}"),
        ]
        for source in (loopback, *network.subnets_of(family)):
            rules.append(("postrouting", f"oifname {bridge} {word} saddr {source} ct status dnat masquerade"))
        if network.masquerade:
            rules += [
                (
                    "postrouting",
                    f"oifname != {bridge} {word} saddr {subnet} {word} daddr != {_MULTICAST[family]} masquerade",
                )
                for subnet in network.subnets_of(family)
            ]
    rules += [("prerouting", "fib daddr type local jump publish"), ("output", "fib daddr type local jump publish")]
    return rules


def static_text(network: NetworkRules) -> str:
    """A batch that makes all of the network's rules, and replaces existing ones. Maps keep their elements."""
    table = f"inet {table_of(network)}"
    lines = [f"add table {table}"]
    lines += [f"add map {table} {name} {{ type {kind}; }}" for name, kind in MAPS.items()]
    lines += [f"add chain {table} {chain} {{ {kind} }}" for chain, kind in _BASE.items()]
    lines += [f"add chain {table} {chain}" for chain in _OTHERS]
    lines += [f"flush chain {table} {chain}" for chain in (*_BASE, *_OTHERS)]
    mark = _mark(network)
    lines += [f'add rule {table} {chain} {rule} comment "{mark}"' for chain, rule in static_rules(network)]
    return "\n".join(lines) + "\n"


def _mark(network: NetworkRules) -> str:
    """The comment of each rule: the network, and a checksum of all rules."""
    text = "\n".join(f"{chain} {rule}" for chain, rule in static_rules(network))
    return f"{comment(network.network)} {zlib.crc32(text.encode()):08x}"


def ensure(netfilter: Netfilter, nft: str, network: NetworkRules) -> bool:
    """Makes the network's rules if they are incomplete. :returns: whether they were. :raises NetworkError: nft
    refuses.
    """
    if is_whole(netfilter, network):
        return False
    run_nft(nft, static_text(network), f'cannot make the rules of network "{network.network}"', network.network)
    return True


def exists(netfilter: Netfilter, network: NetworkRules) -> bool:
    """Whether the network's table is there."""
    return table_of(network) in netfilter.tables(INET)


def remove(nft: str, network: NetworkRules) -> None:
    """Removes the network's table, which must exist. :raises NetworkError: nft refuses."""
    failed = f'cannot remove the rules of network "{network.network}"'
    run_nft(nft, f"delete table inet {table_of(network)}\n", failed, network.network)


def run_nft(nft: str, batch: str, failed: str, network: str) -> None:
    """Makes nft execute a batch, atomically. :raises NetworkError: it refuses; the text begins with ``failed``."""
    run_tool([nft, "-f", "-"], batch, failed, network)


def run_tool(arguments: list[str], batch: str, failed: str, network: str) -> str:
    """Runs a program to its end, with ``batch`` as its input. :returns: its output.

    :param arguments: the first is a path. :param failed: begins the message of an error.
    :raises NetworkError: it could not be started, did not end in a minute, or refused.
    """
    name = os.path.basename(arguments[0])
    try:
        finished = run(arguments, stdin=batch.encode(), environment={"PATH": search_path(), "LC_ALL": "C"})
    except TimeoutError as error:
        raise NetworkError(f"{failed}: {name} was killed: {error}", network=network) from None
    except OSError as error:
        raise NetworkError(
            f"{failed}: cannot execute {arguments[0]}: {error.strerror}", network=network, errno=error.errno
        ) from None
    if finished.status != 0:
        lines = [line for line in finished.stderr.decode(errors="replace").splitlines() if line.strip()]
        # Warnings come first.
        wrong = [line for line in lines if not line.lower().startswith(("# warning", "warning"))]
        # iptables-restore prints its name and version first, and the reason in the next line.
        said = " ".join(line.strip() for line in (wrong or lines)[: 2 if name.endswith("restore") else 1])
        why = said or f"it ended with status {finished.status}"
        raise NetworkError(f"{failed}: {name}: {why}", network=network)
    return finished.stdout.decode(errors="replace")


def is_whole(netfilter: Netfilter, network: NetworkRules) -> bool:
    """Whether the kernel has every rule of the network, as this version writes them. Additional rules of an
    administrator do not matter.
    """
    mark = _mark(network)
    there = Counter(rule.chain for rule in netfilter.rules(INET, table_of(network)) if rule.comment == mark)
    return there == Counter(chain for chain, _ in static_rules(network))
