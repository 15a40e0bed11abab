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


def sweep(container: str) -> list[str]:
    """The pod's rules, which plugins know by its addresses: where its namespace is gone, or an earlier DEL was
    broken off, they leave them. Its chains are told by the jumps to them, whose comments name it.

    :returns: why anything could not be removed.
    """
    failures: list[str] = []
    for family, known in _FAMILIES:
        if not os.path.exists(known):
            continue
        save, restore = find_program(f"{family}-save"), find_program(f"{family}-restore")
        if save is None or restore is None:
            continue  # then no plugin can have used it
        chains = parse_tables(_filter([save, "-t", "nat"], failures)).get("nat", {})
        jumps = [rule for rules in chains.values() for rule in rules if container in rule]
        ours = {target_of(rule) for rule in jumps if target_of(rule).startswith(_CHAINS)}
        changes = [change for chain in sorted(ours) for change in dropping(chains, chain)]
        if changes:
            text = "\n".join(["*nat", *changes, "COMMIT", ""])
            _filter([restore, "--noflush", "--wait"], failures, text.encode())
    return failures


def _filter(command: list[str], failures: list[str], stdin: bytes = b"") -> str:
    try:
        done = run(command, stdin=stdin, environment={"PATH": search_path()})
    except (OSError, ProgramTimeout) as error:
        failures.append(f"{command[0]}: {told(error) or 'it took too long, and was killed'}")
        return ""
    if done.status != 0:
        failures.append(f"{command[0]}: {one_line(done.stderr)}")
    return done.stdout.decode(errors="replace")
