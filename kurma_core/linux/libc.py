"""System calls that the standard library does not offer, made through libc's ``syscall()``.

``ctypes`` itself costs some three milliseconds to import, most of it for types that Kurma does not use; the module
below it, ``_ctypes``, costs a tenth of that. Start-up latency is the product, so the few types that are needed are
declared here.
"""

from __future__ import annotations

import _ctypes
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The numbers of a system call on the two machines that are served. Those from 424 on are the same everywhere.
_X86_64 = {
    "seccomp": 317,
    "execve": 59,
    "bpf": 321,
    "rt_sigaction": 13,
    "rt_sigprocmask": 14,
    "clone": 56,
    "setfsuid": 122,
    "setfsgid": 123,
    "madvise": 28,
    "prctl": 157,
    "keyctl": 250,
    "capget": 125,
    "capset": 126,
    "pivot_root": 155,
    "sethostname": 170,
    "mount": 165,
    "renameat2": 316,
    "umount2": 166,
    "unshare": 272,
    "setns": 308,
    "sched_setattr": 314,
    "ioprio_get": 252,
    "ioprio_set": 251,
    "set_mempolicy": 238,
}
_AARCH64 = {
    "seccomp": 277,
    "execve": 221,
    "bpf": 280,
    "rt_sigaction": 134,
    "rt_sigprocmask": 135,
    "clone": 220,
    "setfsuid": 151,
    "setfsgid": 152,
    "madvise": 233,
    "prctl": 167,
    "keyctl": 219,
    "capget": 90,
    "capset": 91,
    "pivot_root": 41,
    "sethostname": 161,
    "mount": 40,
    "renameat2": 276,
    "umount2": 39,
    "unshare": 97,
    "setns": 268,
    "sched_setattr": 274,
    "ioprio_get": 31,
    "ioprio_set": 30,
    "set_mempolicy": 237,
}
_COMMON = {
    "pidfd_send_signal": 424,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_open": 434,
    "clone3": 435,
    "close_range": 436,
    "openat2": 437,
    "pidfd_getfd": 438,
    "mount_setattr": 442,
}

_EINTR = 4


class _Long(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "l"


class _Char(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "c"


class _Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = _Long


def _numbers() -> dict[str, int]:
    machine = os.uname().machine
    if machine == "x86_64":
        return {**_X86_64, **_COMMON}
    if machine in ("aarch64", "arm64"):
        return {**_AARCH64, **_COMMON}
    raise OSError(38, f"no system call numbers are known for the machine {machine!r}")


NUMBERS = _numbers()
_syscall: Any = None


def _function() -> Any:
    """libc's ``syscall``, looked up once."""
    global _syscall
    if _syscall is None:
        _syscall = _Function(_ctypes.dlsym(_ctypes.dlopen(None, os.RTLD_NOW), "syscall"))  # type: ignore[arg-type]
    return _syscall


def syscall(name: str | int, *args: int | bytes | object | None, path: str | bytes | None = None) -> int:
    """Make one system call; repeated when a signal interrupts it.

    :param name: a name of :data:`NUMBERS`, or a number.
    :param args: integers, NUL-terminated strings as :class:`bytes`, buffers of :func:`buffer`, None for NULL.
    :param path: for the error.
    :returns: the call's result.
    :raises OSError: with ``errno`` and, if given, ``filename``.
    """
    number = NUMBERS[name] if isinstance(name, str) else name
    words = [_Long(arg) if isinstance(arg, int) else arg for arg in args]
    words += [_Long(0)] * (6 - len(words))
    function = _function()
    while True:
        result: int = function(_Long(number), *words)
        if result != -1:
            return result
        code = _ctypes.get_errno()
        if code != _EINTR:
            break
    if path is None:
        raise OSError(code, os.strerror(code))
    raise OSError(code, os.strerror(code), path)


def call(name: str, *args: int) -> int | None:
    """Call a function of libc that takes and returns numbers. None: this libc does not have it."""
    try:
        place = _ctypes.dlsym(_ctypes.dlopen(None, os.RTLD_NOW), name)  # type: ignore[arg-type]
    except OSError:
        return None
    result: int = _Function(place)(*[_Long(arg) for arg in args])
    return result


def buffer(data: bytearray) -> object:
    """A pointer to ``data``, which must not be empty, for :func:`syscall`; the kernel may write to it."""
    # A pointer to the first byte: ctypes would make a new class for an array of each length.
    return _ctypes.byref(_Char.from_buffer(data))


def address(data: bytearray) -> int:
    """The address of ``data``, which must not be empty, for a structure that points to it. ``data`` must outlive
    the structure and keep its size."""
    return _ctypes.addressof(_Char.from_buffer(data))


def words(*values: int, size: int = 8) -> bytes:
    """``values`` as unsigned integers of ``size`` bytes in a row, as in most of the kernel's structures."""
    mask = (1 << (8 * size)) - 1
    return b"".join([(value & mask).to_bytes(size, sys.byteorder) for value in values])


def prctl(option: int, *args: int) -> int:
    """``prctl(2)``. :raises OSError: as the kernel says."""
    return syscall("prctl", option, *args)


_M_ARENA_MAX = -8


def one_heap() -> None:
    """Have all threads that begin from here on allocate from one heap, where this libc would give them several.

    For a process that runs Python, whose threads allocate one after the other anyway. Memory that
    is freed in one of several heaps is of no use to the others, and :func:`trim_heap` shortens only the first.
    """
    call("mallopt", _M_ARENA_MAX, 1)


def trim_heap() -> None:
    """Return freed memory to the kernel, if this libc can."""
    call("malloc_trim", 0)
