"""Lets a bridge's packets through the FORWARD chain of iptables, where another program's rules would drop them.

A packet that one chain accepts may be dropped by another. All programs share iptables' chain FORWARD, and programs
such as Docker add rules to let their packets pass: Kurma puts two for each bridge at its beginning. They accept
packets to and from the bridge; the network's nftables table still drops unwanted ones. Kurma does not change
another program's own nftables chain: it tells the user which chain drops the packets, and which rule to add.
"""

from __future__ import annotations

import os

from kurma_core.errors import NetworkError
from kurma_core.linux.programs import find_program
from kurma_core.value import frozen
from kurma_net_bridge.packet_filter.netfilter import INET, IPV4, IPV6, Netfilter
from kurma_net_bridge.packet_filter.network_rules import NetworkRules, is_id
from kurma_net_bridge.packet_filter.nftables import run_tool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from kurma_net_bridge.packet_filter.netfilter import Chain

_PROTOCOL = {4: IPV4, 6: IPV6}
_WORD = {INET: "inet", IPV4: "ip", IPV6: "ip6"}
_PROGRAM = {4: "iptables", 6: "ip6tables"}
#: Seconds that iptables waits for other programs that change rules.
_WAIT = "10"
#: Attempts to read and change rules, if another program changes them meanwhile.
_ATTEMPTS = 4
_LEGACY_TABLES = {4: "/proc/thread-self/net/ip_tables_names", 6: "/proc/thread-self/net/ip6_tables_names"}
#: Prefix of our rules' comments; network id and bridge follow.
_MARK = "kurma,"


@frozen
class Iptables:
    """One installed kind of iptables.

    :param family: 4 or 6. :param legacy: its rules are not in nftables.
    """

    family: int
    legacy: bool
    save: str
    restore: str

    def stands_in_the_way(self, netfilter: Netfilter) -> bool:
        """Whether FORWARD has a rule or drops by default. Starts no program."""
        if self.legacy:
            return self._has_legacy_table()
        protocol = _PROTOCOL[self.family]
        if any(_is_forward(chain) and chain.drops for chain in netfilter.chains(protocol)):
            return True
        return bool(netfilter.rules(protocol, "filter", "FORWARD"))

    def _has_legacy_table(self) -> bool:
        try:
            with open(_LEGACY_TABLES[self.family], "rb", buffering=0) as file:
                return b"filter" in file.read(4096).split()
        except OSError:
            return False

    def counts(self, netfilter: Netfilter, mark: str) -> int:
        """An upper bound of the rules of FORWARD with ``mark`` in their comment. Starts no program."""
        if self.legacy:
            return int(self._has_legacy_table())
        rules = netfilter.rules(_PROTOCOL[self.family], "filter", "FORWARD")
        return sum(mark in rule.comment or mark.encode() in rule.words for rule in rules)

    def rules(self, failed: str, network: str) -> list[tuple[str, str]]:
        """Our rules in FORWARD: network id, and the rule (``-A FORWARD …``) as iptables-save writes it."""
        found = []
        for line in run_tool([self.save, "-t", "filter"], "", failed, network).splitlines():
            network_id, _, bridge = line.partition(_MARK)[2].split(" ")[0].strip('"').partition(",")
            if line.replace('"', "") in [f"-A FORWARD {_rule(way, network_id, bridge)}" for way in "oi"]:
                found.append((network_id, line))
        return found

    def replace(self, network_id: str, wanted: Sequence[str], failed: str, network: str) -> None:
        """Replaces the network's rules at the beginning of FORWARD, atomically.

        :raises NetworkError: iptables refuses.
        """
        for attempt in range(_ATTEMPTS):
            there = [rule for each, rule in self.rules(failed, network) if each == network_id]
            if [rule.replace('"', "") for rule in there] == [f"-A FORWARD {rule}" for rule in wanted]:
                return
            lines = [rule.replace("-A", "-D", 1) for rule in there]
            lines += [f"-I FORWARD {rule}" for rule in reversed(wanted)]
            batch = "".join(f"{line}\n" for line in ("*filter", *lines, "COMMIT"))
            try:
                run_tool([self.restore, "--noflush", "--wait", _WAIT], batch, failed, network)
                return
            except NetworkError:  # another program may have changed them meanwhile
                if attempt == _ATTEMPTS - 1:
                    raise


