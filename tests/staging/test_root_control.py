"""The control socket of a stager that lies, is silent, or ends: its answers are not trusted."""

import contextlib
import json
import os
import subprocess
import sys
import threading

import pytest

from kurma_core.cancellation import Cancellation, governing
from kurma_core.errors import Cancelled, StagerError
from kurma_core.models.streams import Stdio
from kurma_core.staging import control
from tests.kit.waiting import until

pytestmark = pytest.mark.root

SERVER = """
import os, socket, sys
os.chroot(sys.argv[1])
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind("/run/kurma/control")
listener.listen(4)
print("ready", flush=True)
kept = []
while True:
    connection, _ = listener.accept()
    print(connection.recv(65536).decode(), flush=True)
    answer = sys.stdin.readline().strip()
    if answer:
        connection.send(bytes.fromhex(answer))
    if answer == "":
        kept.append(connection)
"""


class Running:
    """The part of a running stager that the socket's client uses."""

    def __init__(self, process):
        self._process = process
        self.pid = process.pid

    def alive(self):
        return self._process.poll() is None


@pytest.fixture
def stager(tmp_path):
    (tmp_path / "run/kurma").mkdir(parents=True)
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"ready\n"
    yield process
    process.kill()
    process.communicate()


def answering(stager, answer):
    """The next request gets this answer; None: none."""
    data = b"" if answer is None else answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    stager.stdin.write(data.hex().encode() + b"\n")
    stager.stdin.flush()


def requested(stager):
    return json.loads(stager.stdout.readline())


def test_requests_and_answers(stager):
    answering(stager, {})
    control.ask(Running(stager), ("app-stop", "web", "--timeout", "2.5"), 20)
    assert requested(stager) == {"do": "stop", "app": "web", "timeout": 2.5}
    answering(stager, {})
    control.ask(Running(stager), ("app-reopen-log", "web"), 20)
    assert requested(stager) == {"do": "reopen-log", "app": "web"}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"error": "no such\x1b[31m app", "code": 2}, "refuses: no such"),
        ({"error": ["a"], "code": "x"}, "refuses: an error without a text"),
        (b"{", "the stager is wrong"),
        (b"[1]", "not a JSON object"),
        (b"\xff\xfe", "the stager is wrong"),
    ],
)
def test_answers_that_are_no_answers(stager, answer, words):
    answering(stager, answer)
    with pytest.raises(StagerError, match=words) as caught:
        control.ask(Running(stager), ("app-start", "web"), 20)
    assert caught.value.message.isprintable()


def test_a_stager_without_an_answer(stager):
    answering(stager, None)
    with pytest.raises(StagerError, match=r"did not answer within 0\.2 s"):
        control.ask(Running(stager), ("app-start", "web"), 0.2)
    requested(stager)
    operation, found = Cancellation(), []

    def stop():
        with governing(operation), contextlib.suppress(Cancelled):
            control.ask(Running(stager), ("app-stop", "web"), 1000, cancellable=True)
            found.append("answered")

    thread = threading.Thread(target=stop)
    thread.start()
    assert requested(stager)["do"] == "stop"
    operation.cancel()
    thread.join(20)
    assert (thread.is_alive(), found) == (False, [])


def test_a_stager_that_ends(stager):
    running = Running(stager)
    thread = threading.Thread(target=lambda: (requested(stager), stager.kill()))
    thread.start()
    with pytest.raises(StagerError, match="has ended"):
        control.ask(running, ("app-start", "web"), 20)
    thread.join()
    until(lambda: not running.alive(), "its end")
    with pytest.raises(StagerError):
        control.ask(running, ("app-start", "web"), 20)


@pytest.mark.parametrize("code", [256, -1, True, "1", 1.5])
def test_exit_codes_that_are_none(stager, code):
    answering(stager, {"exited": code})
    null = os.open("/dev/null", os.O_RDWR)
    try:
        command = control.ForkedCommand(Running(stager), "web", Stdio(null, null, null, relayed=True), b"{}")
        with pytest.raises(StagerError, match="exit code"):
            command.wait_contained(20)
    finally:
        os.close(null)
