"""What stands for a pod stays as large as it was, whatever its apps do: measured from outside (H2, H5)."""

from __future__ import annotations

import os
import time

import pytest

pytestmark = [pytest.mark.root, pytest.mark.slow]

_ROUND = 5000


def sh(script: str) -> dict[str, object]:
    return {"exec": ["/bin/sh", "-c", script], "user": "0", "group": "0"}


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
    pod = pods({"main": sh("mkfifo /dev/shm/go; " + script)}).started()
    pod.wait_log("warm")
    first, stager = first_of(pod), pod.process.pid
    before = [(private(pid), descriptors(pid)) for pid in (first, stager)]
    assert pod.run("sh", "-c", "echo go > /dev/shm/go")[0] == 0
    pod.wait_log("done", timeout=60)
    end = time.monotonic() + 5
    while zombies_of(first) and time.monotonic() < end:
        time.sleep(0.02)
    assert zombies_of(first) == []
    after = [(private(pid), descriptors(pid)) for pid in (first, stager)]
    for (was, fds), (now, fds_now) in zip(before, after, strict=True):
        assert fds_now == fds
        assert now - was <= 64
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
    pod = pods({"main": sh(script)}).started()
    text = pod.wait_log("alive")
    first = first_of(pod)
    assert "zombie" not in text
    with open(f"/proc/{first}/status") as file:
        status = dict(line.split(":", 1) for line in file if ":" in line)
    # What it does not wait for is dropped, not kept in a queue.
    assert int(status["ShdPnd"], 16) == 0
    assert zombies_of(first) == []
    assert pod.run("true")[0] == 0
    assert pod.stop() == 0
