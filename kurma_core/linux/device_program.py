"""A program that says which devices a v2 cgroup's processes may open or make: what v1's devices controller does.

It is made of that controller's own lines, ``c 1:3 rwm``, by hand: there is nothing to compile but comparisons.
Needs CAP_BPF and CAP_NET_ADMIN on the host.
"""

from __future__ import annotations

import errno
import os

from kurma_core.linux import bpf, libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_PROG_ATTACH = 8
_PROG_DETACH = 9
_PROG_OF_ID = 13
_PROG_QUERY = 16
_TYPE_CGROUP_DEVICE = 15
_ATTACH_DEVICE = 6
# Every program of a cgroup and of those above it must agree.
_ALLOW_MULTI = 2
_ATTRIBUTES = 48
#: As many programs as the kernel lets a cgroup have.
_MOST = 64

_TYPES = {"b": 1, "c": 2}
_ACCESS = {"m": 1, "r": 2, "w": 4}
_EVERY_ACCESS = 7

# Operations of the kernel's eBPF: load a word, and with, shift right, copy, set, jump if not equal, leave.
_LOAD, _AND, _SHIFT, _COPY, _SET, _JUMP, _EXIT = 0x61, 0x57, 0x77, 0xBF, 0xB7, 0x55, 0x95
# Registers: the answer, what is asked for (struct bpf_cgroup_dev_ctx), and what was taken out of that.
_ANSWER, _QUESTION, _TYPE, _WANTED, _MAJOR, _MINOR = range(6)


def assemble(rules: Iterable[str]) -> bytes:
    """The program as the kernel takes it: what a rule names is allowed, all else is not.

    :param rules: ``TYPE MAJOR:MINOR ACCESS`` as in ``devices.allow``; ``*`` for any number.
    :raises ValueError: one is not a rule.
    """
    program = [
        bpf.instruction(_LOAD, _TYPE, _QUESTION, 0),
        bpf.instruction(_COPY, _WANTED, _TYPE),
        bpf.instruction(_AND, _TYPE, value=0xFFFF),
        bpf.instruction(_SHIFT, _WANTED, value=16),
        bpf.instruction(_LOAD, _MAJOR, _QUESTION, 4),
        bpf.instruction(_LOAD, _MINOR, _QUESTION, 8),
    ]
    for rule in rules:
        program += _rule(rule)
    program += [bpf.instruction(_SET, _ANSWER, value=0), bpf.instruction(_EXIT)]
    return b"".join(program)


def _rule(rule: str) -> list[bytes]:
    try:
        kind, numbers, access = rule.split(" ")
        major, minor = [None if number == "*" else int(number) for number in numbers.split(":")]
        allowed = sum([_ACCESS[letter] for letter in set(access)])
        tests = [(_TYPE, _TYPES[kind])]
    except (ValueError, KeyError):
        raise ValueError(f"not a rule for devices: {rule!r}") from None
    if major is not None:
        tests.append((_MAJOR, major))
    if minor is not None:
        tests.append((_MINOR, minor))
    steps = len(tests) + 5  # with those below
    made = []
    for register, value in tests:
        steps -= 1
        made.append(bpf.instruction(_JUMP, register, offset=steps, value=value))
    # What is wanted beyond what is allowed must be nothing.
    made += [
        bpf.instruction(_COPY, _ANSWER, _WANTED),
        bpf.instruction(_AND, _ANSWER, value=_EVERY_ACCESS & ~allowed),
        bpf.instruction(_JUMP, _ANSWER, offset=2, value=0),
        bpf.instruction(_SET, _ANSWER, value=1),
        bpf.instruction(_EXIT),
    ]
    return made


def attach(directory: str, rules: Iterable[str]) -> None:
    """Have the program asked for every device that a process of the v2 cgroup ``directory``, or below it, opens.

    :raises OSError: the kernel has no such programs, or we may not load them.
    """
    program = _asked(bpf.load, _TYPE_CGROUP_DEVICE, assemble(rules))
    try:
        cgroup = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _asked(bpf.command, _PROG_ATTACH, libc.words(cgroup, program, _ATTACH_DEVICE, _ALLOW_MULTI, size=4))
        finally:
            os.close(cgroup)
    finally:
        os.close(program)


def replace(directory: str, rules: Iterable[str] | None) -> None:
    """Have this program asked in place of those of the v2 cgroup itself; at no moment nothing is asked.

    :param rules: None: no program at all.
    :raises OSError: as :func:`attach`.
    """
    cgroup = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        old = _attached(cgroup)
        if rules is not None:
            attach(directory, rules)
        for number in old:
            program = _asked(bpf.command, _PROG_OF_ID, libc.words(number, size=4))
            try:
                _asked(bpf.command, _PROG_DETACH, libc.words(cgroup, program, _ATTACH_DEVICE, size=4))
            finally:
                os.close(program)
    finally:
        os.close(cgroup)


def _attached(cgroup: int) -> list[int]:
    """IDs of the programs for devices that are the cgroup's own."""
    found = bytearray(4 * _MOST)
    head = libc.words(cgroup, _ATTACH_DEVICE, 0, 0, size=4) + libc.words(libc.address(found))
    block = bytearray((head + libc.words(_MOST, size=4)).ljust(_ATTRIBUTES, b"\0"))
    libc.syscall("bpf", _PROG_QUERY, libc.buffer(block), len(block))
    count = int.from_bytes(block[24:28], "little")
    return [int.from_bytes(found[4 * at : 4 * at + 4], "little") for at in range(count)]


def _asked(call: Callable[..., int], *arguments: object) -> int:
    try:
        return call(*arguments)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise OSError(errno.EOPNOTSUPP, "this kernel takes no device programs for cgroups") from None
        raise
