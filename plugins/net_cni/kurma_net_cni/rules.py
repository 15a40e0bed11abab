"""The packet filter as CNI plugins use it: ``iptables`` and ``ip6tables``, whichever backend is behind them."""

from __future__ import annotations

from kurma_core.errors import NetworkError
from kurma_core.linux.iptables import dropping, parse_tables, target_of
from kurma_core.linux.programs import ProgramTimeout, find_program, run, search_path

#: The two families; each is looked after only where its program is installed.
FAMILIES = ("iptables", "ip6tables")


class Table:
    """One table of one family, as it was when it was read.

    :param chains: the rules (``-A CHAIN …``) by chain.
    """

    def __init__(self, family: str, name: str) -> None:
        self._family = family
        self._name = name
        self.chains = parse_tables(self._run("save", "-t", name)).get(name, {})
        self._changes: list[str] = []

    def references(self, chain: str) -> list[str]:
        """The rules that jump to ``chain``."""
        return [rule for rules in self.chains.values() for rule in rules if target_of(rule) == chain]

    def drop(self, chain: str) -> None:
        """Takes ``chain`` away, and the jumps to it. To be done by :meth:`commit`; no such chain is success."""
        self._changes += dropping(self.chains, chain)

    def delete(self, rule: str) -> None:
        """Takes that rule away, as :attr:`chains` has it. To be done by :meth:`commit`."""
        text = rule.removeprefix("-A ")
        self.chains[text.split(" ", 1)[0]].remove(rule)
        self._changes.append(f"-D {text}")

    def commit(self) -> None:
        """Does everything at once, or nothing.

        :raises NetworkError: somebody else changed the table in between, or the kernel refuses.
        """
        if self._changes:
            text = "\n".join([f"*{self._name}", *self._changes, "COMMIT", ""])
            self._run("restore", "--noflush", "--wait", stdin=text)

    def _run(self, verb: str, *arguments: str, stdin: str = "") -> str:
        program = f"{self._family}-{verb}"
        path = find_program(program)
        if path is None:
            raise NetworkError(f"cannot read packet filter rules: there is no program {program}")
        try:
            finished = run([path, *arguments], stdin=stdin.encode(), environment={"PATH": search_path()})
        except OSError as error:
            raise NetworkError(f"cannot execute {path}: {error.strerror}", errno=error.errno) from error
        except ProgramTimeout:
            raise NetworkError(f"{program} was killed: it took too long") from None
        if finished.status != 0:
            why = finished.stderr.decode(errors="replace").strip().partition("\n")[0]
            raise NetworkError(f"{program} failed on the table {self._name}: {why}")
        return finished.stdout.decode(errors="replace")


def families() -> tuple[str, ...]:
    """Those whose programs are installed; where they are not, no CNI plugin can have used them."""
    return tuple(family for family in FAMILIES if find_program(f"{family}-save"))
