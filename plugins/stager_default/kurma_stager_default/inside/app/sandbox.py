"""Confines this process by seccomp(2) filters of system calls and by Landlock domains."""

from __future__ import annotations

import errno
import os

from kurma_core.linux import libc

# --- filters of system calls -------------------------------------------------------------------------------------
#
# A filter is a classic BPF program: an array of the kernel's struct sock_filter, as libseccomp exports it.

_SET_MODE_FILTER = 1
_GET_ACTION_AVAILABLE = 2
# Before Linux 5.16, a filter without this flag also enables mitigations of speculative execution, which are slow.
_SPECULATION_ALLOWED = 4
_SIZE = 8
_LONGEST = 4096

# struct seccomp_data: the number of the call, the architecture it was made in
_CALL, _ARCHITECTURE = 0, 4
_X32 = 0x40000000
# Operations: load a word, and with, jump if equal, jump if at least, answer.
_LOAD, _AND, _EQUAL, _AT_LEAST, _ANSWER = 0x20, 0x54, 0x15, 0x35, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_EPERM = 1

# add_key, request_key and keyctl are neighbours everywhere: the first one's number, by architecture.
_KEYS = {
    "x86_64": {0xC000003E: 248, 0x40000003: 286},
    "aarch64": {0xC00000B7: 217, 0x40000028: 309},
}


def filters_usable() -> bool:
    """Whether the running kernel has filters."""
    try:
        libc.syscall("seccomp", _GET_ACTION_AVAILABLE, 0, libc.words(_ALLOW, size=4))
    except OSError:
        return False
    return True


class Filter:
    """A prepared filter. :meth:`put_on` allocates and frees no memory, so that it needs no other system calls."""

    __slots__ = ("_code", "_description")

    def __init__(self, program: bytes) -> None:
        """:raises OSError: ``EINVAL``: the program is malformed."""
        if not program or len(program) % _SIZE or len(program) // _SIZE > _LONGEST:
            raise OSError(22, f"{len(program)} bytes are no program of 1 to {_LONGEST} instructions")
        self._code = bytearray(program)
        # struct sock_fprog: the length, padding, the address
        self._description = libc.words(len(program) // _SIZE, libc.address(self._code))

    def put_on(self) -> None:
        """Puts the filter on this process, for good. Needs CAP_SYS_ADMIN or ``no_new_privs``.

        :raises OSError: ``EINVAL``: the program is malformed; ``ENOSYS``: the kernel has no filters.
        """
        libc.syscall("seccomp", _SET_MODE_FILTER, _SPECULATION_ALLOWED, self._description)


def install(program: bytes) -> None:
    """Make a :class:`Filter` and put it on. :raises OSError: as those do."""
    Filter(program).put_on()


def instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """One ``struct sock_filter``."""
    return libc.words(code, size=2) + bytes((if_true, if_false)) + libc.words(value, size=4)


def refuse_keys() -> bytes:
    """A program that refuses the keyring system calls with ``EPERM``, and allows all others.

    The kernel assigns keyrings by user ID: without a user namespace, root in an app has those of the host's root.
    """
    parts = [instruction(_LOAD, _ARCHITECTURE)]
    for architecture, first in _KEYS.get(os.uname().machine, {}).items():
        parts += [
            instruction(_EQUAL, architecture, 0, 6),
            instruction(_LOAD, _CALL),
            instruction(_AND, 0xFFFFFFFF & ~_X32),
            instruction(_AT_LEAST, first, 0, 2),
            instruction(_AT_LEAST, first + 3, 1, 0),
            instruction(_ANSWER, _ERROR | _EPERM),
            instruction(_ANSWER, _ALLOW),
        ]
    return b"".join([*parts, instruction(_ANSWER, _ALLOW)])


# --- Landlock domains --------------------------------------------------------------------------------------------
#
# A process in a domain may trace only processes of its own domain and of domains below it; so it can read the
# root, memory, environment or descriptors of no others through /proc. Nothing else shall be restricted here, so
# the right that the domain handles is granted again beneath "/". A process in a domain may not mount, either,
# which does not matter without CAP_SYS_ADMIN.

_CREATE_RULESET = 444
_ADD_RULE = 445
_RESTRICT_SELF = 446
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1
# Renames and links across directories: every domain forbids them unless it grants them, so handle this right only.
_ACCESS_FS_REFER = 1 << 13
_FIRST_ABI_WITH_REFER = 2


def landlock_abi() -> int:
    """The version of Landlock that the running kernel offers; 0: none; -1: the kernel has it, and its command line
    leaves it off."""
    try:
        return libc.syscall(_CREATE_RULESET, None, 0, _CREATE_RULESET_VERSION)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return -1
        if error.errno == errno.ENOSYS:
            return 0
        raise


def landlock_usable() -> bool:
    """Whether :func:`enter_landlock_domain` works. The first version always forbids renames across directories."""
    return landlock_abi() >= _FIRST_ABI_WITH_REFER


def enter_landlock_domain() -> None:
    """Put this process and its later children into a new domain.

    Runs with CAP_SYS_ADMIN or under ``no_new_privs``, after the last mount and the change of root.

    :raises OSError: ``ENOSYS`` or ``EOPNOTSUPP`` where the kernel has no (sufficient) Landlock.
    """
    if not landlock_usable():
        raise OSError(errno.EOPNOTSUPP, "this kernel has no Landlock that allows renames across directories")
    attributes = libc.words(_ACCESS_FS_REFER)
    ruleset = libc.syscall(_CREATE_RULESET, attributes, len(attributes), 0)
    try:
        root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # struct landlock_path_beneath_attr is packed: a 64-bit mask and a 32-bit descriptor
            rule = libc.words(_ACCESS_FS_REFER) + libc.words(root, size=4)
            libc.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0)
        finally:
            os.close(root)
        libc.syscall(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
