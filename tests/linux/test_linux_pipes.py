"""Who holds a pipe."""

import os
import subprocess

from kurma_core.staging.stager_process import holders, program


def test_holders_of_a_pipe():
    """By the lowest descriptor, in the order that was asked for; who has ended, or holds another pipe, is none."""
    read, write = os.pipe()
    other = os.pipe()
    words = ["sleep", "1000"]
    gone = subprocess.Popen(["true"])
    gone.wait()
    with (
        subprocess.Popen(words, pass_fds=[write], stdout=write, stderr=subprocess.DEVNULL) as holding,
        subprocess.Popen(words, pass_fds=[other[1]]) as not_holding,
    ):
        try:
            found = list(holders(read, [gone.pid, not_holding.pid, holding.pid]))
            assert [(one.pid, one.descriptor, one.program) for one in found] == [(holding.pid, 1, "sleep 1000")]
        finally:
            holding.kill()
            not_holding.kill()
    for fd in (read, write, *other):
        os.close(fd)


def test_the_name_of_a_program_is_harmless():
    """It is what the process likes to be called: short, and nothing for a terminal to act on."""
    words = ["sh\033[31m\a", "-c", "echo; read x; exit", "two\nlines", "ü" * 100]
    with subprocess.Popen(words, executable="/bin/sh", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # before, the kernel may not have its words yet
        name = program(process.pid)
        process.kill()
    assert name.startswith("sh?[31m? -c echo; read x; exit two lines üüü")
    assert len(name) == 80
