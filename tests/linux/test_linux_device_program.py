"""The program for v2 cgroups, run here by a small machine of its own: what it answers, rule by rule."""

import itertools
import struct

import pytest

from kurma_core.linux import bpf

BLOCK, CHARACTER = 1, 2
MAKE, READ, WRITE = 1, 2, 4


def answer(program, kind, access, major, minor):
    """Runs the program on one question, as the kernel would."""
    steps = [struct.unpack_from("<BBhi", program, at) for at in range(0, len(program), 8)]
    question = struct.pack("<III", access << 16 | kind, major, minor)
    registers = [0] * 11
    at = 0
    while True:
        code, names, offset, value = steps[at]
        target, source = names & 15, names >> 4
        at += 1
        if code == 0x61:
            assert source == 1
            registers[target] = struct.unpack_from("<I", question, offset)[0]
        elif code == 0xBF:
            registers[target] = registers[source]
        elif code == 0xB7:
            registers[target] = value
        elif code == 0x57:
            registers[target] &= value
        elif code == 0x77:
            registers[target] >>= value
        elif code == 0x55:
            at += offset if registers[target] != value else 0
        else:
            assert code == 0x95
            return registers[0]


def allowed(rule, kind, access, major, minor):
    letter, numbers, may = rule.split()
    own_major, own_minor = numbers.split(":")
    return (
        {"b": BLOCK, "c": CHARACTER}[letter] == kind
        and own_major in ("*", str(major))
        and own_minor in ("*", str(minor))
        and not access & ~sum({"m": MAKE, "r": READ, "w": WRITE}[each] for each in may)
    )


@pytest.mark.parametrize(
    "rules",
    [
        [],
        ["c 1:3 rwm"],
        ["c 1:3 rwm", "c 1:5 r", "c 136:* rw", "b 8:1 w"],
        ["c *:* m", "b *:* m", "c 5:2 rwm"],
        ["b *:3 rm"],
    ],
)
def test_it_answers_as_the_rules_say(rules):
    program = bpf.device_program(rules)
    questions = itertools.product((BLOCK, CHARACTER), range(8), (1, 5, 8, 136, 254), (0, 1, 2, 3, 5))
    for question in questions:
        assert answer(program, *question) == any(allowed(rule, *question) for rule in rules), question


@pytest.mark.parametrize("rule", ["", "c", "c 1:3", "x 1:3 rwm", "c 1 rwm", "c 1:3 rwx", "c 1:3  rwm", "c a:b r"])
def test_what_is_no_rule_is_refused(rule):
    with pytest.raises(ValueError, match="not a rule for devices"):
        bpf.device_program([rule])
