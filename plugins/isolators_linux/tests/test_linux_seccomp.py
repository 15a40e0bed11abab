"""Filters of system calls: what they answer on every architecture, and what is refused to be one (X4)."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from typing import Any

import pytest
from kurma_isolators_linux import seccomp, seccomp_profile, system_calls
from kurma_isolators_linux.driver import LinuxIsolators

from kurma_core.errors import IsolatorError
from kurma_core.hookspecs.isolator import IsolatorHost
from kurma_core.linux.capabilities import DEFAULT_SET, names
from kurma_core.value import replace
from plugins.isolators_linux.tests.filtering import ALLOW, ERROR, KILL, X32, answer

HOST = IsolatorHost({}, 1)
DEFAULT = names(DEFAULT_SET)
MACHINES = ("x86_64", "aarch64")
# A call of a 32-bit program on each: getpid.
OTHERS = {"x86_64": ("i386", 20), "aarch64": ("arm", 20)}
NEWUSER, NEWTIME, THREAD = 0x10000000, 0x80, 0x3D0F00


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """As if Kurma ran on that machine."""
    uname = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((*uname[:4], request.param)))
    return str(request.param)


def compiled(function: Any, value: Any, **siblings: Any) -> tuple[Any, Any]:
    """The program as a function of a call's name and arguments, and the note."""
    machine = os.uname().machine
    found = function("the-isolator", value, "app", replace(HOST, siblings=siblings))
    assert found.outcome == "enforced"

    def ask(name: str | int, *arguments: int) -> int:
        number = system_calls.numbers(machine)[name] if isinstance(name, str) else name
        return answer(found.plan.seccomp, machine, number, *arguments)

    ask.code = found.plan.seccomp  # type: ignore[attr-defined]
    return ask, found.note


# --- the sets ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "no"), [(None, KILL), ("", KILL), ("EXDEV", ERROR | 18), ("ENOTSUP", ERROR | 95)]
)
def test_remove(machine: str, code: Any, no: int) -> None:
    """On top of the default profile."""
    ask, note = compiled(seccomp.remove_set, {"set": ["ptrace", "mkdirat", "@systemd/clock"], "errno": code})
    usual, _ = compiled(seccomp_profile.profile, "default")
    refused = {"ptrace", "mkdirat", "adjtimex", "clock_adjtime", "clock_settime", "settimeofday"}
    for name in system_calls.numbers(machine):
        assert ask(name) == (no if name in refused else usual(name)), name
    assert ask("mount") == ERROR | errno.EPERM
    assert (ask("clone", NEWUSER), ask("clone", THREAD)) == (ERROR | errno.EPERM, ALLOW)
    assert ask(490) == ask(999) == ask(0xFFFFFFFF) == ERROR | errno.ENOSYS
    assert note == ""
    # A privileged app has no profile.
    ask, _ = compiled(seccomp.remove_set, {"set": ["ptrace"], "errno": code}, **{"os/linux/privileged": True})
    assert [ask(name) for name in ("ptrace", "mount", 490)] == [no, ALLOW, ALLOW]


@pytest.mark.parametrize(("code", "no"), [(None, KILL), ("ENOSYS", ERROR | 38)])
def test_retain(machine: str, code: Any, no: int) -> None:
    ask, note = compiled(seccomp.retain_set, {"set": ["read", "exit", "@systemd/mount"], "errno": code})
    life = {"execve", "exit", "exit_group", "restart_syscall", "rt_sigreturn"}
    kept = {"read", *life, *seccomp.calls_of("@systemd/mount", [], [])}
    for name in system_calls.numbers(machine):
        assert ask(name) == (ALLOW if name in kept else no), name
    assert ask(490) == ask(0xFFFFFFFF) == no
    assert note == "kept besides: execve, exit_group, restart_syscall, rt_sigreturn"


