"""Rules by ``iptables`` and ``ip6tables``, in chains of our own, with one jump from each built-in chain::

    filter  FORWARD -> KURMA-FORWARD -> KURMA-ADMIN (an administrator's), KURMA-ID-TO (what may go to the bridge),
                                        KURMA-ID-FROM (what may go from it)
    nat     PREROUTING, OUTPUT -> KURMA-PUBLISH -> KURMA-ID-PORTS
            POSTROUTING -> KURMA-MASQ -> KURMA-ID-MASQ
    raw     PREROUTING -> KURMA-GUARD

Networks share the chains without an id, and each rule there tells by its comment whose it is. They go with the
last network; KURMA-ADMIN only when it is empty.

Where nftables do the work, :func:`passage_rules` are all that there is here: FORWARD lets pass what goes to or
comes from the bridge, so that a policy of dropping, as Docker and ufw set it, does not meet it. The chain of
nftables still refuses.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

from kurma_core.linux.iptables import Tables, comment_of, target_of
from kurma_net_bridge.rules.netfilter import Netfilter
from kurma_net_bridge.rules.plan import NetworkRules, Published, comment, is_id
from kurma_net_bridge.rules.xtables import Xtables

_FORWARD, _ADMIN, _PUBLISH, _MASQ, _GUARD = (
    "KURMA-FORWARD",
    "KURMA-ADMIN",
    "KURMA-PUBLISH",
    "KURMA-MASQ",
    "KURMA-GUARD",
)
_OWN = ("TO", "FROM", "PORTS", "MASQ")
_LOOPBACK = {4: "127.0.0.0/8", 6: "::1/128"}
_MULTICAST = {4: "224.0.0.0/4", 6: "ff00::/8"}
#: Table and chain of our own, with the jumps from built-in chains that lead there, as iptables-save writes them.
_SHARED = {
    ("filter", _FORWARD): ("-A FORWARD -j KURMA-FORWARD",),
    ("nat", _PUBLISH): (
        "-A PREROUTING {strange} -m addrtype --dst-type LOCAL -j KURMA-PUBLISH",
        "-A OUTPUT -m addrtype --dst-type LOCAL -j KURMA-PUBLISH",
    ),
    ("nat", _MASQ): ("-A POSTROUTING -j KURMA-MASQ",),
    ("raw", _GUARD): ("-A PREROUTING -j KURMA-GUARD",),
}
#: Jumps that stand before all else: those who set FORWARD to drop also end it with a rule that refuses.
_FIRST = (_FORWARD, _GUARD)
_REFUSE = {4: "REJECT --reject-with icmp-admin-prohibited", 6: "REJECT --reject-with icmp6-adm-prohibited"}

#: Table, chain, rule.
Rule = tuple[str, str, str]


def chain_of(network: NetworkRules, name: str) -> str:
    return f"KURMA-{network.id}-{name}"


def passage_rules(network: NetworkRules, family: int) -> list[Rule]:
    """Rules that let through FORWARD whatever goes to the bridge or comes from it."""
    return [
        ("filter", _FORWARD, f"-o {network.bridge} -j ACCEPT"),
        ("filter", _FORWARD, f"-i {network.bridge} -j ACCEPT"),
    ]


def static_rules(network: NetworkRules, family: int) -> list[Rule]:
    """In order, without what tells whose they are."""
    bridge, to, out = network.bridge, chain_of(network, "TO"), chain_of(network, "FROM")
    masquerade = chain_of(network, "MASQ")
    rules = [
        ("filter", _FORWARD, f"-o {bridge} -j {to}"),
        ("filter", _FORWARD, f"-i {bridge} -j {out}"),
        ("filter", out, "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"),
        ("filter", out, "-m conntrack --ctstate DNAT -j ACCEPT"),
        *(("filter", out, f"-o {name} -j {_REFUSE[family]}") for name in network.closed),
        ("filter", out, "-j ACCEPT"),
        ("filter", to, "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"),
        ("filter", to, "-m conntrack --ctstate DNAT -j ACCEPT"),
    ]
    if not network.isolated:
        rules.append(("filter", to, f"-i {bridge} -j ACCEPT"))
    rules += [
        ("filter", to, "-m conntrack --ctstate INVALID -j DROP"),
        ("filter", to, f"-j {_REFUSE[family]}"),
        ("raw", _GUARD, f"-i {bridge} -d {_LOOPBACK[family]} -j DROP"),
        ("raw", _GUARD, f"-i {bridge} -s {_LOOPBACK[family]} -j DROP"),
        ("nat", _PUBLISH, f"-j {chain_of(network, 'PORTS')}"),
        ("nat", _MASQ, f"-j {masquerade}"),
    ]
    for source in (_LOOPBACK[family], *network.subnets_of(family)):
        rules.append(
            ("nat", masquerade, f"-s {source} -o {bridge} -m conntrack --ctstate DNAT -j MASQUERADE"),
        )
    if network.masquerade:
        rules += [
            ("nat", masquerade, f"-s {subnet} ! -d {_MULTICAST[family]} ! -o {bridge} -j MASQUERADE")
            for subnet in network.subnets_of(family)
        ]
    return rules


def _mark(network: NetworkRules, rules: list[Rule]) -> str:
    """Whose a rule is, and a sum of all of them."""
    text = "\n".join(" ".join(rule) for rule in rules)
    return f"kurma,{network.id},{comment(network.network)},{zlib.crc32(text.encode()):08x}"


def _of_network(rule: str, network_id: str) -> bool:
    return comment_of(rule).startswith(f"kurma,{network_id},")


class Static:
    """A network's static rules in one family: whether they are there, and what makes them whole."""

    def __init__(self, network: NetworkRules, family: int, rules: list[Rule]) -> None:
        self._network = network
        self._family = family
        self._rules = rules
        self.mark = _mark(network, rules)
        self._chains = {(table, chain) for table, chain, _ in rules}
        if any(table == "nat" for table, _ in self._chains):
            self._chains.add(("nat", chain_of(network, "PORTS")))

    def is_whole(self, netfilter: Netfilter, xtables: Xtables) -> bool:
        """As far as can be told without a program; False otherwise."""
        for table, chain in self._chains:
            wanted = sum(one[:2] == (table, chain) for one in self._rules)
            if wanted and xtables.marked(netfilter, table, chain, self.mark) != wanted:
                return False
        for (table, chain), jumps in _SHARED.items():
            if (table, chain) not in self._chains:
                continue
            for jump in jumps:
                # The kernel keeps a jump's target as text.
                if not xtables.marked(netfilter, table, jump.split()[1], chain):
                    return False
        return not xtables.legacy

    def changes(self, tables: Tables) -> dict[str, list[str]]:
        """By table, the lines that make it whole; none where it is."""
        return {table: self._table(table, tables.get(table, {})) for table in ("raw", "nat", "filter")}

    def _table(self, table: str, there: dict[str, list[str]]) -> list[str]:
        own = {chain for held, chain in self._chains if held == table}
        if not own or self._is_there(table, own, there):
            return []
        lines: list[str] = []
        rules = [(chain, rule) for held, chain, rule in self._rules if held == table]
        for chain in sorted(own):
            if (table, chain) in _SHARED:
                lines += _shared(table, chain, there, self._family)
                # What there is of this network is made anew.
                lines += [
                    rule.replace("-A", "-D", 1)
                    for rule in there.get(chain, [])
                    if _of_network(rule, self._network.id)
                ]
            elif chain.endswith("-PORTS"):
                lines += [] if chain in there else [f"-N {chain}"]
            else:
                lines.append(f":{chain} - [0:0]")
        tell = f"-m comment --comment {self.mark}"
        for chain, rule in rules:
            match, _, target = rule.rpartition("-j ")
            if chain == _FORWARD and match.startswith("-o"):
                # Before what lets other networks' pods go anywhere, behind the administrator's.
                lines.append(f"-I {chain} 2 {match}{tell} -j {target}")
            else:
                lines.append(f"-A {chain} {match}{tell} -j {target}")
        return lines

    def _is_there(self, table: str, own: set[str], there: dict[str, list[str]]) -> bool:
        for chain in own:
            wanted = sum(one[:2] == (table, chain) for one in self._rules)
            if chain not in there or sum(comment_of(rule) == self.mark for rule in there[chain]) != wanted:
                return False
            for jump in _SHARED.get((table, chain), ()):
                if not any(target_of(rule) == chain for rule in there.get(jump.split()[1], [])):
                    return False
        return True


