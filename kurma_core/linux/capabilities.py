"""Capabilities: their names, the sets of this process, and dropping those that were not granted.

:func:`apply` leaves a process, and the programs that it execs, with exactly the granted set. Root holds it. A
plain user holds none of it, but is bounded by it, unless it was granted explicitly (then it is ambient).

:param bits: capabilities, as places in :data:`NAMES`.
:param keep: the capabilities that stay, as places in :data:`NAMES`.
"""

from __future__ import annotations

import errno

from kurma_core.linux import libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

#: Names in the kernel's order: a capability's bit is its place in this table.
NAMES = (
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_LINUX_IMMUTABLE",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_PACCT",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_MKNOD",
    "CAP_LEASE",
    "CAP_AUDIT_WRITE",
    "CAP_AUDIT_CONTROL",
    "CAP_SETFCAP",
    "CAP_MAC_OVERRIDE",
    "CAP_MAC_ADMIN",
    "CAP_SYSLOG",
    "CAP_WAKE_ALARM",
    "CAP_BLOCK_SUSPEND",
    "CAP_AUDIT_READ",
    "CAP_PERFMON",
    "CAP_BPF",
    "CAP_CHECKPOINT_RESTORE",
)
#: The bit of a capability, by name.
BITS = {name: bit for bit, name in enumerate(NAMES)}

#: The default of a container.
DEFAULT_SET = frozenset(
    BITS["CAP_" + name]
    for name in (
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FSETID",
        "FOWNER",
        "KILL",
        "MKNOD",
        "NET_RAW",
        "NET_BIND_SERVICE",
        "SETUID",
        "SETGID",
        "SETPCAP",
        "SETFCAP",
        "SYS_CHROOT",
    )
)

_PR_CAPBSET_READ = 23
_PR_CAPBSET_DROP = 24
_PR_SET_KEEPCAPS = 8
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_IS_SET = 1
_PR_CAP_AMBIENT_RAISE = 2
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_VERSION_3 = 0x20080522
#: Most bits of a set, and the number of capabilities that every supported kernel has.
_ROOM, _ALWAYS_KNOWN = 64, 38


def parse(name: str) -> int:
    """The bit of a capability: ``CAP_CHOWN``, ``cap_chown`` and ``chown`` are the same.

    :param name: of the capability.
    :raises ValueError: there is no such capability.
    """
    upper = name.upper()
    bit = BITS.get(upper if upper.startswith("CAP_") else "CAP_" + upper)
    if bit is None:
        raise ValueError(f"no such capability: {name!r}")
    return bit


def names(bits: Iterable[int]) -> list[str]:
    """Names in the kernel's order; ``CAP_41`` and so on for capabilities that this table lacks."""
    return [NAMES[bit] if bit < len(NAMES) else f"CAP_{bit}" for bit in sorted(bits)]


def last_cap() -> int:
    """The highest bit that the running kernel knows."""
    return max(bit for bit, _ in _each(_PR_CAPBSET_READ))


def _each(option: int, *before: int, leave: frozenset[int] = frozenset()) -> Iterator[tuple[int, int]]:
    """Call ``prctl`` for each capability that the kernel knows.

    The kernel answers ``EINVAL`` after its last capability. ``/proc`` is not read, since in an app's root it
    cannot be trusted.

    :param before: the arguments before the bit. :param leave: bits for which no call is made.
    :returns: each bit, and what the call returned.
    :raises OSError: a call failed for another reason.
    """
    for bit in range(_ROOM):
        if bit in leave:
            continue
        try:
            answer = libc.prctl(option, *before, bit, *[0] * (3 - len(before)))
        except OSError as error:
            if error.errno == errno.EINVAL and bit >= _ALWAYS_KNOWN:
                return
            raise
        yield bit, answer


def mask(bits: Iterable[int]) -> int:
    """A set of bits as one number, as ``/proc/PID/status`` shows it."""
    result = 0
    for bit in bits:
        result |= 1 << bit
    return result


