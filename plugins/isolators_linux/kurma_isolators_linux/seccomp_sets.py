"""What one word in a seccomp isolator's set stands for: rkt's wildcards, by the names that rkt gives them.

Docker's and rkt's lists of calls (``@docker/…`` and ``@rkt/…`` are the same, as they are in rkt) follow what
Docker allows now, not what it allowed when rkt was written: no program of today starts with those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_isolators_linux import seccomp_profile

if TYPE_CHECKING:
    from collections.abc import Collection

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
    """Every wildcard that names calls."""
    return [
        *[f"@{whose}/default-{kind}" for whose in ("docker", "rkt") for kind in ("blacklist", "whitelist")],
        *[f"@systemd/{name}" for name in sorted(_SYSTEMD)],
    ]


def calls(wildcard: str, known: Collection[str], held: Collection[str]) -> frozenset[str]:
    """What a wildcard of :func:`wildcards` stands for.

    :param known: every call of this machine.
    :param held: the app's capabilities, by which Docker's list is longer or shorter.
    """
    whose, _, name = wildcard.partition("/")
    if whose == "@systemd":
        return frozenset(_SYSTEMD[name].split())
    refused = frozenset([*seccomp_profile.refused(held), "unshare"])
    return refused if name == "default-blacklist" else frozenset(known) - refused
