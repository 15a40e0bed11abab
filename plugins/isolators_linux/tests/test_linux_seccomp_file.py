"""Seccomp profiles of the OCI in files: what their filters answer, and which files are refused (C8)."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from kurma_isolators_linux import seccomp_profile, system_calls

from kurma_core.errors import IsolatorError
from kurma_core.hookspecs.isolator import IsolatorHost
from kurma_core.models.isolator import IsolatorPlan
from kurma_core.value import replace
from plugins.isolators_linux.tests.filtering import ALLOW, ERROR, KILL, X32, answer

HOST = IsolatorHost({}, 1)
NAME = "kurma.io/seccomp-profile"
LOG, TRAP, TRACE = 0x7FFC0000, 0x00030000, 0x7FF00000
DENY = {"defaultAction": "SCMP_ACT_ERRNO"}
BIG = 0x1_0000_0005


def rule(names: str, action: str = "SCMP_ACT_ALLOW", **more: Any) -> dict[str, Any]:
    return {"names": names.split(), "action": action, **more}


def condition(op: str, value: int, second: int = 0, index: int = 0) -> dict[str, Any]:
    return {"index": index, "value": value, "valueTwo": second, "op": f"SCMP_CMP_{op}"}


class Profiles:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.host = replace(HOST, root=str(root))

    def compile(self, profile: Any, host: IsolatorHost | None = None) -> Any:
        (self.root / "p.json").write_text(profile if isinstance(profile, str) else json.dumps(profile))
        return seccomp_profile.profile(NAME, {"path": "/p.json"}, "app", host or self.host)

    def asker(self, profile: Any, host: IsolatorHost | None = None) -> Any:
        machine = os.uname().machine
        code = self.compile(profile, host).plan.seccomp

        def ask(name: str | int, *arguments: int) -> int:
            number = system_calls.numbers(machine)[name] if isinstance(name, str) else name
            return answer(code, machine, number, *arguments)

        ask.code = code  # type: ignore[attr-defined]
        return ask


@pytest.fixture
def profiles(tmp_path: Path) -> Profiles:
    return Profiles(tmp_path)


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """As if Kurma ran on that machine."""
    uname = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((*uname[:4], request.param)))
    return str(request.param)


def test_actions_and_the_default(machine: str, profiles: Profiles) -> None:
    names = "read write openat close mkdirat fstat statx"
    actions = [
        rule("read"),
        rule("write", "SCMP_ACT_ERRNO", errnoRet=38),
        rule("openat", "SCMP_ACT_KILL"),
        rule("close", "SCMP_ACT_KILL_PROCESS"),
        rule("mkdirat", "SCMP_ACT_TRAP"),
        rule("fstat", "SCMP_ACT_LOG"),
        rule("statx no_such_call", "SCMP_ACT_TRACE", errnoRet=7),
    ]
    ask = profiles.asker({**DENY, "defaultErrnoRet": 13, "syscalls": actions})
    found = [ask(name) for name in names.split()]
    assert found == [ALLOW, ERROR | 38, 0, KILL, TRAP, LOG, TRACE | 7]
    assert ask("mount") == ERROR | 13
    # Calls that are newer than all calls in the file, and those that no table has, are not there.
    assert ask("futex_wake") == ask(490) == ask(999) == ERROR | errno.ENOSYS
    lenient = profiles.asker({"defaultAction": "SCMP_ACT_LOG", "syscalls": actions[:2]})
    assert (lenient("mount"), lenient(999), lenient("write")) == (LOG, LOG, ERROR | 38)
    assert profiles.compile({"defaultAction": "SCMP_ACT_ALLOW"}).plan.keyrings


def test_other_architectures(machine: str, profiles: Profiles) -> None:
    other, getpid = {"x86_64": ("i386", 20), "aarch64": ("arm", 20)}[machine]
    ask = profiles.asker({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule("ptrace", "SCMP_ACT_ERRNO")]})
    assert answer(ask.code, other, getpid) == KILL
    if machine == "x86_64":
        assert ask(X32 | 39) == KILL
    ask = profiles.asker({"defaultAction": "SCMP_ACT_LOG"})
    assert answer(ask.code, other, getpid) == LOG
    arch = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}[machine]
    profiles.compile({**DENY, "architectures": [arch, "SCMP_ARCH_X86"]})
    profiles.compile({**DENY, "archMap": [{"architecture": arch, "subArchitectures": ["SCMP_ARCH_X86"]}]})
    with pytest.raises(IsolatorError, match=f"is for SCMP_ARCH_S390X, and not for {arch}"):
        profiles.compile({**DENY, "architectures": ["SCMP_ARCH_S390X"]})


@pytest.mark.parametrize(
    ("op", "value", "second", "yes", "no"),
    [
        ("EQ", BIG, 0, [BIG], [5, BIG - 1, BIG + 1, BIG + (1 << 32)]),
        ("NE", BIG, 0, [5, BIG - 1, BIG + (1 << 32)], [BIG]),
        ("LT", BIG, 0, [0, 5, BIG - 1], [BIG, BIG + 1, 1 << 40]),
        ("LE", BIG, 0, [0, 5, BIG], [BIG + 1, 1 << 40]),
        ("GT", BIG, 0, [BIG + 1, 1 << 40], [0, 5, BIG]),
        ("GE", BIG, 0, [BIG, BIG + 1, 1 << 40], [0, 5, BIG - 1]),
        ("MASKED_EQ", 0xF_0000_00F0, 0x1_0000_0010, [0x1_0000_0010, 0x1_0000_0F1F], [0x10, 0x1_0000_0000, 0]),
    ],
)
@pytest.mark.parametrize("index", [0, 5])
def test_comparisons(profiles: Profiles, op: str, value: int, second: int, yes: Any, no: Any, index: int) -> None:
    args = [condition(op, value, second, index)]
    ask = profiles.asker({**DENY, "syscalls": [rule("read", args=args), rule("statx")]})
    for given, result in [(one, ALLOW) for one in yes] + [(one, ERROR | 1) for one in no]:
        assert ask("read", *[0] * index, given) == result, hex(given)


def test_rules_of_one_call(profiles: Profiles) -> None:
    both = [condition("EQ", 1), condition("EQ", 2, index=1)]
    either = [condition("EQ", 1), condition("EQ", 3)]
    ask = profiles.asker(
        {**DENY, "syscalls": [rule("read", args=both), rule("write", args=either), rule("statx")]}
    )
    assert [ask("read", *one) for one in ((1, 2), (1, 1), (2, 2))] == [ALLOW, ERROR | 1, ERROR | 1]
    assert [ask("write", one) for one in (1, 2, 3)] == [ALLOW, ERROR | 1, ALLOW]
    # A rule without conditions wins, wherever it stands; the first match decides among the others.
    rules = [rule("read", args=either), rule("read", "SCMP_ACT_LOG"), rule("read", "SCMP_ACT_TRAP")]
    assert profiles.asker({**DENY, "syscalls": rules})("read", 1) == LOG
    assert profiles.asker({**DENY, "syscalls": [rule("read", "SCMP_ACT_LOG"), rules[0]]})("read", 1) == LOG
    rules = [rule("read", args=[condition("LT", 5)]), rule("read", "SCMP_ACT_TRAP", args=[condition("LT", 9)])]
    ask = profiles.asker({**DENY, "syscalls": rules})
    assert [ask("read", one) for one in (4, 8, 9)] == [ALLOW, TRAP, ERROR | 1]
    # Dozens of rules for one call, and jumps that are longer than the kernel's short ones.
    many = [rule("socket", args=[condition("EQ", number), condition("NE", 7, index=1)]) for number in range(90)]
    ask = profiles.asker({**DENY, "syscalls": [*many, rule("statx")]})
    assert [ask("socket", 89), ask("socket", 89, 7), ask("socket", 90)] == [ALLOW, ERROR | 1, ERROR | 1]
    assert (ask("statx"), ask("read")) == (ALLOW, ERROR | 1)


def test_includes_and_excludes(profiles: Profiles) -> None:
    admin = replace(profiles.host, siblings={"kurma.io/capabilities": {"add": ["SYS_ADMIN"]}})
    (profiles.root / "proc/sys/kernel").mkdir(parents=True)
    (profiles.root / "proc/sys/kernel/osrelease").write_text("5.10.0-44-amd64\n")
    (profiles.root / "proc/self").mkdir()
    (profiles.root / "proc/self/status").write_text("CapPrm:\t000001ffffffffff\n")
    own, other = ("amd64", "arm64") if os.uname().machine == "x86_64" else ("arm64", "amd64")
    rules = [
        rule("mount", includes={"caps": ["CAP_SYS_ADMIN"]}, comment="x", args=None),
        rule("unshare", excludes={"caps": ["CAP_SYS_ADMIN"]}),
        rule("read", includes={"arches": [own]}),
        rule("write", includes={"arches": [other]}),
        rule("close", excludes={"arches": [own, other]}, includes={}),
        rule("ptrace", includes={"minKernel": "4.8"}),
        rule("openat2", includes={"minKernel": "5.11"}),
        rule("statx", excludes={"minKernel": "6.0"}),
    ]
    for host, more in ((profiles.host, {"unshare"}), (admin, {"mount"})):
        ask = profiles.asker({**DENY, "syscalls": rules}, host)
        names = {"mount", "unshare", "read", "write", "close", "ptrace", "openat2", "statx"}
        allowed = {name for name in names if ask(name) == ALLOW}
        assert allowed == {"read", "ptrace", "statx", *more}


def test_what_is_refused(profiles: Profiles) -> None:
    def refused(profile: Any, says: str) -> None:
        with pytest.raises(IsolatorError, match=says) as caught:
            profiles.compile(profile)
        assert "/p.json" in caught.value.message

    with pytest.raises(IsolatorError, match=r"cannot read the seccomp profile /none\.json: no such file"):
        seccomp_profile.profile(NAME, {"path": "/none.json"}, "app", profiles.host)
    with pytest.raises(IsolatorError, match="it is not a regular file"):
        seccomp_profile.profile(NAME, {"path": "/"}, "app", profiles.host)
    refused("{", "not JSON")
    refused("[]", "the profile: expected an object")
    refused({}, "defaultAction: expected one of SCMP_ACT_ALLOW")
    refused({"defaultAction": "SCMP_ACT_NOTIFY"}, "defaultAction: Kurma has no agent for SCMP_ACT_NOTIFY")
    refused({**DENY, "syscals": []}, 'unknown key "syscals"')
    refused({**DENY, "flags": ["NEW"]}, "flags: expected one of")
    refused({**DENY, "syscalls": [rule("")]}, r"syscalls\[0\] names no system call")
    refused({**DENY, "syscalls": [rule("read", "ALLOW")]}, r"syscalls\[0\]\.action: expected one of")
    refused({**DENY, "syscalls": [rule("read", args=[condition("IS", 1)])]}, r"args\[0\]\.op: expected one of")
    refused({**DENY, "syscalls": [rule("read", args=[condition("EQ", 1, index=6)])]}, "index: expected a whole")
    refused({**DENY, "syscalls": [rule("read", args=[condition("EQ", 1 << 64)])]}, "value: expected a whole")
    refused({**DENY, "syscalls": [rule("read", "SCMP_ACT_ERRNO", errno="EWHAT")]}, "expected a name of errno")
    refused({**DENY, "syscalls": [rule("read", includes={"minKernel": "new"})]}, "expected a version such as")
    many = [rule("socket", args=[condition("EQ", number)]) for number in range(1000)]
    refused({**DENY, "syscalls": many}, "instructions; the kernel takes 4096")
    (profiles.root / "p.json").write_text(" " * ((1 << 20) + 1))
    with pytest.raises(IsolatorError, match="bytes are too many"):
        seccomp_profile.profile(NAME, {"path": "/p.json"}, "app", profiles.host)


def test_values_and_powers(profiles: Profiles) -> None:
    def powers(value: Any, host: IsolatorHost = HOST) -> list[str]:
        return [one.name for one in seccomp_profile.powers(NAME, value, "app", host)]

    assert powers("default") == []
    assert powers("none") == [f"{NAME}=none"]
    assert powers("unconfined") == [f"{NAME}=unconfined"]
    assert powers({"path": "/x"}) == [f"{NAME}=path"]
    assert powers("unconfined", replace(HOST, siblings={"os/linux/privileged": True})) == []
    unconfined = seccomp_profile.profile(NAME, "unconfined", "app", HOST)
    assert (unconfined.plan, unconfined.outcome) == (IsolatorPlan(keyrings=True), "enforced")
    for wrong in ("off", {"path": "x"}, {"path": "/x", "y": 1}, {"path": 7}, [], None):
        with pytest.raises(IsolatorError, match="expected default, none, unconfined, or an object with the path"):
            seccomp_profile.profile(NAME, wrong, "app", HOST)


def test_a_machine_that_is_not_known(profiles: Profiles, monkeypatch: pytest.MonkeyPatch) -> None:
    uname = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((*uname[:4], "riscv64")))
    assert profiles.compile(DENY).outcome == "ignored"