def bits(mask: int) -> frozenset[int]:
    """The inverse of :func:`mask`."""
    return frozenset(bit for bit in range(mask.bit_length()) if mask >> bit & 1)


def get() -> tuple[frozenset[int], frozenset[int], frozenset[int]]:
    """This thread's effective, permitted and inheritable sets."""
    data = bytearray(24)
    libc.syscall("capget", libc.words(_VERSION_3, 0, size=4), libc.buffer(data))
    halves = [int.from_bytes(data[at : at + 4], "little") for at in range(0, 24, 4)]
    effective, permitted, inheritable = (bits(halves[at] | halves[at + 3] << 32) for at in range(3))
    return effective, permitted, inheritable


def set_(effective: frozenset[int], permitted: frozenset[int], inheritable: frozenset[int]) -> None:
    """Set this thread's sets: effective, permitted and inheritable. :raises PermissionError: a set would gain a
    capability that the thread does not hold.
    """
    masks = [mask(effective), mask(permitted), mask(inheritable)]
    low = [value & 0xFFFFFFFF for value in masks]
    high = [value >> 32 for value in masks]
    libc.syscall("capset", libc.words(_VERSION_3, 0, size=4), libc.words(*low, *high, size=4))


def bounding() -> frozenset[int]:
    """This thread's bounding set."""
    return frozenset(bit for bit, held in _each(_PR_CAPBSET_READ) if held)


def drop_bounding(keep: frozenset[int]) -> None:
    """Take everything but ``keep`` out of the bounding set, for good. Needs CAP_SETPCAP."""
    for _ in _each(_PR_CAPBSET_DROP, leave=keep):
        pass


def ambient() -> frozenset[int]:
    """This thread's ambient set."""
    return frozenset(bit for bit, held in _each(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_IS_SET) if held)


def set_ambient(keep: frozenset[int]) -> None:
    """Make the ambient set exactly ``keep``, which must be permitted and inheritable already."""
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    for bit in sorted(keep):
        libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, bit, 0, 0)


def apply(
    keep: frozenset[int],
    uid: int,
    *,
    granted: frozenset[int] = frozenset(),
    until_exec: frozenset[int] = frozenset(),
    become: Callable[[], object] | None = None,
) -> None:
    """Reduce the capabilities of this process and of the programs that it executes to ``keep``, and change to the
    app's user.

    Runs as root with CAP_SETPCAP, and CAP_SETUID and CAP_SETGID for ``become``. Capabilities that this process
    does not hold itself are left out of ``keep``.

    :param uid: the user that ``become`` changes to.
    :param granted: those of ``keep`` that were granted explicitly, so that a user other than root holds them, also
        after exec; the others only limit the capabilities that set-user-ID programs may gain.
    :param until_exec: also permitted until exec: neither in the bounding nor in the ambient set. They are not
        effective before :func:`use_all`, so that no path is resolved with them.
    :param become: calls ``setgroups``, ``setresgid``, ``setresuid``, while the process may still do so.
    """
    _, permitted, _ = get()
    held = keep & permitted
    drop_bounding(keep)
    plain = uid != 0
    own = held & granted
    more = until_exec & permitted
    if plain and (own or more):
        # The kernel empties the permitted set at the change from user 0 otherwise.
        libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
    if become is not None:
        become()
    none: frozenset[int] = frozenset()
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    if not plain:
        # At exec, root regains its bounding set. An inheritable set would only add to files with inheritable sets.
        set_(held, held | more, none)
    elif own:
        set_(own, own | more, own)
        set_ambient(own)
        libc.prctl(_PR_SET_KEEPCAPS, 0, 0, 0, 0)
    else:
        set_(none, more, none)


def use_all() -> None:
    """Make all permitted capabilities effective."""
    _, permitted, inheritable = get()
    set_(permitted, permitted, inheritable)
