"""The pod's rules in the host's packet filter, as CNI plugins (bridge, ptp, portmap) make them."""

from __future__ import annotations

import os

from kurma_core.linux.iptables import dropping, parse_tables, target_of
from kurma_core.linux.programs import ProgramTimeout, find_program, one_line, run, search_path
from kurma_stager_default.stage1.place import told

#: With a file that is there where the kernel has the family: without, the program fails, and has nothing to tell.
_FAMILIES = (("iptables", "/proc/net/route"), ("ip6tables", "/proc/net/if_inet6"))
#: What the names of plugins' chains begin with.
_CHAINS = "CNI-"
#: Where the plugin portmap has a jump for each pod that ports of the host lead to, and whence it is called.
_PORTS, _ENTRANCES = "CNI-HOSTPORT-DNAT", ("PREROUTING", "OUTPUT")


def sweep(container: str) -> list[str]:
    """The pod's rules, which plugins know by its addresses: where its namespace is gone, or an earlier DEL was
    broken off, they leave them. Its chains are told by the jumps to them, whose comments name it.

    :returns: why anything could not be removed.
    """
    failures: list[str] = []
    for save, restore in _programs():
        chains = parse_tables(_filter([save, "-t", "nat"], failures)).get("nat", {})
        jumps = [rule for rules in chains.values() for rule in rules if container in rule]
        ours = {target_of(rule) for rule in jumps if target_of(rule).startswith(_CHAINS)}
        changes = [change for chain in sorted(ours) for change in dropping(chains, chain)]
        if changes:
            text = "\n".join(["*nat", *changes, "COMMIT", ""])
            _filter([restore, "--noflush", "--wait"], failures, text.encode())
    return failures


def put_first(container: str) -> list[str]:
    """Puts the rules that lead ports of the host to this pod before all others, as rkt does. The plugin portmap
    appends them, and those of a pod that has ended stay until its ``gc``.

    :returns: why that could not be done.
    """
    failures: list[str] = []
    for save, restore in _programs():
        chains = parse_tables(_filter([save, "-t", "nat"], failures)).get("nat", {})
        ours = [rule for rule in chains.get(_PORTS, []) if container in rule]
        if not ours:
            continue
        changes = _moved(_PORTS, chains[_PORTS], ours)
        for chain in _ENTRANCES:
            rules = chains.get(chain, [])
            changes += _moved(chain, rules, [rule for rule in rules if target_of(rule) == _PORTS])
        if changes:
            text = "\n".join(["*nat", *changes, "COMMIT", ""])
            _filter([restore, "--noflush", "--wait"], failures, text.encode())
    return failures


def _moved(chain: str, rules: list[str], first: list[str]) -> list[str]:
    """The changes by which these rules of a chain come first."""
    if rules[: len(first)] == first:
        return []
    texts = [rule.removeprefix(f"-A {chain} ") for rule in first]
    return [f"-D {chain} {text}" for text in texts] + [f"-I {chain} 1 {text}" for text in reversed(texts)]


def _programs() -> list[tuple[str, str]]:
    """What reads and what writes the rules, of each family that there is."""
    found = []
    for family, known in _FAMILIES:
        save, restore = find_program(f"{family}-save"), find_program(f"{family}-restore")
        # Without these programs, no plugin can have made rules.
        if os.path.exists(known) and save is not None and restore is not None:
            found.append((save, restore))
    return found


def _filter(command: list[str], failures: list[str], stdin: bytes = b"") -> str:
    try:
        done = run(command, stdin=stdin, environment={"PATH": search_path()})
    except (OSError, ProgramTimeout) as error:
        failures.append(f"{command[0]}: {told(error) or 'it took too long, and was killed'}")
        return ""
    if done.status != 0:
        failures.append(f"{command[0]}: {one_line(done.stderr)}")
    return done.stdout.decode(errors="replace")
