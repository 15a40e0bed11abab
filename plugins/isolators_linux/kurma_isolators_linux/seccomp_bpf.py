"""Assembles system call filters as classic BPF programs for the kernel (``struct sock_filter``).

A program checks the architecture, then finds the call's number by binary search. Calls of another architecture
that the processor could execute (32-bit, x32) never reach a table of numbers that was made for this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.value import frozen
from kurma_isolators_linux.system_calls import X32_ALONE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

#: Instructions that end with the filter's result for a call.
Leaf = tuple[int, ...]

# Operations: load a word; jump always, if equal, if more, if at least, if a bit is set; and with; answer.
_LOAD, _JUMP, _EQUAL, _MORE, _AT_LEAST, _ANY_BIT, _ANSWER = 0x20, 0x05, 0x15, 0x25, 0x35, 0x45, 0x06
_AND = 0x54
# struct seccomp_data: the call's number, the architecture, the arguments, each of two words, the lower one first
_CALL, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "arm64": 0xC00000B7}
_X32 = 0x40000000
# The number that a tracer sets to skip a call.
_NO_CALL = 0xFFFFFFFF
_FARTHEST = 255


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> int:
    """One instruction, as a number of 64 bits; both architectures store the lowest byte first."""
    return code | if_true << 16 | if_false << 24 | value << 32


ALLOW: Leaf = (_step(_ANSWER, 0x7FFF0000),)
#: The process dies of SIGSYS.
KILL: Leaf = (_step(_ANSWER, 0x80000000),)


def error(number: int) -> Leaf:
    """Makes the call fail with that ``errno``; the kernel does not execute it."""
    return (_step(_ANSWER, 0x00050000 | number),)


def if_bits(argument: int, bits: int, yes: Leaf, no: Leaf) -> Leaf:
    """Tests whether any of these bits is set in the lower half of an argument, counted from 0."""
    return (_step(_LOAD, _ARGUMENTS + 8 * argument), _step(_ANY_BIT, bits, 0, len(yes)), *yes, *no)


def if_one_of(argument: int, values: Collection[int], yes: Leaf, no: Leaf) -> Leaf:
    """Tests whether the lower half of an argument, counted from 0, is one of a few values."""
    steps = [_step(_LOAD, _ARGUMENTS + 8 * argument)]
    steps += [_step(_EQUAL, value, len(values) - at) for at, value in enumerate(values)]
    return (*steps, _step(_JUMP, len(yes)), *yes, *no)


def result(answer: int) -> Leaf:
    """Ends with this result of the kernel's (``SECCOMP_RET_…``), including its lower 16 bits."""
    return (_step(_ANSWER, answer),)


#: How an argument of 64 bits is compared, by the names of libseccomp.
COMPARISONS = (
    *("SCMP_CMP_NE", "SCMP_CMP_LT", "SCMP_CMP_LE", "SCMP_CMP_EQ", "SCMP_CMP_GE", "SCMP_CMP_GT"),
    "SCMP_CMP_MASKED_EQ",
)


@frozen
class Condition:
    """A comparison of one argument.

    :param argument: counted from 0. :param comparison: one of :data:`COMPARISONS`.
    :param value: the number that the argument is compared with; for ``SCMP_CMP_MASKED_EQ`` the mask.
    :param second: for ``SCMP_CMP_MASKED_EQ``: the number that the masked argument is compared with.
    """

    argument: int
    comparison: str
    value: int
    second: int = 0


def first_match(rules: Sequence[tuple[Sequence[Condition], int]], otherwise: int | Leaf) -> Leaf:
    """Tests rules in their order. :param rules: conditions that must all hold, and the result then.

    :param otherwise: the result if no rule matches.
    """
    steps: list[int] = []
    for conditions, answer in rules:
        tests: list[tuple[int, int, int, int]] = []
        for condition in conditions:
            tests += _compare(condition)
        # A failed condition jumps over the rest of its rule, and over the rule's answer.
        for at, (code, value, if_true, if_false) in enumerate(tests):
            left = len(tests) - at
            steps.append(_step(code, value, left if if_true < 0 else if_true, left if if_false < 0 else if_false))
        steps.append(_step(_ANSWER, answer))
    return (*steps, *(result(otherwise) if isinstance(otherwise, int) else otherwise))


def _compare(condition: Condition) -> list[tuple[int, int, int, int]]:
    """Returns steps that go on after the last one if the condition holds, and jump to -1 if not."""
    low = _ARGUMENTS + 8 * condition.argument
    load_high, load_low = (_LOAD, low + 4, 0, 0), (_LOAD, low, 0, 0)
    high, least = condition.value >> 32, condition.value & 0xFFFFFFFF
    kind = condition.comparison.removeprefix("SCMP_CMP_")
    if kind == "MASKED_EQ":
        wanted, lower = condition.second >> 32, condition.second & 0xFFFFFFFF
        masked_high = [load_high, (_AND, high, 0, 0), (_EQUAL, wanted, 0, -1)]
        return [*masked_high, load_low, (_AND, least, 0, 0), (_EQUAL, lower, 0, -1)]
    if kind == "EQ":
        return [load_high, (_EQUAL, high, 0, -1), load_low, (_EQUAL, least, 0, -1)]
    if kind == "NE":
        return [load_high, (_EQUAL, high, 0, 2), load_low, (_EQUAL, least, -1, 0)]
    if kind in ("GT", "GE"):
        test = _MORE if kind == "GT" else _AT_LEAST
        return [load_high, (_MORE, high, 3, 0), (_EQUAL, high, 0, -1), load_low, (test, least, 0, -1)]
    test = _AT_LEAST if kind == "LT" else _MORE
    return [load_high, (_MORE, high, -1, 0), (_EQUAL, high, 0, 2), load_low, (test, least, -1, 0)]


def assemble(machine: str, leaves: Mapping[int, Leaf], unknown: Leaf, foreign: Leaf) -> bytes:
    """Assembles the program.

    :param machine: name of the machine, as in ``uname``.
    :param leaves: the result for each call, by number.
    :param unknown: the result for calls that are not in ``leaves``.
    :param foreign: the result for calls of another architecture.
    :raises LookupError: the machine is unknown.
    """
    ranges: list[tuple[int, Leaf]] = []

    def begin(number: int, leaf: Leaf) -> None:
        if not ranges or ranges[-1][1] != leaf:
            ranges.append((number, leaf))

    after = 0
    for number in sorted(leaves):
        if number > after:
            begin(after, unknown)
        begin(number, leaves[number])
        after = number + 1
    begin(after, unknown)
    if machine == "x86_64":
        begin(X32_ALONE.start, foreign)
        begin(X32_ALONE.stop, unknown)
        begin(_X32, foreign)
        begin(_NO_CALL, unknown)
    start = (_step(_LOAD, _ARCHITECTURE), _step(_EQUAL, _ARCHITECTURES[machine], len(foreign)), *foreign)
    return b"".join([step.to_bytes(8, "little") for step in (*start, _step(_LOAD, _CALL), *_halve(ranges))])


def _halve(ranges: list[tuple[int, Leaf]]) -> Leaf:
    """Assembles the binary search. :param ranges: the first number of each range, ascending, and its result."""
    if len(ranges) == 1:
        return ranges[0][1]
    middle = len(ranges) // 2
    low, high = _halve(ranges[:middle]), _halve(ranges[middle:])
    first = ranges[middle][0]
    if len(low) <= _FARTHEST:
        return (_step(_AT_LEAST, first, len(low)), *low, *high)
    return (_step(_AT_LEAST, first, 0, 1), _step(_JUMP, len(low)), *low, *high)
