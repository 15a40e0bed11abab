"""Reads and changes the iptables rules that CNI plugins make, by ``iptables-save`` and ``iptables-restore``.

Works with either backend. The plugins bridge and ptp make a chain per pod for masquerading, portmap one for the
pod's ports. Where a pod's namespace went first, or an earlier DEL was broken off, the plugins leave these.
"""

from __future__ import annotations

import os

from kurma_cni.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from kurma_cni.plugins import Programs

    #: Rules (``-A CHAIN …``) by table and chain.
    Tables = dict[str, dict[str, list[str]]]

#: Each family's program, and a file that exists where the kernel has the family.
FAMILIES = {"iptables": "/proc/net/route", "ip6tables": "/proc/net/if_inet6"}
#: Prefix of the names of the plugins' chains.
_PREFIX = "CNI-"
#: The chain in which portmap has a jump for each pod, and the chains that lead to it.
_PORTS, _ENTRANCES = "CNI-HOSTPORT-DNAT", ("PREROUTING", "OUTPUT")


def parse_tables(text: str) -> Tables:
    """Parses the output of ``iptables-save``: with chains that have no rules, without counters."""
    tables: Tables = {}
    chains: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("*"):
            chains = tables.setdefault(line[1:].strip(), {})
        elif line.startswith(":"):
            chains[line[1:].split(" ", 1)[0]] = []
        elif line.startswith("-A "):
            chains.setdefault(line.split(" ", 2)[1], []).append(line)
    return tables


def target_of(rule: str) -> str:
    """The chain or target that a rule leads to; "": it only counts."""
    words = rule.split()
    for flag in ("-j", "-g"):
        if flag in words[:-1]:
            return words[words.index(flag) + 1]
    return ""


def families(programs: Programs) -> tuple[str, ...]:
    """Those that the kernel has and whose programs are installed; without them no plugin can have made rules."""
    return tuple(
        family
        for family, known in FAMILIES.items()
        if os.path.exists(known) and programs.find_program(f"{family}-save")
    )


class Table:
    """One table of one family, as it was when it was read.

    :ivar chains: the rules (``-A CHAIN …``) by chain, without those that are to be removed.
    """

    def __init__(self, programs: Programs, family: str, name: str) -> None:
        """:raises CniError: the table cannot be read."""
        self._programs = programs
        self._family = family
        self._name = name
        self._changes: list[str] = []
        self.chains = parse_tables(self._run("save", "-t", name)).get(name, {})

    def references(self, chain: str) -> list[str]:
        """The rules that jump to ``chain``."""
        return [rule for rules in self.chains.values() for rule in rules if target_of(rule) == chain]

    def drop(self, chain: str) -> None:
        """Removes ``chain`` and the jumps to it at :meth:`commit`; no such chain is success.

        A chain that was read as empty is not flushed: if another program has added a rule since, the commit fails.
        """
        rules = self.chains.pop(chain, None)
        if rules is None:
            return
        self._changes += [f"-F {chain}"] if rules else []
        for rule in self.references(chain):
            self.delete(rule)
        self._changes.append(f"-X {chain}")

    def delete(self, rule: str) -> None:
        """Removes that rule, as :attr:`chains` has it, at :meth:`commit`."""
        text = rule.removeprefix("-A ")
        self.chains[text.split(" ", 1)[0]].remove(rule)
        self._changes.append(f"-D {text}")

    def put_first(self, chain: str, first: list[str]) -> None:
        """Moves these rules of a chain before all others at :meth:`commit`."""
        if self.chains[chain][: len(first)] == first:
            return
        texts = [rule.removeprefix(f"-A {chain} ") for rule in first]
        self._changes += [f"-D {chain} {text}" for text in texts]
        self._changes += [f"-I {chain} 1 {text}" for text in reversed(texts)]

    def commit(self) -> None:
        """Makes all changes at once, or none.

        :raises CniError: another program changed the table meanwhile, or the kernel refuses.
        """
        if self._changes:
            text = "\n".join([f"*{self._name}", *self._changes, "COMMIT", ""])
            self._run("restore", "--noflush", "--wait", stdin=text)

    def _run(self, verb: str, *arguments: str, stdin: str = "") -> str:
        program = f"{self._family}-{verb}"
        path = self._programs.find_program(program)
        if path is None:
            raise CniError(f"cannot read packet filter rules: there is no program {program}")
        environment = {"PATH": self._programs.search_path()}
        try:
            finished = self._programs.run([path, *arguments], stdin=stdin.encode(), environment=environment)
        except TimeoutError as error:
            raise CniError(f"cannot change packet filter rules: {program} was killed: {error}") from None
        except OSError as error:
            raise CniError(f"cannot execute {path}: {error.strerror}") from error
        if finished.status != 0:
            why = self._programs.one_line(finished.stderr.strip().partition(b"\n")[0])
            raise CniError(f"{program} failed on the table {self._name}: {why}")
        return finished.stdout.decode(errors="replace")


def drop_pod_chains(programs: Programs, container: str, network: str = "", names: Iterable[str] = ()) -> None:
    """Removes a pod's chains from the nat tables. Repeatable.

    They are found by the jumps to them, whose comments name network and pod.

    :param network: only those of this network; "": those of all.
    :param names: further chains of the pod, whose jumps may be missing.
    :raises CniError: a table cannot be read or changed; the other family's is changed all the same.
    """
    failure: CniError | None = None
    for family in families(programs):
        try:
            table = Table(programs, family, "nat")
            jumps = [
                rule
                for rules in table.chains.values()
                for rule in rules
                if container in rule and (not network or f'\\"{network}\\"' in rule)
            ]
            for chain in {*names, *(target for rule in jumps if (target := target_of(rule)).startswith(_PREFIX))}:
                table.drop(chain)
            table.commit()
        except CniError as error:
            failure = failure or error
    if failure is not None:
        raise failure


def put_pod_first(programs: Programs, container: str) -> None:
    """Puts the rules that lead ports of the host to this pod before all others, as rkt does.

    The plugin portmap appends them, and those of a pod that has ended stay until it is removed.

    :raises CniError: a table cannot be read or changed.
    """
    for family in families(programs):
        table = Table(programs, family, "nat")
        ours = [rule for rule in table.chains.get(_PORTS, []) if container in rule]
        if not ours:
            continue
        table.put_first(_PORTS, ours)
        for chain in _ENTRANCES:
            jumps = [rule for rule in table.chains.get(chain, []) if target_of(rule) == _PORTS]
            table.put_first(chain, jumps)
        table.commit()