def _shared(table: str, chain: str, there: dict[str, list[str]], family: int) -> list[str]:
    """Makes a chain that networks share, and the jumps to it, where they are missing."""
    lines = [] if chain in there else [f"-N {chain}"]
    if chain == _FORWARD:
        lines += [] if _ADMIN in there else [f"-N {_ADMIN}"]
        if not any(target_of(rule) == _ADMIN for rule in there.get(chain, [])):
            lines.append(f"-I {chain} -j {_ADMIN}")
    for jump in _SHARED[table, chain]:
        if not any(target_of(rule) == chain for rule in there.get(jump.split()[1], [])):
            line = jump.replace("{strange}", f"! -d {_LOOPBACK[family]}")
            lines.append(line.replace("-A", "-I", 1) if chain in _FIRST else line)
    return lines


class Iptables:
    """:param families: of each family the programs that the host has chosen."""

    def __init__(self, families: Iterable[Xtables]) -> None:
        self._families = {one.family: one for one in families}

    @property
    def programs(self) -> tuple[Xtables, ...]:
        """What its rules are made with, in ``iptables``."""
        return tuple(self._families.values())

    def ensure(self, netfilter: Netfilter, network: NetworkRules) -> bool:
        """As :meth:`kurma_net_bridge.rules.nftables.Nftables.ensure`."""
        made = [
            ensure_static(netfilter, self._families[family], network, static_rules(network, family))
            for family in network.families
        ]
        return any(made)

    def publish(self, netfilter: Netfilter, network: NetworkRules, pod: str, wanted: Iterable[Published]) -> None:
        """As :meth:`kurma_net_bridge.rules.nftables.Nftables.publish`."""
        ports = list(wanted)
        chain = chain_of(network, "PORTS")
        for family in network.families:
            new = {_tell(network, pod, port): port for port in ports if port.family == family}
            if not new and not self._families[family].mentions(netfilter, "nat", chain, comment(pod)):
                continue
            places = {_place(mark) for mark in new}

            def changes(
                tables: Tables, new: dict[str, Published] = new, places: set[tuple[str, ...]] = places
            ) -> dict[str, list[str]]:
                missing, lines = dict(new), []
                for rule in tables.get("nat", {}).get(chain, []):
                    mark = comment_of(rule)
                    if missing.pop(mark, None) is None and (_pod(mark) == comment(pod) or _place(mark) in places):
                        lines.append(rule.replace("-A", "-D", 1))
                lines += [_line(chain, mark, port) for mark, port in missing.items()]
                return {"nat": lines}

            failed = f'network "{network.network}": ports cannot be published'
            self._families[family].change(changes, failed, network.network)

    def withdraw(self, netfilter: Netfilter, network: NetworkRules, pod: str) -> tuple[str, ...]:
        """As :meth:`kurma_net_bridge.rules.nftables.Nftables.withdraw`."""
        chain = chain_of(network, "PORTS")
        addresses: set[str] = set()

        def changes(tables: Tables) -> dict[str, list[str]]:
            held = [
                rule for rule in tables.get("nat", {}).get(chain, []) if _pod(comment_of(rule)) == comment(pod)
            ]
            marks = [comment_of(rule).split(",") for rule in held]
            addresses.update(mark[6] for mark in marks if mark[3] == "udp")
            return {"nat": [rule.replace("-A", "-D", 1) for rule in held]}

        for xtables in self._families.values():
            if xtables.mentions(netfilter, "nat", chain, comment(pod)):
                xtables.change(changes, f'network "{network.network}": ports cannot be withdrawn', network.network)
        return tuple(addresses)

    def remove(self, netfilter: Netfilter, network: NetworkRules) -> None:
        """As :meth:`kurma_net_bridge.rules.nftables.Nftables.remove`; what networks share goes with the last."""
        for xtables in self._families.values():
            _remove(netfilter, xtables, network)

    def found(self, netfilter: Netfilter) -> Sequence[tuple[str, str, str]]:
        """As :meth:`kurma_net_bridge.rules.nftables.Nftables.found`."""
        return [one for xtables in self._families.values() for one in _found(netfilter, xtables)]