def test_what_a_retained_call_is_given_is_as_by_default(machine: str) -> None:
    """Else no program that starts threads could have a set without a power."""
    names = ["clone", "clone3", "personality", "socket", "unshare"]
    ask, _ = compiled(seccomp.retain_set, {"set": names})
    no = ERROR | errno.EPERM
    assert (ask("clone", THREAD), ask("clone", NEWUSER), ask("unshare", NEWUSER)) == (ALLOW, no, no)
    assert (ask("personality", 0), ask("personality", 0x40000)) == (ALLOW, no)
    assert (ask("socket", 2), ask("socket", 38)) == (ALLOW, ERROR | errno.EAFNOSUPPORT)
    assert ask("clone3") == ERROR | errno.ENOSYS
    for more in ({"os/linux/privileged": True}, {"os/linux/capabilities-retain-set": {"set": ["CAP_SYS_ADMIN"]}}):
        ask, _ = compiled(seccomp.retain_set, {"set": names}, **more)
        assert [ask("clone", NEWUSER), ask("unshare", NEWUSER), ask("clone3")] == [ALLOW] * 3
    assert ask("socket", 38) == ERROR | errno.EAFNOSUPPORT


@pytest.mark.parametrize("function", [seccomp.retain_set, seccomp.remove_set])
@pytest.mark.parametrize(("code", "no"), [(None, KILL), ("EPERM", ERROR | 1)])
def test_the_doors_of_other_architectures_are_closed(machine: str, function: Any, code: Any, no: int) -> None:
    """Whatever a 32-bit program calls, allowed by name or not: its numbers mean something else."""
    ask, _ = compiled(function, {"set": ["getpid"], "errno": code})
    other, getpid = OTHERS[machine]
    assert answer(ask.code, other, getpid) == no
    assert answer(ask.code, other, system_calls.numbers(machine)["getpid"]) == no
    assert [answer(ask.code, other, number) for number in (0, 512, X32, 0xFFFFFFFF)] == [no] * 4
    if machine == "x86_64":
        # x32: with its mark; and its own ones, which older kernels know without it
        assert ask(39) == (ALLOW if function is seccomp.retain_set else no)
        assert [ask(X32 | number) for number in (0, 39, 59, 512, 0x3FFFFFFE)] == [no] * 5
        assert [ask(number) for number in (512, 520, 547)] == [no] * 3
        assert ask(511) == ask(548) == (no if function is seccomp.retain_set else ERROR | errno.ENOSYS)


def test_all_and_empty(machine: str) -> None:
    """App Container Executor: each masks all other values, and opts out of, or into, the default."""
    everything = seccomp.retain_set("x", {"set": ["read", "@appc.io/all"]}, "app", HOST)
    assert (everything.plan.seccomp, everything.note) == (None, "every system call is allowed")
    profile = seccomp_profile.profile("x", "default", "app", HOST).plan
    assert seccomp.remove_set("x", {"set": ["reboot", "@appc.io/empty"]}, "app", HOST).plan == profile
    ask, _ = compiled(seccomp.retain_set, {"set": ["@appc.io/empty"]})
    assert {name for name in system_calls.numbers(machine) if ask(name) == ALLOW} == set(seccomp.LIFE)
    with pytest.raises(IsolatorError, match="without execve no program"):
        seccomp.remove_set("x", {"set": ["@appc.io/all"]}, "app", HOST)


def test_sockets_that_reach_past_the_pod(machine: str) -> None:
    """Packet sockets take CAP_NET_ADMIN besides CAP_NET_RAW; the host's audit log takes an audit capability."""
    netlink, packet, inet = 16, 17, 2

    def ask(*capabilities: str) -> Any:
        code = seccomp_profile.compile_profile(system_calls.numbers(machine), capabilities)
        number = system_calls.numbers(machine)["socket"]
        return lambda *arguments: answer(code, machine, number, *arguments)

    usual = ask(*DEFAULT)
    assert usual(inet, 3, 1) == usual(inet, 1, 9) == usual(netlink, 3, 0) == usual(netlink, 3, 15) == ALLOW
    assert usual(packet, 3, 0) == ERROR | 1
    assert usual(netlink, 3, 9) == ERROR | 22
    assert usual(38, 5, 0) == usual(40, 1, 0) == ERROR | 97
    assert ask("CAP_NET_RAW", "CAP_NET_ADMIN")(packet, 3, 0) == ALLOW
    assert ask("CAP_AUDIT_CONTROL")(netlink, 3, 9) == ask("CAP_AUDIT_READ")(netlink, 3, 9) == ALLOW
    assert ask("CAP_AUDIT_WRITE")(netlink, 3, 9) == ERROR | 22


