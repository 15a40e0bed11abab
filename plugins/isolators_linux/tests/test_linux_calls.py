"""The table of system calls, against those that ``system-calls`` makes from the kernel's sources (X4)."""

from __future__ import annotations

import os
from importlib import import_module

import pytest
from kurma_isolators_linux import seccomp, seccomp_profile, system_calls

from kurma_core.linux import libc

# Linux has these no more, and system-calls neither.
GONE = {
    "x86_64": (
        *("_sysctl", "afs_syscall", "create_module", "get_kernel_syms", "getpmsg", "nfsservctl", "putpmsg"),
        *("query_module", "security", "tuxcall", "uselib", "vserver"),
    ),
    "aarch64": ("nfsservctl",),
}


@pytest.mark.parametrize(("machine", "theirs"), [("x86_64", "x86_64"), ("aarch64", "arm64"), ("arm64", "arm64")])
def test_numbers_are_the_kernels(machine: str, theirs: str) -> None:
    table = getattr(import_module(f"system_calls.tables.{theirs}"), f"syscalls_{theirs}")
    ours = system_calls.numbers(machine)
    gone = GONE["x86_64" if machine == "x86_64" else "aarch64"]
    assert {name: number for name, number in ours.items() if name not in gone} == table
    assert set(gone) <= ours.keys()
    assert len(set(ours.values())) == len(ours)


def test_numbers_are_the_cores() -> None:
    ours = system_calls.numbers(os.uname().machine)
    assert {name: ours[name] for name in libc.NUMBERS} == libc.NUMBERS


def test_names_of_other_machines_are_known() -> None:
    theirs = import_module("system_calls.tables.names").syscalls_names
    tables = ("i386", "x32", "arm", "powerpc64", "s390x", "riscv64", "mips64", "loongarch64")
    served = {
        name
        for each in tables
        for name in getattr(import_module(f"system_calls.tables.{each}"), f"syscalls_{each}")
    }
    assert served <= set(theirs)
    for machine in ("x86_64", "aarch64"):
        assert served <= system_calls.numbers(machine).keys() | system_calls.elsewhere(machine)
        assert not system_calls.elsewhere(machine) & system_calls.numbers(machine).keys()


def test_every_name_that_a_set_or_the_profile_has_is_a_calls() -> None:
    known = system_calls.numbers("x86_64").keys() | system_calls.elsewhere("x86_64")
    assert set(seccomp_profile.refused([])) <= known
    for wildcard in seccomp.wildcards():
        assert seccomp.calls_of(wildcard, system_calls.numbers("x86_64").keys(), ()) <= known, wildcard


def test_a_machine_without_a_table() -> None:
    with pytest.raises(LookupError):
        system_calls.numbers("vax")