def installed(family: int) -> list[Iptables]:
    """The installed kinds of iptables, at most one of each, the host's choice first."""
    found: list[Iptables] = []
    name = _PROGRAM[family]
    for program in (name, f"{name}-legacy", f"{name}-nft"):
        save, restore = find_program(f"{program}-save"), find_program(f"{program}-restore")
        if save is None or restore is None:
            continue
        legacy = "nft" not in os.path.basename(os.path.realpath(save))
        if all(other.legacy != legacy for other in found):
            found.append(Iptables(family, legacy, save, restore))
    return found


def let_through(netfilter: Netfilter, network: NetworkRules) -> None:
    """Puts the network's two rules into FORWARD, if that has other rules or drops by default. It can be repeated.

    :raises NetworkError: iptables refuses.
    """
    mark = f"{_MARK}{network.id},{network.bridge}"
    failed = f'cannot let the packets of network "{network.network}" through FORWARD'
    for iptables in _installed(network.families):
        if not iptables.stands_in_the_way(netfilter):
            continue
        if not iptables.legacy and iptables.counts(netfilter, mark) == 2:
            continue
        wanted = [_rule(way, network.id, network.bridge) for way in "oi"]
        iptables.replace(network.id, wanted, failed, network.network)


def remove(netfilter: Netfilter, network: NetworkRules) -> None:
    """Removes the network's rules from FORWARD. Repeatable. :raises NetworkError: iptables refuses."""
    failed = f'cannot remove the rules of network "{network.network}" from FORWARD'
    for iptables in _installed((4, 6)):
        if iptables.counts(netfilter, f"{_MARK}{network.id},"):
            iptables.replace(network.id, (), failed, network.network)


def found(netfilter: Netfilter) -> Sequence[tuple[str, str, str]]:
    """Network id, "" and description of each of our rules in FORWARD."""
    found = []
    for iptables in _installed((4, 6)):
        if not iptables.counts(netfilter, _MARK):
            continue
        for network_id, rule in iptables.rules("cannot read the rules of iptables", ""):
            if is_id(network_id):
                found.append((network_id, "", f"{_PROGRAM[iptables.family]} rule in FORWARD: {rule}"))
    return found


def tell_of_drops(netfilter: Netfilter, network: NetworkRules, note: Callable[[str], None]) -> None:
    """Notes each chain of :func:`drops`."""
    for what, commands in drops(netfilter, network.bridge, network.families):
        note(
            f'network "{network.network}": {what} drops what goes to and from its pods; add: {"; ".join(commands)}'
        )


def drops(
    netfilter: Netfilter, bridge: str, families: Collection[int] = (4, 6)
) -> Iterator[tuple[str, tuple[str, str]]]:
    """Finds nftables chains of other programs that drop by default and have no rule for the bridge. Yields a name
    for each, and the commands that add the rules."""
    protocols = {_PROTOCOL[family] for family in families} | {INET}
    passed = {_PROTOCOL[each.family] for each in _installed(families) if not each.legacy}
    name = bridge.encode() + b"\0"
    for chain in netfilter.chains():
        if not chain.drops or chain.family not in protocols or (_is_forward(chain) and chain.family in passed):
            continue
        if any(name in rule.words for rule in netfilter.rules(chain.family, chain.table)):
            continue
        where = f"{_WORD[chain.family]} {chain.table} {chain.name}"
        yield (
            f"the chain {chain.name} of the nftables table {_WORD[chain.family]} {chain.table}",
            (
                f"nft insert rule {where} iifname {bridge} accept",
                f"nft insert rule {where} oifname {bridge} accept",
            ),
        )


def _rule(way: str, network_id: str, bridge: str) -> str:
    """:param way: ``o``: for packets to the bridge; ``i``: for packets from it."""
    return f"-{way} {bridge} -m comment --comment {_MARK}{network_id},{bridge} -j ACCEPT"


def _installed(families: Iterable[int]) -> list[Iptables]:
    return [iptables for family in families for iptables in installed(family)]


def _is_forward(chain: Chain) -> bool:
    """The chain that iptables itself keeps in nftables."""
    return chain.family in (IPV4, IPV6) and (chain.table, chain.name) == ("filter", "FORWARD")
