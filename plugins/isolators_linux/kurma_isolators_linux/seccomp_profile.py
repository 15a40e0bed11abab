"""The default system call filter, for apps without one of their own: refuses what containers do not need.

A call that needs a capability is allowed with that capability. Calls that came to Linux after this list fail with
ENOSYS, so that libraries fall back on older ones. So does ``clone3``, because a filter cannot read its flags:
libraries then use ``clone``.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

from kurma_core.errors import IsolatorError
from kurma_core.hookspecs.isolator import Compiled, Power
from kurma_core.linux import capabilities as linux
from kurma_core.models.isolator import IsolatorPlan
from kurma_isolators_linux import seccomp_bpf as program
from kurma_isolators_linux import system_calls

if TYPE_CHECKING:
    from collections.abc import Collection

    from kurma_core.hookspecs.isolator import IsolatorHost

#: Calls that are refused unless the app has one of these capabilities.
GUARDED = {
    ("CAP_SYS_ADMIN",): """
        fanotify_init fsconfig fsmount fsopen fspick listns lookup_dcookie lsm_get_self_attr lsm_list_modules
        lsm_set_self_attr mount mount_setattr move_mount open_tree open_tree_attr pivot_root quotactl quotactl_fd
        setdomainname sethostname setns umount umount2""",
    ("CAP_SYS_ADMIN", "CAP_BPF"): "bpf",
    ("CAP_SYS_ADMIN", "CAP_PERFMON"): "perf_event_open",
    ("CAP_SYS_ADMIN", "CAP_SYSLOG"): "syslog",
    ("CAP_DAC_READ_SEARCH",): "open_by_handle_at",
    ("CAP_SYS_BOOT",): "reboot",
    ("CAP_SYS_CHROOT",): "chroot",
    ("CAP_SYS_MODULE",): "delete_module finit_module init_module",
    ("CAP_SYS_NICE",): "get_mempolicy mbind migrate_pages move_pages set_mempolicy set_mempolicy_home_node",
    ("CAP_SYS_PACCT",): "acct",
    ("CAP_SYS_PTRACE",): "kcmp pidfd_getfd process_madvise userfaultfd",
    ("CAP_SYS_RAWIO",): "ioperm iopl",
    ("CAP_SYS_TIME",): "clock_settime clock_settime64 settimeofday stime",
    ("CAP_SYS_TTY_CONFIG",): "vhangup",
}
#: Calls that are always refused: they act on the host, or are obsolete.
REFUSED = """
    _sysctl add_key afs_syscall create_module get_kernel_syms getpmsg io_uring_enter io_uring_register
    io_uring_setup kexec_file_load kexec_load keyctl nfsservctl putpmsg query_module request_key security swapoff
    swapon sysfs tuxcall uselib ustat vm86 vm86old vserver"""

_ADMIN = "CAP_SYS_ADMIN"
# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET; the bit of NEWTIME has another meaning in clone
_NAMESPACES = 0x7E020000
_NEW_TIME = 0x80
# PER_LINUX, PER_LINUX32, each with UNAME26 or without; and the query of the current personality
_PERSONALITIES = (0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
# AF_ALG, AF_VSOCK: the kernel's ciphers, and connections from a virtual machine to its host
_FAMILIES = (38, 40)
_PACKET, _NETLINK, _NETLINK_AUDIT = 17, 16, 9

_NO = program.error(errno.EPERM)
#: The result of calls that are newer than this list.
MISSING = program.error(errno.ENOSYS)


#: Compiled profiles, by machine and capabilities.
_compiled: dict[tuple[str, frozenset[str]], bytes] = {}
_MOST = 64
_WORDS = ("default", "none", "unconfined")


def refused(capabilities: Collection[str]) -> list[str]:
    """Returns the names of the calls that are refused with any arguments, for an app with these capabilities."""
    names = REFUSED.split()
    for needed, guarded in GUARDED.items():
        if not any(name in capabilities for name in needed):
            names += guarded.split()
    return names


#: Calls that are allowed or refused by their arguments; and ``clone3``, whose arguments a filter cannot read.
BY_ARGUMENTS = ("clone", "clone3", "personality", "socket", "unshare")


def leaves_of(numbers: dict[str, int], capabilities: Collection[str]) -> dict[int, program.Leaf]:
    """Returns the filter's result for each call by number, for an app with these capabilities (``CAP_…``).

    :param numbers: numbers of this machine's calls, by name.
    """
    leaves = dict.fromkeys(numbers.values(), program.ALLOW)
    for name in refused(capabilities):
        if name in numbers:
            leaves[numbers[name]] = _NO
    leaves[numbers["personality"]] = program.if_one_of(0, _PERSONALITIES, program.ALLOW, _NO)
    leaves[numbers["socket"]] = _socket(capabilities)
    if _ADMIN not in capabilities:
        leaves[numbers["clone"]] = program.if_bits(0, _NAMESPACES, _NO, program.ALLOW)
        leaves[numbers["unshare"]] = program.if_bits(0, _NAMESPACES | _NEW_TIME, _NO, program.ALLOW)
        leaves[numbers["clone3"]] = MISSING
    return leaves


def compile_profile(numbers: dict[str, int], capabilities: Collection[str]) -> bytes:
    """Assembles the filter for an app with these capabilities, on this machine (see :func:`leaves_of`)."""
    return program.assemble(machine(), leaves_of(numbers, capabilities), MISSING, program.KILL)


def _socket(capabilities: Collection[str]) -> program.Leaf:
    """Filters ``socket`` by family and protocol.

    With CAP_NET_RAW an app can open raw IP sockets. A packet socket could also forge the link-layer addresses of
    other pods on the same bridge, so it needs CAP_NET_ADMIN besides. The audit log is the host's, so
    CAP_AUDIT_WRITE, which is in the App Container default set, does not give access to it. libaudit takes EINVAL
    for "no audit".
    """
    leaf = program.ALLOW
    if not {"CAP_AUDIT_CONTROL", "CAP_AUDIT_READ"}.intersection(capabilities):
        audit = program.if_one_of(2, (_NETLINK_AUDIT,), program.error(errno.EINVAL), program.ALLOW)
        leaf = program.if_one_of(0, (_NETLINK,), audit, leaf)
    if "CAP_NET_ADMIN" not in capabilities:
        leaf = program.if_one_of(0, (_PACKET,), _NO, leaf)
    return program.if_one_of(0, _FAMILIES, program.error(errno.EAFNOSUPPORT), leaf)


def profile(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """Compiles ``default``, the profile of apps without a filter of their own; ``none``: no filter but the
    stager's of keyrings; ``unconfined``: no filter at all; or the profile of a file."""
    path = _path(name, value)
    if value == "unconfined":
        return Compiled(IsolatorPlan(keyrings=True), note="every system call is allowed, also for keyrings")
    if value == "none":
        return Compiled(IsolatorPlan(), note="every system call is allowed")
    numbers = numbers_here()
    if numbers is None:
        return unknown_machine()
    held = granted(host)
    if path is not None:
        from kurma_isolators_linux import seccomp_file

        app = seccomp_file.App(machine(), numbers, held, host)
        code, note = seccomp_file.compile_file(name, path, app)
        return Compiled(IsolatorPlan(seccomp=code, keyrings=True), note=note)
    # Cached: there are few profiles, and assembling one takes longer than compiling all other isolators of an app.
    key = machine(), held
    found = _compiled.get(key)
    if found is None:
        if len(_compiled) >= _MOST:
            _compiled.clear()
        found = _compiled[key] = compile_profile(numbers, held)
    return Compiled(IsolatorPlan(seccomp=found))


