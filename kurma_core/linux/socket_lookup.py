"""Connections to one address and port, given to a listening socket that is bound to another port.

A program of the kernel's ``sk_lookup`` kind, attached to one network namespace: it is asked for the socket of each
new connection, before the kernel looks for one. The port itself stays free for whoever wants to bind it, no
connection is tracked for it, and it goes with the descriptor that holds it. Needs Linux 5.17 and CAP_BPF,
CAP_NET_ADMIN on the host.
"""

from __future__ import annotations

import os

from kurma_core.linux import bpf, libc

_MAP_CREATE, _MAP_UPDATE, _LINK_CREATE = 0, 2, 28
_TYPE_SOCKMAP, _TYPE_SK_LOOKUP, _ATTACH_SK_LOOKUP = 15, 30, 36
_TCP, _LOOPBACK = 6, 1
# Fields of struct bpf_sk_lookup.
_PROTOCOL, _LOCAL_ADDRESS, _LOCAL_PORT, _INTERFACE = 12, 40, 60, 64
# Helpers of the kernel's.
_FIND, _RELEASE, _ASSIGN = 1, 86, 124
# Operations: load a word or a long constant, store a word, add, copy, set, jump if equal, if not (32 bits), call.
_LOAD, _LOAD_LONG, _STORE, _ADD, _COPY, _SET = 0x61, 0x18, 0x62, 0x07, 0xBF, 0xB7
_JUMP_EQUAL, _JUMP_NOT, _CALL, _EXIT = 0x15, 0x56, 0x85, 0x95
#: With it a long constant is a map's descriptor.
_MAP = 1
# Registers: the answer, the arguments of a call, two that a call leaves alone, the stack.
_ANSWER, _FIRST, _SECOND, _THIRD, _QUESTION, _SOCKET, _STACK = 0, 1, 2, 3, 6, 7, 10


def assemble(sockets: int, address: bytes, port: int) -> bytes:
    """The program: what comes over loopback for that address and port is the socket's, all else goes its way.

    :param sockets: descriptor of the map whose entry 0 the socket is.
    :param address: IPv4, four bytes.
    """
    make = bpf.instruction
    wanted = (
        (_PROTOCOL, _TCP),
        (_LOCAL_PORT, port),
        (_INTERFACE, _LOOPBACK),
        (_LOCAL_ADDRESS, int.from_bytes(address, "little")),
    )
    give = [
        make(_LOAD_LONG, _FIRST, _MAP, value=sockets),
        make(0),
        make(_COPY, _SECOND, _STACK),
        make(_ADD, _SECOND, value=-4),
        make(_STORE, _STACK, offset=-4, value=0),
        make(_CALL, value=_FIND),
        make(_JUMP_EQUAL, _ANSWER, offset=7, value=0),
        make(_COPY, _SOCKET, _ANSWER),
        make(_COPY, _FIRST, _QUESTION),
        make(_COPY, _SECOND, _SOCKET),
        make(_SET, _THIRD, value=0),
        make(_CALL, value=_ASSIGN),
        make(_COPY, _FIRST, _SOCKET),
        make(_CALL, value=_RELEASE),
    ]
    program = [make(_COPY, _QUESTION, _FIRST)]
    left = 2 * len(wanted)
    for field, value in wanted:
        left -= 2
        program += [
            make(_LOAD, _SECOND, _QUESTION, field),
            make(_JUMP_NOT, _SECOND, offset=left + len(give), value=value),
        ]
    return b"".join([*program, *give, make(_SET, _ANSWER, value=1), make(_EXIT)])


def steer(listener: int, address: bytes, port: int) -> int:
    """Give the listening socket ``listener`` what comes over loopback for ``address`` and ``port``, in the current
    network namespace.

    :param address: IPv4, four bytes.
    :returns: a descriptor; it holds for as long as that is open.
    :raises OSError: this kernel has no such programs, or we may not use them.
    """
    held = []
    try:
        sockets = bpf.command(_MAP_CREATE, libc.words(_TYPE_SOCKMAP, 4, 8, 1, 0, size=4))
        held.append(sockets)
        key, value = bytearray(4), bytearray(libc.words(listener))
        bpf.command(
            _MAP_UPDATE, libc.words(sockets, 0, size=4) + libc.words(libc.address(key), libc.address(value), 0)
        )
        program = bpf.load(_TYPE_SK_LOOKUP, assemble(sockets, address, port), _ATTACH_SK_LOOKUP)
        held.append(program)
        namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        held.append(namespace)
        return bpf.command(_LINK_CREATE, libc.words(program, namespace, _ATTACH_SK_LOOKUP, 0, size=4))
    finally:
        # The link holds the program, and that the map.
        for fd in held:
            os.close(fd)
