"""Compiles the system call filters ``os/linux/seccomp-retain-set`` and ``os/linux/seccomp-remove-set``.

App Container Executor (0.8.11), Linux Isolators: a call that is not allowed ends the app with SIGSYS, or fails
with ``errno`` where the isolator names one. The stager installs the filter right before it executes the app's
program.

A set may contain rkt's wildcards. ``@docker/…`` and ``@rkt/…`` are the same lists, as they are in rkt. They follow
current Docker and not the Docker of rkt's time: current programs do not start with the old lists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kurma_core.errors import IsolatorError
from kurma_core.hookspecs.isolator import Compiled, Power
from kurma_core.models.isolator import IsolatorPlan
from kurma_core.schema import describe, nearest
from kurma_isolators_linux import seccomp_bpf as program
from kurma_isolators_linux import seccomp_profile, system_calls

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from kurma_core.hookspecs.isolator import IsolatorHost

RETAIN = "os/linux/seccomp-retain-set"
REMOVE = "os/linux/seccomp-remove-set"
#: Calls that are always allowed: to execute the app's program, to return from a signal handler, to exit.
LIFE = ("execve", "exit", "exit_group", "restart_syscall", "rt_sigreturn")
_ALL, _EMPTY = "@appc.io/all", "@appc.io/empty"


def retain_set(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """Compiles a retain set: only these calls are allowed. The default profile's checks of arguments apply, too.
    With ``@appc.io/all`` there is no filter."""
    names, refusal = _read(name, value)
    if _ALL in names:
        return Compiled(IsolatorPlan(), note="every system call is allowed")
    numbers = seccomp_profile.numbers_here()
    if numbers is None:
        return seccomp_profile.unknown_machine()
    held = seccomp_profile.granted(host)
    allowed, note = _resolve(name, names - {_EMPTY}, numbers, held)
    added = [call for call in LIFE if call not in allowed]
    leaves = {numbers[call]: program.ALLOW for call in (*allowed, *added) if call in numbers}
    if not seccomp_profile.unfiltered(host):
        usual = seccomp_profile.leaves_of(numbers, held)
        by_arguments = [numbers[call] for call in seccomp_profile.BY_ARGUMENTS if call in allowed]
        leaves.update({number: usual[number] for number in by_arguments})
    kept = f"kept besides: {', '.join(added)}" if added else ""
    filtered = program.assemble(seccomp_profile.machine(), leaves, refusal, refusal)
    return Compiled(IsolatorPlan(seccomp=filtered), note="; ".join([text for text in (kept, note) if text]))


def powers(name: str, value: Any, scope: str, host: IsolatorHost) -> tuple[Power, ...]:
    """Requires a grant for each word of a retain set that allows a call which the default profile refuses."""
    names, _ = _read(name, value)
    numbers = seccomp_profile.numbers_here()
    if seccomp_profile.unfiltered(host):
        return ()
    if _ALL in names:
        return (Power(f"{name}={_ALL}"),)
    if numbers is None:
        return tuple(Power(f"{name}={word}") for word in sorted(names - {_EMPTY}))
    held = seccomp_profile.granted(host)
    more = frozenset(seccomp_profile.refused(held)) & numbers.keys()
    found = {word: _resolve(name, frozenset([word]), numbers, held)[0] for word in sorted(names - {_EMPTY})}
    return tuple(Power(f"{name}={word}") for word, allowed in found.items() if allowed & more)


def remove_set(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """Compiles a remove set: these calls are refused besides those of the default profile. With ``@appc.io/empty``
    the filter is the default profile."""
    names, refusal = _read(name, value)
    if _EMPTY in names:
        return seccomp_profile.profile("kurma.io/seccomp-profile", "default", scope, host)
    numbers = seccomp_profile.numbers_here()
    if numbers is None:
        return seccomp_profile.unknown_machine()
    held = seccomp_profile.granted(host)
    removed, note = _resolve(name, names, numbers, held)
    if "execve" in removed:
        raise IsolatorError(
            f"isolator {name}: without execve no program of the app can be executed",
            hint=f"leave out {_ALL if _ALL in names else 'execve'}",
        )
    if seccomp_profile.unfiltered(host):
        leaves, unknown = dict.fromkeys(numbers.values(), program.ALLOW), program.ALLOW
    else:
        leaves, unknown = seccomp_profile.leaves_of(numbers, held), seccomp_profile.MISSING
    leaves.update({numbers[call]: refusal for call in removed if call in numbers})
    filtered = program.assemble(seccomp_profile.machine(), leaves, unknown, refusal)
    return Compiled(IsolatorPlan(seccomp=filtered), note=note)


def _read(name: str, value: Any) -> tuple[frozenset[str], program.Leaf]:
    """Reads the names, and the result of a call that is not allowed."""
    expected = f'isolator {name}: expected {{"set": [calls…], "errno": NAME}}'
    if not isinstance(value, dict) or not isinstance(value.get("set"), list):
        raise IsolatorError(f"{expected}, got {describe(value)}")
    unknown = value.keys() - {"set", "errno"}
    if unknown:
        raise IsolatorError(f"{expected}, got {describe(min(unknown))} besides")
    for each in value["set"]:
        if not isinstance(each, str) or not each:
            raise IsolatorError(f"isolator {name}: expected names of system calls, got {describe(each)}")
    if not value["set"]:
        raise IsolatorError(f"isolator {name}: its set is empty", hint=f"write {_EMPTY} if that is meant")
    return frozenset(value["set"]), _refusal(name, value.get("errno"))


def _refusal(name: str, code: Any) -> program.Leaf:
    if code is None or code == "":
        return program.KILL
    import errno

    number = getattr(errno, code, None) if isinstance(code, str) and code.isupper() else None
    if not isinstance(number, int):
        hint = None
        if isinstance(code, str):
            hint = _nearest(code.upper(), errno.errorcode.values())
        raise IsolatorError(f"isolator {name}: there is no errno {describe(code)}", hint=hint)
    return program.error(number)


def _resolve(
    name: str, names: frozenset[str], numbers: Mapping[str, int], held: frozenset[str]
) -> tuple[frozenset[str], str]:
    """Expands names and wildcards to calls, and notes calls that this machine does not have.

    :param held: the app's capabilities.
    :raises IsolatorError: no machine has a call of that name.
    """
    found = {each for each in names if each in numbers}
    absent = []
    for each in sorted(names - found - {_ALL, _EMPTY}):
        if each.startswith("@"):
            found |= _group(name, each, numbers, held)
        elif each in system_calls.elsewhere(seccomp_profile.machine()):
            absent.append(each)
        else:
            hint = _nearest(each, [*numbers, *system_calls.elsewhere(seccomp_profile.machine())])
            raise IsolatorError(f"isolator {name}: there is no system call {describe(each)}", hint=hint)
    if _ALL in names:
        found |= numbers.keys()
    return frozenset(found), f"not on this machine: {', '.join(absent)}" if absent else ""


def _group(name: str, wildcard: str, numbers: Mapping[str, int], held: frozenset[str]) -> frozenset[str]:
    known = wildcards()
    if wildcard not in known:
        raise IsolatorError(
            f"isolator {name}: there is no set of system calls {describe(wildcard)}",
            hint=_nearest(wildcard, [_ALL, _EMPTY, *known]) or f"there are {', '.join([_ALL, _EMPTY, *known])}",
        )
    return calls_of(wildcard, numbers.keys(), held)


def _nearest(word: str, known: Any) -> str | None:
    found = nearest(word, known)
    return f"did you mean {found}?" if found else None


# As systemd groups them (systemd.exec, SystemCallFilter=).
_CLOCK = "adjtimex clock_adjtime clock_adjtime64 clock_settime clock_settime64 settimeofday stime"
_RAW_IO = "ioperm iopl pciconfig_iobase pciconfig_read pciconfig_write s390_pci_mmio_read s390_pci_mmio_write"
_SYSTEMD = {
    "clock": _CLOCK,
    "raw-io": _RAW_IO,
    "mount": """
        chroot fsconfig fsmount fsopen fspick mount mount_setattr move_mount open_tree open_tree_attr pivot_root
        umount umount2""",
    "network-io": """
        accept accept4 bind connect getpeername getsockname getsockopt listen recv recvfrom recvmmsg
        recvmmsg_time64 recvmsg send sendmmsg sendmsg sendto setsockopt shutdown socket socketcall socketpair""",
    "io-event": """
        _newselect epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait
        epoll_wait_old eventfd eventfd2 poll ppoll ppoll_time64 pselect6 pselect6_time64 select""",
    "obsolete": """
        _sysctl afs_syscall bdflush break create_module ftime get_kernel_syms getpmsg gtty idle lock mpx prof
        profil putpmsg query_module security sgetmask ssetmask stime stty sysfs tuxcall ulimit uselib ustat
        vserver""",
    "process": """
        capget clone clone3 execveat fork getrusage kill pidfd_open pidfd_send_signal prctl rt_sigqueueinfo
        rt_tgsigqueueinfo setns swapcontext tgkill times tkill unshare vfork wait4 waitid waitpid""",
    "privileged": f"""
        {_CLOCK} {_RAW_IO} _sysctl acct bpf capset chown chown32 chroot delete_module fanotify_init fchown fchown32
        fchownat finit_module init_module kexec_file_load kexec_load lchown lchown32 nfsservctl open_by_handle_at
        pivot_root quotactl quotactl_fd reboot setdomainname setfsuid setfsuid32 setgroups setgroups32 sethostname
        setresuid setresuid32 setreuid setreuid32 setuid setuid32 swapoff swapon vhangup""",
    "default-whitelist": """
        arch_prctl brk cacheflush clock_getres clock_getres_time64 clock_gettime clock_gettime64 clock_nanosleep
        clock_nanosleep_time64 execve exit exit_group futex futex_time64 futex_waitv get_robust_list
        get_thread_area getegid getegid32 geteuid geteuid32 getgid getgid32 getgroups getgroups32 getpgid getpgrp
        getpid getppid getrandom getresgid getresgid32 getresuid getresuid32 getrlimit getsid gettid gettimeofday
        getuid getuid32 membarrier mmap mmap2 mprotect munmap nanosleep pause prlimit64 restart_syscall
        riscv_flush_icache riscv_hwprobe rseq rt_sigreturn sched_getaffinity sched_yield set_robust_list
        set_thread_area set_tid_address set_tls sigreturn time ugetrlimit""",
}


def wildcards() -> list[str]:
    """Returns every wildcard that names calls."""
    return [
        *[f"@{whose}/default-{kind}" for whose in ("docker", "rkt") for kind in ("blacklist", "whitelist")],
        *[f"@systemd/{name}" for name in sorted(_SYSTEMD)],
    ]


def calls_of(wildcard: str, known: Collection[str], held: Collection[str]) -> frozenset[str]:
    """Expands a wildcard of :func:`wildcards`.

    :param known: every call of this machine.
    :param held: the app's capabilities, on which Docker's list depends.
    """
    whose, _, name = wildcard.partition("/")
    if whose == "@systemd":
        return frozenset(_SYSTEMD[name].split())
    refused = frozenset([*seccomp_profile.refused(held), "unshare"])
    return refused if name == "default-blacklist" else frozenset(known) - refused