def ensure_static(netfilter: Netfilter, xtables: Xtables, network: NetworkRules, rules: list[Rule]) -> bool:
    """Makes a network's rules whole in one family. True: they were not. :raises NetworkError: they cannot be."""
    static = Static(network, xtables.family, rules)
    if static.is_whole(netfilter, xtables):
        return False
    failed = f'network "{network.network}": its rules cannot be made'
    return xtables.change(static.changes, failed, network.network)


def _remove(netfilter: Netfilter, xtables: Xtables, network: NetworkRules) -> None:
    if not _may_have(netfilter, xtables):
        return

    def changes(tables: Tables) -> dict[str, list[str]]:
        return {table: _removal(table, chains, network) for table, chains in tables.items()}

    xtables.change(changes, f'network "{network.network}": its rules cannot be removed', network.network)


def _may_have(netfilter: Netfilter, xtables: Xtables) -> bool:
    """Something of ours can be there, as far as can be told without a program."""
    for table in ("filter", "nat", "raw"):
        if xtables.used(netfilter, table):
            chains = xtables.chains(netfilter, table)
            if chains is None or any(chain.startswith("KURMA-") for chain in chains):
                return True
    return False


def _removal(table: str, there: dict[str, list[str]], network: NetworkRules) -> list[str]:
    lines = []
    left = {chain: list(rules) for chain, rules in there.items()}
    for held, chain in _SHARED:
        if held != table or chain not in left:
            continue
        own = [rule for rule in left[chain] if _of_network(rule, network.id)]
        lines += [rule.replace("-A", "-D", 1) for rule in own]
        left[chain] = [rule for rule in left[chain] if rule not in own]
    for chain in (chain_of(network, name) for name in _OWN):
        if chain in left:
            lines += [f"-F {chain}", f"-X {chain}"]
            del left[chain]
    if not lines:
        return []
    for held, chain in _SHARED:
        if held == table and chain in left and all(target_of(rule) == _ADMIN for rule in left[chain]):
            lines += _drop_shared(table, chain, left)
    return lines


