"""Streams of other clients than kurma itself, by frames; and clients that are slow, or gone."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kurma_core.api.wire import ERROR, INPUT, LOG, MESSAGE, OUTPUT, FrameReader, frame
from kurma_core.errors import HostError, Interrupted
from kurma_core.models.streams import Stdio
from tests.docs.pages import find_page
from tests.integration.daemon.test_root_events import watching
from tests.kit.house import text_of
from tests.kit.waiting import until

pytestmark = pytest.mark.root

_API = find_page("api.md")


class Raw:
    """A client that speaks frames."""

    def __init__(self, daemon, path, body=None):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(20)
        self.socket.connect(daemon.socket)
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: kurmad\r\nConnection: Upgrade\r\nUpgrade: kurma-stream/1\r\n"
        if body is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        self.socket.sendall(head.encode() + b"\r\n" + (b"" if body is None else data))
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self.socket.recv(65536)
        head, _, rest = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 "), answer
        self._reader = FrameReader(rest)
        self.got = {OUTPUT: b"", ERROR: b"", LOG: b""}

    def say(self, **message):
        self.socket.sendall(frame(MESSAGE, json.dumps(message).encode()))

    def type(self, data):
        self.socket.sendall(frame(INPUT, data))

    def until(self, *kinds, output=None, log=None):
        """The next message of that kind; or None, once that stands in the output or the log."""
        while True:
            for kind, payload in self._reader.frames():
                if kind != MESSAGE:
                    self.got[kind] += payload
                elif (message := json.loads(payload))["is"] in kinds:
                    return message
            if output is not None and output in self.got[OUTPUT]:
                return None
            if log is not None and log in self.got[LOG]:
                return None
            data = self.socket.recv(65536)
            assert data, self.got
            self._reader.feed(data)

    def close(self):
        self.socket.close()


def running(daemon, client, script, **options):
    """A pod that kurmad runs."""
    record = client.prepare(daemon.house.request(script, **options))
    return client.launch(record.uuid).uuid


def threads(daemon):
    return len(os.listdir(f"/proc/{daemon.process.pid}/task"))


def memory(daemon):
    """Kilobytes that it has for itself; not of files, which others may have mapped, or may not."""
    text = Path(f"/proc/{daemon.process.pid}/smaps_rollup").read_text()
    return sum(int(count) for count in re.findall(r"^Anonymous: +(\d+)", text, re.MULTILINE))


def test_the_example_of_the_documentation(kurmad, ask, tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", _API.read_text(), re.DOTALL)
    (tmp_path / "enter.py").write_text(code)
    daemon = kurmad()
    pod = running(daemon, ask(daemon), "sleep 1000")

    def enter(*command, **more):
        words = [sys.executable, "-I", str(tmp_path / "enter.py"), daemon.socket, *command]
        return subprocess.run(words, capture_output=True, timeout=30, **more)

    data = os.urandom(1 << 20)
    done = enter(pod, "sh", "-c", "cat; echo done >&2; exit 7", input=data)
    assert (done.returncode, done.stdout, done.stderr) == (7, data, b"done\n")
    done = enter(pod, "/no/such/program", input=b"")
    assert done.returncode == 127
    done = enter("nobody", "true", input=b"")
    assert (done.returncode, done.stderr) == (1, b"no pod nobody\n")


def test_descriptors_of_clients_are_dropped(kurmad, ask):
    """With requests of every kind, with frames, and on connections that go on: kurmad has as many as before."""
    daemon = kurmad()
    pod = running(daemon, ask(daemon), "sleep 1000")

    def held():
        return len(os.listdir(f"/proc/{daemon.process.pid}/fd"))

    ask(daemon).pods()
    before = held()
    null = os.open("/dev/null", os.O_RDWR)
    kept = socket.socket(socket.AF_UNIX)
    kept.settimeout(20)
    kept.connect(daemon.socket)
    for _ in range(20):
        socket.send_fds(kept, [b"GET /v1/pods HTTP/1.1\r\nHost: kurmad\r\n\r\n"], [null] * 200)
        answer = http.client.HTTPResponse(kept, method="GET")
        answer.begin()
        assert answer.status == 200
        assert answer.read()
    client = Raw(daemon, f"/v1/pods/{pod}/enter", {"exec": ["cat"]})
    client.until("input")
    for _ in range(20):
        socket.send_fds(client.socket, [frame(INPUT, b"x")], [null] * 200)
    client.until(output=b"x" * 20)
    assert held() < before + 100
    refused = Raw(daemon, f"/v1/pods/{pod}/enter", {"exec": ["cat"]})
    socket.send_fds(refused.socket, [frame(MESSAGE, b'{"is": "stdio", "terminal": false}')], [null] * 3)
    assert "unknown message 'stdio'" in refused.until("error")["error"]["message"]
    for connection in (kept, client, refused):
        connection.close()
    until(lambda: held() <= before, "its descriptors")
    os.close(null)


def test_a_terminal_in_frames(kurmad, ask):
    daemon = kurmad()
    pod = running(daemon, ask(daemon), "sleep 1000")
    script = "trap 'stty size' WINCH; stty size; while :; do sleep 0.05; done"
    query = "terminal=true&rows=33&columns=101"
    client = Raw(daemon, f"/v1/pods/{pod}/enter?{query}", {"exec": ["sh", "-c", script], "tty": True})
    client.until(output=b"33 101\r\n")
    client.say(**{"is": "resize", "rows": 44, "columns": 111})
    client.until(output=b"44 111\r\n")
    client.type(b"\x03")
    assert client.until("result")["value"] == {"exitCode": 130}
    client.close()


def test_a_pod_in_front_in_frames(kurmad, ask):
    """What is typed, the terminal's size, what comes of it in its log, and how it ends."""
    daemon = kurmad()
    template = daemon.house.template({"main": 'stty size; read x; echo "<$x>"; exit 9'})
    body = {"pod": template, "interactive": "main", "terminal": "main"}
    client = Raw(daemon, "/v1/pods/run?terminal=true&rows=20&columns=70", body)
    uuid = client.until("prepared")["pod"]["uuid"]
    client.until("running")
    client.type(b"typed\n")
    record = client.until("result")["value"]
    assert (record["uuid"], record["state"], record["exitCode"]) == (uuid, "stopped", 9)
    assert b"20 70" in client.got[LOG]
    assert b"<typed>" in client.got[LOG]
    client.close()