def test_what_docker_and_rkt_allow(machine: str) -> None:
    black, _ = compiled(seccomp.remove_set, {"set": ["@rkt/default-blacklist"]})
    white, _ = compiled(seccomp.retain_set, {"set": ["@docker/default-whitelist"]})
    for name in system_calls.numbers(machine):
        assert black(name) == white(name), name
    # As rkt's list and Docker's documentation have it, those that are there on both machines.
    for name in [
        "acct",
        "add_key",
        "bpf",
        "clock_settime",
        "delete_module",
        "finit_module",
        "get_mempolicy",
        "init_module",
        "kcmp",
        "kexec_file_load",
        "kexec_load",
        "keyctl",
        "mbind",
        "mount",
        "move_pages",
        "open_by_handle_at",
        "perf_event_open",
        "pivot_root",
        "quotactl",
        "reboot",
        "request_key",
        "set_mempolicy",
        "setns",
        "settimeofday",
        "swapon",
        "swapoff",
        "umount2",
        "unshare",
        "userfaultfd",
        "nfsservctl",
        "syslog",
    ]:
        assert black(name) == KILL, name
    assert black("clone3") == ERROR | errno.ENOSYS
    for name in [
        "clone",
        "execve",
        "mmap",
        "rseq",
        "socket",
        "personality",
        "chroot",
        "ptrace",
        "statx",
        "futex",
        "openat2",
    ]:
        assert black(name) == ALLOW, name


def test_names_of_other_machines_are_accepted_and_told(machine: str) -> None:
    other = {"x86_64": "umount", "aarch64": "open"}[machine]
    for function in (seccomp.remove_set, seccomp.retain_set):
        _, note = compiled(function, {"set": ["mount", "vm86", other]})
        assert f"not on this machine: {', '.join(sorted(['vm86', other]))}" in note
    _, note = compiled(seccomp.remove_set, {"set": ["@rkt/default-blacklist"]})
    assert note == ""


@pytest.mark.parametrize(
    ("value", "message", "hint"),
    [
        ({"set": ["reboto"]}, 'there is no system call "reboto"', "did you mean reboot?"),
        ({"set": ["Mount"]}, 'there is no system call "Mount"', "did you mean mount?"),
        ({"set": ["xyzzy-plugh"]}, 'there is no system call "xyzzy-plugh"', None),
        ({"set": ["@rkt/default-blackist"]}, "there is no set", "did you mean @rkt/default-blacklist?"),
        ({"set": ["mount"], "errno": "EPREM"}, 'there is no errno "EPREM"', "did you mean EPERM?"),
        ({"set": ["mount"], "errno": "eperm"}, 'there is no errno "eperm"', "did you mean EPERM?"),
        ({"set": ["mount"], "errno": 1}, "there is no errno 1", None),
        ({"set": ["mount"], "errno": "__name__"}, "there is no errno", None),
        ({"set": []}, "its set is empty", "write @appc.io/empty if that is meant"),
        ({"set": "mount"}, "expected", None),
        ({"set": ["mount"], "error": "EPERM"}, 'got "error" besides', None),
        ({"set": [1]}, "expected names of system calls, got 1", None),
    ],
)
def test_wrong_values(value: Any, message: str, hint: str | None) -> None:
    for function in (seccomp.remove_set, seccomp.retain_set):
        with pytest.raises(IsolatorError) as caught:
            function("the-isolator", value, "app", HOST)
        assert str(caught.value).startswith("isolator the-isolator: ")
        assert message in str(caught.value)
        assert caught.value.hint == hint


