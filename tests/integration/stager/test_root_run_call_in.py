"""The default stager's ``run`` call-in, whatever it is given (Kurma Stager Specification, "run"; G5)."""

from __future__ import annotations

import json
import os
import signal
import socket
import tempfile
import time
from pathlib import Path

import pytest

from kurma_core.linux import process
from kurma_core.models.isolator import IsolatorPlan
from kurma_core.spawn_plan import EnterPlan
from tests.kit.images import shell
from tests.kit.waiting import until

pytestmark = pytest.mark.root


@pytest.fixture
def sleeping_pod(pods):
    pod = pods({"main": shell("echo up; exec sleep 1000")}).started()
    pod.wait_log("up")
    return pod


_NO_COMMANDS = (
    (b"{nonsense", "the command is no JSON: not a JSON document"),
    (b"", "the command is no JSON: not a JSON document"),
    (
        b"\xff\xfe{}",
        "the command is no JSON: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
    ),
    (b'["sh"]', "the command is no JSON object"),
    (b'{"user": "0"}', "the command has no exec"),
    (b'{"exec": []}', "the command has no exec"),
    (b'{"exec": "sh"}', "the command's exec is not a list of words"),
    (b'{"exec": ["sh", 1]}', "the command's exec is not a list of words"),
    (b'{"exec": ["sh", "a\\u0000b"]}', "the command's exec is not a list of words"),
    (b'{"exec": ["\\ud800"]}', "the command's exec is not a list of words"),
    (b'{"exec": ["true"], "user": 0}', "the command's user is not a name, number or path"),
    (b'{"exec": ["true"], "group": ""}', "the command's group is not a name, number or path"),
    (b'{"exec": ["true"], "supplementaryGIDs": [-1]}', "the command's supplementaryGIDs are no list of group IDs"),
    (b'{"exec": ["true"], "supplementaryGIDs": 5}', "the command's supplementaryGIDs are no list of group IDs"),
    (b'{"exec": ["true"], "workingDirectory": "tmp"}', "the command's workingDirectory is not an absolute path"),
    (b'{"exec": ["true"], "environment": {"A": "b"}}', "the command's environment is not a list"),
    (
        b'{"exec": ["true"], "environment": [{"name": "A=B", "value": ""}]}',
        "the command's environment is not a list of names and values",
    ),
    (b'{"exec": ["true"], "tty": "yes"}', "the command's tty is neither true nor false"),
    (b'{"exec": ["' + b"x" * (1 << 20) + b'"]}', "the command is too long: more than 1 MiB"),
)


def test_run_refuses_what_is_no_command(sleeping_pod):
    for document, said in _NO_COMMANDS:
        assert sleeping_pod.call("run", "main", document=document) == (125, "", f"kurma: {said}\n")


@pytest.mark.full
def test_run_does_not_wait_for_ever_for_its_document(sleeping_pod):
    """Ten seconds, its end included, whatever the core on the other side does."""
    ours, theirs = socket.socketpair()
    with ours, theirs, tempfile.TemporaryFile() as said:
        call = sleeping_pod.stager.spawner.enter(
            EnterPlan(
                pid=sleeping_pod.process.pid,
                argv=("/opt/stager/run", "main"),
                fds={2: said.fileno(), 3: theirs.fileno()},
            )
        )
        began = time.monotonic()
        ours.sendall(b'{"exec": ["true"]}')
        assert process.wait_pidfd(call.pidfd, 30)
        assert time.monotonic() - began > 9
        assert process.exit_status(call.pidfd) == 125
        os.close(call.pidfd)
        said.seek(0)
        assert said.read() == b"kurma: the command was not given whole within 10 s\n"


def test_a_signal_that_comes_as_soon_as_the_command_runs_is_the_commands(sleeping_pod):
    """Also if the call-in has not heard yet that it runs: it stands still from the fork on."""
    command = shell("trap 'echo told; exit 3' TERM; echo up; while :; do sleep 0.02; done")
    ours, theirs = socket.socketpair()
    out, told = os.pipe()
    with ours, theirs:
        call = sleeping_pod.stager.spawner.enter(
            EnterPlan(
                pid=sleeping_pod.process.pid, argv=("/opt/stager/run", "main"), fds={1: told, 3: theirs.fileno()}
            )
        )
        os.close(told)
        ours.sendall(json.dumps(command).encode())
        ours.shutdown(socket.SHUT_WR)
        children = Path(f"/proc/{call.pid}/task/{call.pid}/children")
        until(children.read_text)
        process.pidfd_send_signal(call.pidfd, signal.SIGSTOP)
        assert os.read(out, 100) == b"up\n"
        process.pidfd_send_signal(call.pidfd, signal.SIGTERM)
        process.pidfd_send_signal(call.pidfd, signal.SIGCONT)
        assert process.wait_pidfd(call.pidfd, 20)
        assert (os.read(out, 100), process.exit_status(call.pidfd)) == (b"told\n", 3)
    os.close(call.pidfd)
    os.close(out)


def test_run_resolves_users_in_the_image(sleeping_pod):
    """Names of the image first, then numbers, then the owner of a file (H6)."""
    ids = ("sh", "-c", "echo $(id -u):$(id -g) $(id -G)")
    assert sleeping_pod.run(*ids, user="alice")[1] == "1000:100 100 10\n"
    assert sleeping_pod.run(*ids, user="4321", group="8765")[1] == "4321:8765 8765\n"
    assert sleeping_pod.run(*ids, user="/etc/passwd", group="/etc/group")[1] == "0:0 0\n"
    assert sleeping_pod.run(*ids, user="/no/file")[0] == 125
    assert sleeping_pod.run(*ids, group="nogroup-here")[0] == 125


def test_run_ends_with_its_signals(sleeping_pod):
    assert sleeping_pod.run("sh", "-c", "kill -KILL $$")[0] == 137
    assert sleeping_pod.run("sh", "-c", "exit 255")[0] == 255
    assert sleeping_pod.run("/tmp")[0] == 126
    assert sleeping_pod.run("") == (127, "", "kurma: app main: the command's name is empty\n")
    code, _, err = sleeping_pod.run("true", workingDirectory="/nowhere")
    assert (code, err) == (125, "kurma: app main: the working directory /nowhere does not exist\n")


def test_an_app_cannot_lay_a_trap_for_a_terminal(pods):
    """A pipe in place of what makes terminals would keep who opens it waiting; it is looked at, and refused."""
    plan = IsolatorPlan(capabilities=("CAP_SYS_ADMIN", "CAP_MKNOD", "CAP_DAC_OVERRIDE"))
    script = "umount /dev/pts && mkfifo /dev/pts/ptmx && echo up; exec sleep 1000"
    pod = pods({"main": shell(script)}, plans={"main": plan}).started()
    pod.wait_log("up")
    code, _, err = pod.run("true", tty=True)
    assert (code, err) == (125, "kurma: app main: its terminal cannot be made: it makes no terminals\n")