def _drop_shared(table: str, chain: str, left: dict[str, list[str]]) -> list[str]:
    """A chain that nothing of ours is in any more; it stays where somebody else jumps to it."""
    built_in = {jump.split()[1] for jump in _SHARED[table, chain]}
    jumps = [rule for rules in left.values() for rule in rules if target_of(rule) == chain]
    if any(rule.split()[1] not in built_in for rule in jumps):
        return []
    lines = [rule.replace("-A", "-D", 1) for rule in jumps]
    lines += [f"-F {chain}", f"-X {chain}"]
    if chain == _FORWARD and left.get(_ADMIN) == []:
        elsewhere = [r for c, rules in left.items() if c != chain for r in rules if target_of(r) == _ADMIN]
        lines += [] if elsewhere else [f"-X {_ADMIN}"]
    return lines


def _found(netfilter: Netfilter, xtables: Xtables) -> Sequence[tuple[str, str, str]]:
    """Network id, pod or "", and what there is of ours in one family."""
    if not _may_have(netfilter, xtables):
        return []
    name = "iptables" if xtables.family == 4 else "ip6tables"
    found = []
    for table, chains in xtables.read("rules cannot be read", "").items():
        for chain, rules in chains.items():
            words = chain.split("-")
            if len(words) == 3 and words[0] == "KURMA" and is_id(words[1]) and words[2] in _OWN:
                found.append((words[1], "", f"{name} chain {chain} of table {table}"))
            for rule in rules:
                marks = comment_of(rule).split(",")
                if not chain.startswith("KURMA-") or len(marks) < 4 or marks[0] != "kurma":
                    continue
                pod = marks[2] if len(marks) == 8 else ""
                if pod or (table, chain) in _SHARED:
                    found.append((marks[1], pod, f"{name} rule in {chain} of table {table}: {rule}"))
    return found


def _tell(network: NetworkRules, pod: str, port: Published) -> str:
    """A port's rule tells everything by its comment: how iptables writes the rest depends on its version."""
    words = ("kurma", network.id, comment(pod), port.protocol, str(port.host_port), port.host_ip)
    return ",".join((*words, port.address, str(port.pod_port)))


def _pod(mark: str) -> str:
    words = mark.split(",")
    return words[2] if len(words) == 8 else ""


def _place(mark: str) -> tuple[str, ...]:
    """Protocol, port and address of the host."""
    words = mark.split(",")
    return tuple(words[3:6]) if len(words) == 8 else ()


def _line(chain: str, mark: str, port: Published) -> str:
    to = f"[{port.address}]" if port.family == 6 else port.address
    at = f"-d {port.host_ip} " if port.host_ip else ""
    return (
        f"-A {chain} {at}-p {port.protocol} -m {port.protocol} --dport {port.host_port} "
        f"-m comment --comment {mark} -j DNAT --to-destination {to}:{port.pod_port}"
    )
