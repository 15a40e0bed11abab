"""Small eBPF programs: the devices that a cgroup may open, and connections that a listening socket is given.

They are assembled by hand: only comparisons are compiled. Needs CAP_BPF and CAP_NET_ADMIN on the host.
"""

from __future__ import annotations

import errno
import os

from kurma_core.linux import libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# Commands of bpf(2).
_MAP_CREATE, _MAP_UPDATE, _PROG_LOAD, _PROG_ATTACH, _PROG_DETACH = 0, 2, 5, 8, 9
_PROG_OF_ID, _PROG_QUERY, _LINK_CREATE = 13, 16, 28
_ATTRIBUTES = 128

# Operations: load a word or a long constant, store a word, add, and with, shift right, copy, set, jump if equal,
# if not equal (64 and 32 bits), call, leave.
_LOAD, _LOAD_LONG, _STORE, _ADD, _AND, _SHIFT, _COPY, _SET = 0x61, 0x18, 0x62, 0x07, 0x57, 0x77, 0xBF, 0xB7
_JUMP_EQUAL, _JUMP, _JUMP_NOT_32, _CALL, _EXIT = 0x15, 0x55, 0x56, 0x85, 0x95
#: The register of a program's return value.
_ANSWER = 0


def instruction(code: int, target: int = 0, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    """One eBPF instruction, for little-endian machines only."""
    return bytes((code, source << 4 | target)) + libc.words(offset, size=2) + libc.words(value, size=4)


def command(number: int, attributes: bytes) -> int:
    """``bpf(2)``. :raises OSError: as the kernel says."""
    block = bytearray(attributes.ljust(_ATTRIBUTES, b"\0"))
    return libc.syscall("bpf", number, libc.buffer(block), len(block))


def load(kind: int, program: bytes, attach: int = 0) -> int:
    """Load a program into the kernel; it may be attached later.

    :param kind: ``BPF_PROG_TYPE_…``; ``attach``: ``BPF_…``, for kinds that need it.
    :returns: its descriptor, close-on-exec.
    :raises OSError: the kernel has no such programs, or we may not load them.
    """
    code, licence = bytearray(program), bytearray(b"Apache-2.0\0")
    attributes = libc.words(kind, len(code) // 8, size=4) + libc.words(libc.address(code), libc.address(licence))
    # Log, kernel version, flags, name and interface stay empty.
    return command(_PROG_LOAD, attributes.ljust(68, b"\0") + libc.words(attach, size=4))


# --- the devices that a cgroup's processes may open --------------------------------------------------------------

_TYPE_CGROUP_DEVICE = 15
_ATTACH_DEVICE = 6
# Every program of a cgroup and of those above it must agree.
_ALLOW_MULTI = 2
_QUERY_ATTRIBUTES = 48
#: Most programs that the kernel allows a cgroup.
_MOST = 64

_TYPES = {"b": 1, "c": 2}
_ACCESS = {"m": 1, "r": 2, "w": 4}
_EVERY_ACCESS = 7

# Registers after the answer: the request (struct bpf_cgroup_dev_ctx), and its parts.
_REQUEST, _TYPE, _WANTED, _MAJOR, _MINOR = range(1, 6)


def device_program(rules: Iterable[str]) -> bytes:
    """Compiles rules of v1's devices controller, such as ``c 1:3 rwm``, for v2. The program denies all other
    access.

    :param rules: ``TYPE MAJOR:MINOR ACCESS`` as in ``devices.allow``; ``*`` for any number.
    :raises ValueError: a rule is malformed.
    """
    program = [
        instruction(_LOAD, _TYPE, _REQUEST, 0),
        instruction(_COPY, _WANTED, _TYPE),
        instruction(_AND, _TYPE, value=0xFFFF),
        instruction(_SHIFT, _WANTED, value=16),
        instruction(_LOAD, _MAJOR, _REQUEST, 4),
        instruction(_LOAD, _MINOR, _REQUEST, 8),
    ]
    for rule in rules:
        program += _rule(rule)
    program += [instruction(_SET, _ANSWER, value=0), instruction(_EXIT)]
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
        made.append(instruction(_JUMP, register, offset=steps, value=value))
    # The requested access must be a subset of the allowed access.
    made += [
        instruction(_COPY, _ANSWER, _WANTED),
        instruction(_AND, _ANSWER, value=_EVERY_ACCESS & ~allowed),
        instruction(_JUMP, _ANSWER, offset=2, value=0),
        instruction(_SET, _ANSWER, value=1),
        instruction(_EXIT),
    ]
    return made


def attach_device_program(directory: str, rules: Iterable[str]) -> None:
    """Attach a device program to the v2 cgroup ``directory``: it limits the processes of it and of cgroups below.

    :raises OSError: the kernel has no such programs, or we may not load them.
    """
    program = _asked(load, _TYPE_CGROUP_DEVICE, device_program(rules))
    try:
        cgroup = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _asked(command, _PROG_ATTACH, libc.words(cgroup, program, _ATTACH_DEVICE, _ALLOW_MULTI, size=4))
        finally:
            os.close(cgroup)
    finally:
        os.close(program)


def replace_device_program(directory: str, rules: Iterable[str] | None) -> None:
    """Replace the v2 cgroup's own device programs by a new one. The new one is attached first, so that access is
    limited at every moment.

    :param rules: None: attach no program.
    :raises OSError: as :func:`attach_device_program`.
    """
    cgroup = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        old = _attached(cgroup)
        if rules is not None:
            attach_device_program(directory, rules)
        for number in old:
            program = _asked(command, _PROG_OF_ID, libc.words(number, size=4))
            try:
                _asked(command, _PROG_DETACH, libc.words(cgroup, program, _ATTACH_DEVICE, size=4))
            finally:
                os.close(program)
    finally:
        os.close(cgroup)


def _attached(cgroup: int) -> list[int]:
    """IDs of the cgroup's own device programs."""
    found = bytearray(4 * _MOST)
    head = libc.words(cgroup, _ATTACH_DEVICE, 0, 0, size=4) + libc.words(libc.address(found))
    block = bytearray((head + libc.words(_MOST, size=4)).ljust(_QUERY_ATTRIBUTES, b"\0"))
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


# --- connections that are steered to a listening socket ----------------------------------------------------------

_TYPE_SOCKMAP, _TYPE_SK_LOOKUP, _ATTACH_SK_LOOKUP = 15, 30, 36
_TCP, _LOOPBACK = 6, 1
# Fields of struct bpf_sk_lookup.
_PROTOCOL, _LOCAL_ADDRESS, _LOCAL_PORT, _INTERFACE = 12, 40, 60, 64
# Helper functions of the kernel.
_FIND, _RELEASE, _ASSIGN = 1, 86, 124
#: Marks a long constant as a map's descriptor.
_MAP = 1
# Registers after the answer: the arguments of a call, two that a call leaves alone, the stack.
_FIRST, _SECOND, _THIRD, _CONTEXT, _SOCKET, _STACK = 1, 2, 3, 6, 7, 10


def socket_lookup_program(sockets: int, address: bytes, port: int) -> bytes:
    """The program: the socket gets loopback connections to that address and port; others are not changed.

    :param sockets: descriptor of the map whose entry 0 the socket is.
    :param address: IPv4, four bytes.
    """
    wanted = (
        (_PROTOCOL, _TCP),
        (_LOCAL_PORT, port),
        (_INTERFACE, _LOOPBACK),
        (_LOCAL_ADDRESS, int.from_bytes(address, "little")),
    )
    give = [
        instruction(_LOAD_LONG, _FIRST, _MAP, value=sockets),
        instruction(0),
        instruction(_COPY, _SECOND, _STACK),
        instruction(_ADD, _SECOND, value=-4),
        instruction(_STORE, _STACK, offset=-4, value=0),
        instruction(_CALL, value=_FIND),
        instruction(_JUMP_EQUAL, _ANSWER, offset=7, value=0),
        instruction(_COPY, _SOCKET, _ANSWER),
        instruction(_COPY, _FIRST, _CONTEXT),
        instruction(_COPY, _SECOND, _SOCKET),
        instruction(_SET, _THIRD, value=0),
        instruction(_CALL, value=_ASSIGN),
        instruction(_COPY, _FIRST, _SOCKET),
        instruction(_CALL, value=_RELEASE),
    ]
    program = [instruction(_COPY, _CONTEXT, _FIRST)]
    left = 2 * len(wanted)
    for field, value in wanted:
        left -= 2
        program += [
            instruction(_LOAD, _SECOND, _CONTEXT, field),
            instruction(_JUMP_NOT_32, _SECOND, offset=left + len(give), value=value),
        ]
    return b"".join([*program, *give, instruction(_SET, _ANSWER, value=1), instruction(_EXIT)])


def steer_connections(listener: int, address: bytes, port: int) -> int:
    """Steer connections over loopback to ``address`` and ``port`` to the socket ``listener``, in the current
    network namespace.

    It uses an ``sk_lookup`` program (Linux 5.17), which the kernel runs before its own search for the socket of a
    new connection. The port itself stays free for other processes to bind, and no connection tracking is needed.

    :param address: IPv4, four bytes.
    :returns: a descriptor; the steering ends when it is closed.
    :raises OSError: this kernel has no such programs, or we may not use them.
    """
    held = []
    try:
        sockets = command(_MAP_CREATE, libc.words(_TYPE_SOCKMAP, 4, 8, 1, 0, size=4))
        held.append(sockets)
        key, value = bytearray(4), bytearray(libc.words(listener))
        command(
            _MAP_UPDATE, libc.words(sockets, 0, size=4) + libc.words(libc.address(key), libc.address(value), 0)
        )
        program = load(_TYPE_SK_LOOKUP, socket_lookup_program(sockets, address, port), _ATTACH_SK_LOOKUP)
        held.append(program)
        namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        held.append(namespace)
        return command(_LINK_CREATE, libc.words(program, namespace, _ATTACH_SK_LOOKUP, 0, size=4))
    finally:
        # The link holds the program, and the program holds the map.
        for fd in held:
            os.close(fd)
