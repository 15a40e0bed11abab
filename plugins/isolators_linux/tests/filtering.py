"""The kernel's part, for tests: what a filter of system calls answers to a call, whatever machine it is for."""

from __future__ import annotations

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "i386": 0x40000003, "arm": 0x40000028}
ALLOW, KILL, ERROR = 0x7FFF0000, 0x80000000, 0x00050000
X32 = 0x40000000


def answer(code: bytes, architecture: str, number: int, *arguments: int) -> int:
    """Runs a classic BPF program over one ``struct seccomp_data``; refuses what the kernel's checker refuses."""
    assert code
    assert len(code) % 8 == 0
    assert len(code) <= 8 * 4096
    data = number.to_bytes(4, "little") + ARCHITECTURES[architecture].to_bytes(4, "little") + bytes(8)
    data += b"".join(each.to_bytes(8, "little") for each in (*arguments, *[0] * (6 - len(arguments))))
    accumulator, at = 0, 0
    while True:
        step = code[8 * at : 8 * at + 8]
        operation, if_true, if_false = int.from_bytes(step[:2], "little"), step[2], step[3]
        value = int.from_bytes(step[4:], "little")
        at += 1
        if operation == 0x06:
            return value
        if operation == 0x20:
            assert value % 4 == 0
            assert value < 64
            accumulator = int.from_bytes(data[value : value + 4], "little")
        elif operation == 0x05:
            at += value
        elif operation == 0x54:
            accumulator &= value
        else:
            test = {0x15: accumulator == value, 0x25: accumulator > value, 0x35: accumulator >= value}
            test[0x45] = bool(accumulator & value)
            at += if_true if test[operation] else if_false