def test_every_errno_is_valid() -> None:
    for number, name in errno.errorcode.items():
        ask, _ = compiled(seccomp.remove_set, {"set": ["mount"], "errno": name})
        assert ask("mount") == ERROR | number, name


def test_who_has_no_filter_gets_the_profile() -> None:
    driver = LinuxIsolators()
    for name in ("os/linux/seccomp-retain-set", "os/linux/seccomp-remove-set", "kurma.io/seccomp-profile"):
        assert "kurma.io/seccomp-profile" not in dict(driver.defaults("app", (name,), HOST))
    assert dict(driver.defaults("app", ("os/linux/oom-score-adj",), HOST))["kurma.io/seccomp-profile"] == "default"
    assert "kurma.io/seccomp-profile" not in dict(driver.defaults("pod", (), HOST))


# --- the profile -------------------------------------------------------------------------------------------------


def test_what_is_refused_by_default(machine: str) -> None:
    ask, _ = compiled(seccomp_profile.profile, "default")
    for name in [
        "add_key",
        "bpf",
        "finit_module",
        "init_module",
        "io_uring_setup",
        "kexec_load",
        "keyctl",
        "mount",
        "open_by_handle_at",
        "perf_event_open",
        "pivot_root",
        "reboot",
        "request_key",
        "setns",
        "swapon",
        "syslog",
        "umount2",
        "userfaultfd",
        "settimeofday",
    ]:
        assert ask(name) == ERROR | errno.EPERM, name
    for name in ("read", "execve", "fork", "ptrace", "chroot", "seccomp", "rseq", "adjtimex"):
        assert name not in system_calls.numbers(machine) or ask(name) == ALLOW, name


def test_what_linux_may_bring_is_not_implemented(machine: str) -> None:
    """Libraries fall back on ENOSYS, and not on EPERM."""
    ask, _ = compiled(seccomp_profile.profile, "default")
    assert ask(472) == ask(600) == ask(0xFFFFFFFF) == ERROR | errno.ENOSYS
    assert ask("clone3") == ERROR | errno.ENOSYS
    other, getpid = OTHERS[machine]
    assert answer(ask.code, other, getpid) == KILL


def test_arguments(machine: str) -> None:
    ask, _ = compiled(seccomp_profile.profile, "default")
    no = ERROR | errno.EPERM
    high = 1 << 32
    assert [ask("clone", flags) for flags in (0x11, THREAD, NEWUSER | 0x11, THREAD | 0x20000)] == [
        *(ALLOW, ALLOW, no, no)
    ]
    # Of clone's flags, the lowest byte is a signal.
    assert (ask("clone", NEWTIME), ask("unshare", NEWTIME)) == (ALLOW, no)
    for bit in (0x20000, 0x2000000, 0x4000000, 0x8000000, NEWUSER, 0x20000000, 0x40000000):
        assert ask("clone", bit) == ask("unshare", bit) == ask("unshare", high | bit) == no
    assert ask("unshare", 0x400) == ALLOW
    assert [ask("personality", value) for value in (0, 8, 0x20000, 0x20008, 0xFFFFFFFF)] == [ALLOW] * 5
    assert [ask("personality", value) for value in (1, 0x40000, 0x400000, 0x20009)] == [no] * 4
    assert [ask("socket", family) for family in (1, 2, 10, 16)] == [ALLOW] * 4
    assert [ask("socket", family) for family in (38, 40, high | 40)] == [ERROR | errno.EAFNOSUPPORT] * 3


