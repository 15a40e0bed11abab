"""What stands for a pod stays as large as it was, whatever its apps do: measured from outside (H2, H5)."""

from __future__ import annotations

import json
import os
import socket
import time

import pytest

from tests.kit.images import shell
from tests.kit.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.full]

_ROUND = 5000


def private(pid):
    """Kilobytes that are this process's alone."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Private_"))


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def first_of(pod):
    """The host's PID of the pod's PID 1."""
    with open(f"/proc/{pod.process.pid}/task/{pod.process.pid}/children") as file:
        for pid in file.read().split():
            with open(f"/proc/{pid}/comm") as comm:
                if comm.read() == "kurma-init\n":
                    return int(pid)
    raise AssertionError("no PID 1")


def zombies_of(pid):
    """Children of that process that have ended and were not waited for."""
    found = []
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        for child in file.read().split():
            with open(f"/proc/{child}/stat") as stat:
                if stat.read().rpartition(")")[2].split()[0] == "Z":
                    found.append(child)
    return found


def test_ten_thousand_orphans(pods):
    """PID 1 reaps them all; neither it nor the stager grows, and none is left."""
    script = f"""
        orphans() {{ i=0; while [ $i -lt $1 ]; do (: &) ; i=$((i+1)); done; }}
        orphans 200; echo warm; read go < /dev/shm/go
        orphans {_ROUND}; orphans {_ROUND}; echo done; exec sleep 1000
    """
    pod = pods({"main": shell("mkfifo /dev/shm/go; " + script)}).started()
    pod.wait_log("warm")
    first, stager = first_of(pod), pod.process.pid
    before = [(private(pid), descriptors(pid)) for pid in (first, stager)]
    assert pod.run("sh", "-c", "echo go > /dev/shm/go")[0] == 0
    pod.wait_log("done", timeout=60)
    until(lambda: not zombies_of(first))
    after = [(private(pid), descriptors(pid)) for pid in (first, stager)]
    for (was, fds), (now, fds_now) in zip(before, after, strict=True):
        assert fds_now == fds
        assert now - was <= 64
    assert pod.stop() == 0


def settled(pid):
    """Kilobytes and descriptors, once it has come to rest after its work."""
    time.sleep(2)
    return private(pid), descriptors(pid)


class Asking:
    """The supervisor's own socket, from outside: call-ins by the thousand would take their time."""

    def __init__(self, pod):
        self._path = f"/proc/{pod.process.pid}/root/run/kurma/control"

    def __call__(self, request, fds=(), *, wait=True):
        """The first answer; the conversation ends with it. :param wait: for the supervisor to end it."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
            asking.settimeout(10)
            asking.connect(self._path)
            socket.send_fds(asking, [json.dumps(request).encode()], list(fds))
            data, given, _, _ = socket.recv_fds(asking, 65536, 8)
            for fd in given:
                os.close(fd)
            if wait:
                assert asking.recv(1) == b""
            answer = json.loads(data)
            assert "error" not in answer
            return answer


def test_executions_by_the_hundred(pods):
    """H5: each with a root, pipes, a log, handlers; what is kept of them is bounded, on the disk, too."""
    handlers = {"eventHandlers": [{"name": name, "exec": ["/bin/true"]} for name in ("pre-start", "post-stop")]}
    pod = pods({"main": {**shell("echo $$; exit 3"), **handlers}, "other": shell("exec sleep 1000")}).started()
    ask, stager, first = Asking(pod), pod.process.pid, first_of(pod)

    def again(count):
        for _ in range(count):
            ask({"do": "stop", "app": "main"})  # once it has ended
            ask({"do": "start", "app": "main"})
        ask({"do": "stop", "app": "main"})

    again(15)
    before = [settled(pid) for pid in (stager, first)]
    again(80)
    after = [settled(pid) for pid in (stager, first)]
    for (was, fds), (now, fds_now) in zip(before, after, strict=True):
        assert fds_now == fds
        assert now - was <= 192
    main = pod.app()
    assert main["instance"] == 95
    assert len(main["earlier"]) == 10
    assert sorted(os.listdir(f"{pod.directory}/pod/logs")) == sorted(
        [one["log"] for one in (main, *main["earlier"])] + ["other.log"]
    )
    assert len(os.listdir(f"{pod.directory}/pod/apps/main")) == 1
    assert zombies_of(stager) == zombies_of(first) == []
    assert pod.stop() == 0


def test_conversations_by_the_thousand(pods):
    """G9: whoever asks, follows or is attached leaves nothing in the supervisor that he spoke to."""
    stdin, writer = os.pipe()
    pod = pods({"main": shell("exec sleep 1000")}, interactive="main", stdin=stdin).started()
    os.close(stdin)
    ask, stager = Asking(pod), pod.process.pid

    def talk(count):
        for _ in range(count):
            ask({"do": "status"})
            read, write = os.pipe()
            assert ask({"do": "attach", "app": "main"}, [read], wait=False)["stdin"]
            os.close(read)
            os.close(write)

    talk(200)
    was, fds = settled(stager)
    talk(2000)
    now, fds_now = settled(stager)
    assert fds_now == fds
    assert now - was <= 128
    os.close(writer)
    assert pod.stop() == 0


def test_no_signal_of_an_app_ends_pid_1(pods):
    """All of them but the requests to end, as root of the pod, many times."""
    script = """
        n=0; while [ $n -lt 50 ]; do
            for s in $(seq 1 64); do case $s in 2|15|30) ;; *) kill -$s 1 2>/dev/null;; esac; done
            n=$((n+1))
        done
        grep -E '^(SigQ|State|ShdPnd|SigPnd)' /proc/1/status; (true &); sleep 0.1; echo alive
        exec sleep 1000
    """
    pod = pods({"main": shell(script)}).started()
    text = pod.wait_log("alive")
    first = first_of(pod)
    assert "zombie" not in text
    with open(f"/proc/{first}/status") as file:
        status = dict(line.split(":", 1) for line in file if ":" in line)
    # What it does not wait for is dropped, not kept in a queue.
    assert int(status["ShdPnd"], 16) == 0
    assert pod.run("true")[0] == 0
    assert pod.stop() == 0
