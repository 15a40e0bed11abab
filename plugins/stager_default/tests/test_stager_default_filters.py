"""Filters of system calls, on a process of its own each; no right is needed under ``no_new_privs``."""

import errno
import os

import pytest
from kurma_stager_default.inside.app import sandbox

from kurma_core.linux import libc

_NO_NEW_PRIVS = 38
_SEARCH, _PROCESS_KEYRING = 10, -2


def in_child(function):
    """Runs it in a child; what it returns, a small number."""
    pid = os.fork()
    if pid == 0:
        code = 255
        try:
            libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
            code = function()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def reason(function, *args):
    try:
        function(*args)
        return 0
    except OSError as error:
        return error.errno


def test_keys_are_refused_and_nothing_else():
    def probe():
        sandbox.install(sandbox.refuse_keys())
        search = ("keyctl", _SEARCH, _PROCESS_KEYRING, b"user", b"none", 0)
        first = libc.NUMBERS["keyctl"] - 2
        assert reason(libc.syscall, *search) == errno.EPERM
        assert reason(libc.syscall, first, b"user", b"a", b"x", 1, _PROCESS_KEYRING) == errno.EPERM
        assert reason(libc.syscall, first + 1, b"user", b"a", None, 0) == errno.EPERM
        # Their neighbours: none of these is a key's.
        assert reason(libc.syscall, first - 1, 0, 0, 0, 0, 0, 0) != errno.EPERM
        os.close(os.open("/", os.O_RDONLY))
        return 7

    assert in_child(probe) == 7


def test_filters_add_up():
    """A plan's filter on top: the one refuses getpid, the other goes on refusing keys."""
    allow, deny = 0x7FFF0000, 0x00050000 | errno.ENOTTY
    getppid = {"x86_64": 110, "aarch64": 173}[os.uname().machine]
    program = b"".join(
        [
            sandbox.instruction(0x20, 0),
            sandbox.instruction(0x15, getppid, 0, 1),
            sandbox.instruction(0x06, deny),
            sandbox.instruction(0x06, allow),
        ]
    )

    def probe():
        sandbox.install(sandbox.refuse_keys())
        sandbox.install(program)
        assert reason(libc.syscall, getppid) == errno.ENOTTY
        assert reason(libc.syscall, "keyctl", _SEARCH, _PROCESS_KEYRING, b"user", b"none", 0) == errno.EPERM
        return 7

    assert in_child(probe) == 7


@pytest.mark.parametrize("program", [b"", b"1234567", bytes(8) * 4097, bytes(8), b"\xff" * 16])
def test_what_is_no_program_is_refused(program):
    assert in_child(lambda: reason(sandbox.install, program)) == errno.EINVAL