@pytest.mark.parametrize(
    ("capability", "opened"),
    [
        ("CAP_SYS_ADMIN", ("mount", "umount2", "setns", "bpf", "perf_event_open", "syslog", "pivot_root")),
        ("CAP_BPF", ("bpf",)),
        ("CAP_PERFMON", ("perf_event_open",)),
        ("CAP_SYSLOG", ("syslog",)),
        ("CAP_SYS_PTRACE", ("kcmp", "pidfd_getfd", "process_madvise", "userfaultfd")),
        ("CAP_SYS_MODULE", ("init_module", "finit_module", "delete_module")),
        ("CAP_SYS_TIME", ("settimeofday", "clock_settime")),
        ("CAP_SYS_BOOT", ("reboot",)),
        ("CAP_SYS_NICE", ("mbind", "set_mempolicy", "move_pages")),
        ("CAP_SYS_PACCT", ("acct",)),
        ("CAP_DAC_READ_SEARCH", ("open_by_handle_at",)),
        ("CAP_NET_ADMIN", ()),
    ],
)
def test_a_capability_opens_what_it_is_for(machine: str, capability: str, opened: tuple[str, ...]) -> None:
    closed, _ = compiled(seccomp_profile.profile, "default")
    ask, _ = compiled(
        seccomp_profile.profile, "default", **{"os/linux/capabilities-retain-set": {"set": [*DEFAULT, capability]}}
    )
    for name in opened:
        assert (closed(name), ask(name)) == (ERROR | errno.EPERM, ALLOW), name
    more = {
        name for name in system_calls.numbers(machine) if (closed(name), ask(name)) == (ERROR | errno.EPERM, ALLOW)
    }
    if capability != "CAP_SYS_ADMIN":
        assert more == {*opened} | (more & {"migrate_pages", "get_mempolicy", "set_mempolicy_home_node"})
    namespaces = ask("clone", NEWUSER), ask("unshare", NEWUSER), ask("clone3")
    if capability == "CAP_SYS_ADMIN":
        assert namespaces == (ALLOW, ALLOW, ALLOW)
    else:
        assert namespaces == (ERROR | errno.EPERM, ERROR | errno.EPERM, ERROR | errno.ENOSYS)


def test_a_capability_that_is_removed_closes(machine: str) -> None:
    ask, _ = compiled(
        seccomp_profile.profile, "default", **{"os/linux/capabilities-remove-set": {"set": ["CAP_SYS_CHROOT"]}}
    )
    assert ask("chroot") == ERROR | errno.EPERM
    ask, _ = compiled(
        seccomp_profile.profile, "default", **{"os/linux/capabilities-retain-set": {"set": ["CAP_CHOWN"]}}
    )
    assert ask("chroot") == ERROR | errno.EPERM


def test_the_profile_can_be_left_out() -> None:
    found = seccomp_profile.profile("x", "none", "app", HOST)
    assert (found.plan.seccomp, found.outcome) == (None, "enforced")


def test_the_profile_is_small_and_loads_little() -> None:
    """Every start of every app compiles it, and every stager's manifest holds it."""
    assert len(seccomp_profile.profile("x", "default", "app", HOST).plan.seccomp or b"") <= 8 * 220
    script = (
        "import sys; from kurma_core.hookspecs.isolator import IsolatorHost; "
        "from kurma_isolators_linux.seccomp_profile import profile; "
        "profile('x', 'default', 'app', IsolatorHost({}, 1)); "
        "print([each for each in ('difflib', 'ctypes', 'kurma_isolators_linux.seccomp') "
        "if each in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_a_machine_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    uname = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((*uname[:4], "vax")))
    for function, value in (
        (seccomp_profile.profile, "default"),
        (seccomp.retain_set, {"set": ["read"]}),
        (seccomp.remove_set, {"set": ["read"]}),
    ):
        found = function("x", value, "app", HOST)
        assert (found.outcome, found.plan.seccomp) == ("ignored", None)
        assert "for the machine vax" in found.note


def test_programs_of_any_set_are_programs(machine: str) -> None:
    """Many short ranges: branches farther than one byte can say."""
    numbers = system_calls.numbers(machine)
    scattered = [name for name, number in numbers.items() if number % 2 and name != "execve"]
    usual, _ = compiled(seccomp_profile.profile, "default")
    ask, _ = compiled(seccomp.remove_set, {"set": scattered, "errno": "EPERM"})
    for name, number in numbers.items():
        assert ask(name) == (ERROR | 1 if number % 2 and name != "execve" else usual(name)), name
    assert seccomp_profile.refused(DEFAULT)