def test_who_goes_away_before_the_pod_runs_has_it_given_up(kurmad, ask):
    daemon = kurmad()
    body = {"pod": daemon.house.template({"main": "sleep 1000"}), "ephemeral": True}
    client = Raw(daemon, "/v1/pods/run?hold=true", body)
    uuid = client.until("prepared")["pod"]["uuid"]
    assert uuid in daemon.house.uuids()
    client.close()
    until(lambda: uuid not in daemon.house.uuids(), "the pod's removal")


def test_who_goes_away_ends_what_was_entered(kurmad, ask):
    daemon = kurmad()
    pod = running(daemon, ask(daemon), "sleep 1000")
    client = Raw(
        daemon,
        f"/v1/pods/{pod}/enter",
        {"exec": ["sh", "-c", "trap 'echo told >/tmp/told; exit' TERM; echo up; while :; do sleep 0.05; done"]},
    )
    client.until(output=b"up\n")
    client.close()
    until(lambda: daemon.house.enter(pod, "cat", "/tmp/told")[1] == "told\n", "SIGTERM")


@pytest.mark.full
def test_who_does_not_read_harms_nobody(kurmad, ask):
    """The pod writes and ends, is taken down, others get all of its log; what kurmad keeps meanwhile is little."""
    daemon = kurmad()
    client = ask(daemon)
    # kurmad imports modules for its first pod. The measured growth must not include them.
    first = Raw(daemon, "/v1/pods/run", {"pod": daemon.house.template({"main": "seq 1 1000"})})
    uuid = first.until("prepared")["pod"]["uuid"]
    assert first.until("result")["value"]["exitCode"] == 0
    assert text_of(client.logs(uuid)).count("\n") == 1000
    first.close()
    before = memory(daemon)
    silent = Raw(daemon, "/v1/pods/run", {"pod": daemon.house.template({"main": "seq 1 800000"})})
    uuid = silent.until("prepared")["pod"]["uuid"]
    deaf = Raw(daemon, f"/v1/pods/{uuid}/logs?follow=true")
    record = client.wait(uuid)
    assert (record.state, record.exit_code) == ("stopped", 0)
    assert text_of(client.logs(uuid)).count("\n") == 800_000
    assert memory(daemon) - before < 12_000
    assert silent.until("result")["value"]["exitCode"] == 0
    assert len(silent.got[LOG]) > 5_000_000
    silent.close()
    deaf.close()


