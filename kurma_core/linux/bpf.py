"""Small eBPF programs, assembled by hand: nothing is compiled but comparisons. Needs CAP_BPF on the host."""

from __future__ import annotations

from kurma_core.linux import libc

_PROG_LOAD = 5
_ATTRIBUTES = 128


def instruction(code: int, target: int = 0, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    """One operation as the kernel takes it. Little-endian machines alone are served."""
    return bytes((code, source << 4 | target)) + libc.words(offset, size=2) + libc.words(value, size=4)


def command(number: int, attributes: bytes) -> int:
    """``bpf(2)``. :raises OSError: as the kernel says."""
    block = bytearray(attributes.ljust(_ATTRIBUTES, b"\0"))
    return libc.syscall("bpf", number, libc.buffer(block), len(block))


def load(kind: int, program: bytes, attach: int = 0) -> int:
    """Give the kernel a program; it may be attached later.

    :param kind: ``BPF_PROG_TYPE_…``; ``attach``: ``BPF_…``, where the kind asks for it.
    :returns: its descriptor, which an exec closes.
    :raises OSError: the kernel has no such programs, or we may not load them.
    """
    code, licence = bytearray(program), bytearray(b"Apache-2.0\0")
    attributes = libc.words(kind, len(code) // 8, size=4) + libc.words(libc.address(code), libc.address(licence))
    # Log, kernel version, flags, name and interface stay empty.
    return command(_PROG_LOAD, attributes.ljust(68, b"\0") + libc.words(attach, size=4))
