"""What ``iptables-save`` and ``ip6tables-save`` print, and what their ``-restore`` reads."""

from __future__ import annotations

#: Rules (``-A CHAIN …``) by table and chain.
Tables = dict[str, dict[str, list[str]]]


def parse_tables(text: str) -> Tables:
    """All that a program has printed: chains without rules are there too, what only counts is not."""
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


def dropping(chains: dict[str, list[str]], chain: str) -> list[str]:
    """The changes that take ``chain`` away, and the jumps to it; ``chains`` is what is left then.

    A chain that was read as empty is not flushed: if somebody has put a rule into it since, the change fails.
    """
    rules = chains.pop(chain, None)
    if rules is None:
        return []
    changes = [f"-F {chain}"] if rules else []
    for holder, others in chains.items():
        changes += [f"-D {rule.removeprefix('-A ')}" for rule in others if target_of(rule) == chain]
        chains[holder] = [rule for rule in others if target_of(rule) != chain]
    return [*changes, f"-X {chain}"]


def comment_of(rule: str) -> str:
    """A rule's comment, where it has one without blanks."""
    words = rule.split()
    return words[words.index("--comment") + 1].strip('"') if "--comment" in words[:-1] else ""