def test_who_follows_a_silent_pod_and_goes_leaves_nothing(kurmad, ask):
    daemon = kurmad()
    client = ask(daemon)
    pod = running(daemon, client, "echo up; sleep 1000")
    until(lambda: list(client.logs(pod)), "its line")
    time.sleep(0.2)  # threads of what was asked before end
    before = threads(daemon)
    followers = [Raw(daemon, f"/v1/pods/{pod}/logs?follow=true") for _ in range(5)]
    for follower in followers:
        follower.until(log=b"up")
    assert threads(daemon) > before
    for follower in followers:
        follower.close()
    until(lambda: threads(daemon) <= before, "the end of its threads")
    assert client.pod(pod).state == "running"


@pytest.mark.full
def test_more_follow_than_a_host_has_watches(kurmad, ask):
    """They take one inotify instance of the 128 that all of root's programs have."""
    daemon = kurmad()
    client = ask(daemon)
    pod = running(daemon, client, "until [ -e /tmp/go ]; do sleep 0.05; done; echo up; sleep 1000")
    before = watching(daemon)
    followers = [Raw(daemon, f"/v1/pods/{pod}/logs?follow=true") for _ in range(140)]
    until(lambda: watching(daemon) == before + 1, "the watch")
    until(lambda: threads(daemon) >= 140, "all being served")
    assert daemon.house.enter(pod, "touch", "/tmp/go")[0] == 0
    for follower in followers:
        follower.until(log=b"up")
    assert watching(daemon) == before + 1
    for follower in followers:
        follower.close()
    until(lambda: watching(daemon) == before, "no watch any more")


@pytest.fixture
def null():
    fd = os.open("/dev/null", os.O_RDWR)
    yield Stdio(fd, fd, fd)
    os.close(fd)


@pytest.mark.parametrize("ephemeral", [True, False])
def test_a_signal_before_it_runs(kurmad, ask, null, ephemeral):
    """It is given up, on either side, and told as in process."""
    daemon = kurmad()

    def prepared(record):
        signal.raise_signal(signal.SIGTERM)

    request = daemon.house.request("sleep 1000", ephemeral=ephemeral)
    with pytest.raises(Interrupted) as caught:
        ask(daemon).run(request, null, print, prepared=prepared)
    assert caught.value.number == signal.SIGTERM
    found = daemon.house.client.pods()
    assert [one.state for one in found] in ([[]] if ephemeral else [["errored"], ["prepared"]])
    assert not any(daemon.house.state_of(one)["steps"] for one in found)


def test_what_fails_here_before_it_runs(kurmad, ask, null):
    """A UUID that cannot be written, say: the pod is never started."""
    daemon = kurmad()

    def prepared(record):
        raise HostError("no room for it")

    with pytest.raises(HostError, match="no room for it"):
        ask(daemon).run(daemon.house.request("sleep 1000"), null, print, prepared=prepared)
    time.sleep(0.3)
    (record,) = daemon.house.client.pods()
    assert record.state == "prepared"
    assert daemon.house.state_of(record)["steps"] == []
