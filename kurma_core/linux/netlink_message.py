"""Messages of netlink(7) and their attributes: what every family of it has in common."""

from __future__ import annotations

import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# linux/netlink.h
HEADER = struct.Struct("=IHHII")
ERROR, DONE = 2, 3
REQUEST, ACK, DUMP = 0x1, 0x4, 0x300
#: Of an answer: what is listed has changed while the kernel wrote it.
INTERRUPTED = 0x10
_ATTRIBUTE = struct.Struct("=HH")
_NUMBER = struct.Struct("=I")
_TYPE_MASK = 0x3FFF
_NESTED = 0x8000


def message(kind: int, flags: int, number: int, body: bytes) -> bytes:
    """One to the kernel. :param number: its answers have it too."""
    return HEADER.pack(HEADER.size + len(body), kind, flags, number, 0) + body


def split(data: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    """Of what was received: begin and end of each message's body, its type, flags and number."""
    at = 0
    while at + HEADER.size <= len(data):
        length, kind, flags, number, _ = HEADER.unpack_from(data, at)
        yield at + HEADER.size, at + length, kind, flags, number
        at += length + 3 & ~3


def each_attribute(body: bytes, at: int = 0) -> Iterator[tuple[int, bytes]]:
    """Number and value of every attribute from ``at`` on, in their order."""
    while at + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, at)
        if length < _ATTRIBUTE.size:
            break
        yield kind & _TYPE_MASK, body[at + _ATTRIBUTE.size : at + length]
        at += length + 3 & ~3


def parse_attributes(body: bytes, at: int = 0) -> dict[int, bytes]:
    """Values by number, of those from ``at`` on."""
    return dict(each_attribute(body, at))


def attribute(kind: int, value: bytes) -> bytes:
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def nest(kind: int, value: bytes) -> bytes:
    """One whose value is attributes."""
    return attribute(kind | _NESTED, value)


def string(kind: int, value: str) -> bytes:
    return attribute(kind, os.fsencode(value) + b"\0")


def integer(kind: int, value: int) -> bytes:
    """Of 32 bits, in the machine's order."""
    return attribute(kind, _NUMBER.pack(value))
