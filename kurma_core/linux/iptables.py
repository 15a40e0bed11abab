"""Reading what ``iptables-save`` and ``ip6tables-save`` print."""

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


def comment_of(rule: str) -> str:
    """A rule's comment, where it has one without blanks."""
    words = rule.split()
    return words[words.index("--comment") + 1].strip('"') if "--comment" in words[:-1] else ""
