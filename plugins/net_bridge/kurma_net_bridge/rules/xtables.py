"""One family of ``iptables``: which programs are there, what their tables hold, and a batch of changes to them."""

from __future__ import annotations

import os

from kurma_core.errors import NetworkError
from kurma_core.linux.iptables import Tables, parse_tables
from kurma_core.linux.programs import find_program
from kurma_core.value import frozen
from kurma_net_bridge.rules.netfilter import IPV4, IPV6, Netfilter
from kurma_net_bridge.rules.tool import run_tool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds that iptables waits for others that change rules.
_WAIT = "10"
#: How often a batch is made anew because somebody else has changed the tables meanwhile.
_ATTEMPTS = 4
_PROGRAM = {4: "iptables", 6: "ip6tables"}
_PROTOCOL = {4: IPV4, 6: IPV6}
_LEGACY_TABLES = {4: "/proc/thread-self/net/ip_tables_names", 6: "/proc/thread-self/net/ip6_tables_names"}


@frozen
class Xtables:
    """:param family: 4 or 6. :param legacy: it keeps its rules apart from nftables."""

    family: int
    legacy: bool
    save: str
    restore: str

    def used(self, netfilter: Netfilter, table: str) -> bool:
        """A table is there, so that rules can be in it. Starts no program, and brings no table about."""
        if self.legacy:
            return table in legacy_tables(self.family)
        return table in netfilter.tables(_PROTOCOL[self.family])

    def marked(self, netfilter: Netfilter, table: str, chain: str, mark: str) -> int | None:
        """How many rules of a chain have a comment, or lead to a chain. None: that takes a program to tell."""
        if self.legacy:
            return None
        found = netfilter.rules(_PROTOCOL[self.family], table, chain)
        return sum(rule.comment == mark or mark.encode() + b"\0" in rule.words for rule in found)

    def mentions(self, netfilter: Netfilter, table: str, chain: str, part: str) -> bool:
        """A rule of a chain may have ``part`` in its comment. False is sure."""
        if not self.used(netfilter, table):
            return False
        if self.legacy:
            return True
        found = netfilter.rules(_PROTOCOL[self.family], table, chain)
        return any(part in rule.comment or part.encode() in rule.words for rule in found)

    def chains(self, netfilter: Netfilter, table: str) -> set[str] | None:
        """Names. None: that takes a program to tell."""
        if self.legacy:
            return None
        return {one.name for one in netfilter.chains(_PROTOCOL[self.family]) if one.table == table}

    def read(self, failed: str, network: str) -> Tables:
        """Everything. :raises NetworkError: the program fails."""
        return parse_tables(run_tool([self.save], "", failed, network))

    def change(self, changes: Callable[[Tables], dict[str, list[str]]], failed: str, network: str) -> bool:
        """Reads the tables, and does what ``changes`` makes of them, by table: of each table all or nothing, but
        that chains are removed last.
        Others may change them at the same time.

        :returns: there was something to do. :raises NetworkError: it cannot be done.
        """
        for attempt in range(_ATTEMPTS):
            wanted = {table: lines for table, lines in changes(self.read(failed, network)).items() if lines}
            if not wanted:
                return attempt > 0
            batch = "".join(_batch(table, lines) for table, lines in wanted.items())
            try:
                run_tool([self.restore, "--noflush", "--wait", _WAIT], batch, failed, network)
            except NetworkError:
                if attempt == _ATTEMPTS - 1:
                    raise
                continue
            return True
        raise AssertionError


def _batch(table: str, lines: list[str]) -> str:
    """As iptables-restore reads it. Chains are removed in a second step: iptables 1.8.9 on nftables says that they
    are in use where the rule that leads there has gone in the same one.
    """
    steps = (
        [line for line in lines if not line.startswith("-X")],
        [line for line in lines if line.startswith("-X")],
    )
    return "".join(f"*{table}\n" + "\n".join(step) + "\nCOMMIT\n" for step in steps if step)


def legacy_tables(family: int) -> list[str]:
    """The tables that the kernel keeps for ``iptables-legacy`` here."""
    try:
        with open(_LEGACY_TABLES[family], "rb", buffering=0) as file:
            return file.read(4096).decode().split()
    except OSError:
        return []


def installed(family: int) -> list[Xtables]:
    """Those whose programs are installed, at most one of each kind, the host's choice first."""
    found: list[Xtables] = []
    name = _PROGRAM[family]
    for program in (name, f"{name}-legacy", f"{name}-nft"):
        save, restore = find_program(f"{program}-save"), find_program(f"{program}-restore")
        if save is None or restore is None:
            continue
        legacy = "nft" not in os.path.basename(os.path.realpath(save))
        if all(other.legacy != legacy for other in found):
            found.append(Xtables(family, legacy, save, restore))
    return found
