"""``kurma stats`` and ``kurma top``, as people see them, in process and by way of a daemon."""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

import pytest

from tests.integration.cli.person import Person
from tests.kit.command import KURMA
from tests.kit.house import both_ways

pytestmark = pytest.mark.root

BUSY = "echo up; while :; do :; done"


@both_ways
def test_figures_and_processes(kurma: Any, sleeping: Any) -> None:
    sleeping("busy", script=BUSY)
    sleeping("idle")
    rows = [line.split() for line in kurma.out("stats", "--interval", "0.1", "--no-stream").splitlines()]
    assert rows[0][:3] == ["UUID", "NAME", "CPU"]
    assert {row[1] for row in rows[1:]} == {"busy", "idle"}
    first, second = json.loads(kurma.out("top", "--interval", "0.6", "--no-stream", "--format", "json"))
    assert (first["name"], second["name"]) == ("busy", "idle")
    assert first["cpuPercent"] > second["cpuPercent"] >= 0
    assert first["apps"]["busybox"]["cpuPercent"] > second["apps"]["busybox"]["cpuPercent"]
    (row,) = kurma.out("top", "idle/busybox", "--no-legend").splitlines()
    assert row.split()[2:4] == ["busybox", "root"]
    assert row.endswith("  sleep 1000")
    done = kurma("stats", "idle", "nobody")
    assert (done.returncode, "no pod nobody" in done.stderr) == (125, True)


@both_ways
def test_a_view_that_lives_and_ends(kurma: Any, sleeping: Any) -> None:
    """At a terminal, in place; in a pipe, in rows; each with the pod, or when nobody looks any more."""
    sleeping("seen")
    words = (*KURMA, "stats", "--interval", "0.2")
    environment = {**kurma.environment, "TERM": "xterm"}
    forever = Person(words, environment, columns=120)
    named = Person((*words, "seen"), environment, columns=120)
    piped = kurma.popen("stats", "--interval", "0.2", "--no-legend", "seen")
    closed = subprocess.Popen(words, env=kurma.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        for person in (forever, named):
            assert b"UUID" in person.expect("seen")
            assert b"%" not in person.expect("\x1b[2F")
            assert b"%" in person.expect("\x1b[2F")
        assert closed.stdout is not None
        closed.stdout.readline()
        closed.stdout.close()
        assert (closed.wait(20), closed.stderr and closed.stderr.read()) == (141, b"")
        assert piped.stdout is not None
        assert [piped.stdout.readline().split()[1] for _ in range(2)] == ["seen", "seen"]
        kurma.out("stop", "--force", "seen")
        assert named.wait() == 0
        assert piped.wait(20) == 0
        # Who looks at all of them goes on.
        time.sleep(0.5)
        forever.expect("\x1b[1F")
        forever.type("\x03")
        assert forever.wait() == 130
        assert forever.screen.endswith(b"^C\r\n")
        assert b"Traceback" not in forever.screen
    finally:
        for person in (forever, named):
            person.close()
        for process in (piped, closed):
            process.kill()
            process.communicate()