def _path(name: str, value: Any) -> str | None:
    """Reads the path of a file; None: the value is one of the words. :raises IsolatorError: it is neither."""
    if isinstance(value, str) and value in _WORDS:
        return None
    path = value.get("path") if isinstance(value, dict) and len(value) == 1 else None
    if not isinstance(path, str) or not path.startswith("/") or not path.isprintable():
        from kurma_core.schema import describe

        raise IsolatorError(
            f"isolator {name}: expected {', '.join(_WORDS)}, or an object with the path of a file, got "
            f"{describe(value)}",
            hint='for instance {"path": "/etc/kurma/seccomp/web.json"}',
        )
    return path


def powers(name: str, value: Any, scope: str, host: IsolatorHost) -> tuple[Power, ...]:
    """Requires a grant for all values but ``default``, unless the app has no filter by default."""
    path = _path(name, value)
    if value == "default" or unfiltered(host):
        return ()
    return (Power(f"{name}={value if path is None else 'path'}"),)


def unfiltered(host: IsolatorHost) -> bool:
    """Whether an app has no filter by default: it is privileged."""
    return any(some.get("os/linux/privileged") is True for some in (host.siblings, host.pod))


def granted(host: IsolatorHost) -> frozenset[str]:
    """Returns the app's capabilities under its isolators."""
    from kurma_isolators_linux import capabilities

    for name, compiler in capabilities.SETS.items():
        if name in host.siblings:
            return frozenset(compiler(name, host.siblings[name], "app", host).plan.capabilities or ())
    return frozenset(linux.names(capabilities.default_set(host)))


def machine() -> str:
    """Returns the machine's name as in ``uname``."""
    return os.uname().machine


def numbers_here() -> dict[str, int] | None:
    """Returns the numbers of this machine's calls, by name; None: there is no table for the machine."""
    try:
        return system_calls.numbers(machine())
    except LookupError:
        return None


def unknown_machine() -> Compiled:
    return Compiled(IsolatorPlan(), "ignored", f"no table of system calls is there for the machine {machine()}")
