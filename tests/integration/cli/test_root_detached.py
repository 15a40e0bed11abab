"""``--detach``: pods that outlive the command that asked for them, and are kurmad's."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

pytestmark = [pytest.mark.root, pytest.mark.parametrize("way", ["kurmad"], indirect=True)]


def detached(kurma: Any, *options: str, script: str) -> str:
    """Runs it; its UUID."""
    words = ("run", "-d", "--net", "none", *options, "--exec", "/bin/sh", kurma.image, "--", "-c", script)
    done = kurma(*words)
    assert (done.returncode, done.stderr) == (0, "")
    (uuid,) = done.stdout.split()
    return str(uuid)


def state(kurma: Any, pod: str) -> str:
    return str(json.loads(kurma.out("status", pod, "--format", "json"))["state"])


def ended(kurma: Any, pod: str) -> Any:
    return json.loads(kurma.out("status", "--wait", pod, "--format", "json"))


def test_it_runs_on(kurma: Any) -> None:
    uuid = detached(kurma, "--name", "onward", script="echo hello; sleep 1000")
    assert len(uuid) == 36
    assert state(kurma, "onward") == "running"
    assert kurma.out("logs", uuid) == "hello\n"
    done = kurma("restart", "-d", "onward")
    assert (done.returncode, done.stdout) == (0, f"{uuid}\n")
    assert state(kurma, "onward") == "running"
    kurma.out("stop", "--force", "onward")
    done = kurma("start", "-d", "onward")
    assert (done.returncode, done.stdout) == (0, f"{uuid}\n")
    assert state(kurma, "onward") == "running"


def test_its_end_is_known(kurma: Any) -> None:
    uuid = detached(kurma, script="exit 7")
    found = ended(kurma, uuid)
    assert (found["state"], found["exitCode"]) == ("stopped", 7)


def test_prepared_before(kurma: Any) -> None:
    words = ("prepare", "--net", "none", "--exec", "/bin/sh", kurma.image, "--", "-c", "exit 8")
    uuid = kurma.out(*words).strip()
    assert kurma.out("run-prepared", "-d", uuid) == f"{uuid}\n"
    assert ended(kurma, uuid)["exitCode"] == 8


def test_removed_at_its_end(kurma: Any) -> None:
    uuid = detached(kurma, "--rm", script="sleep 0.2")
    end = time.monotonic() + 20
    while uuid[:8] in kurma.out("list"):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_standard_input_is_open_for_those_who_attach(kurma: Any) -> None:
    detached(kurma, "-i", "--name", "open", script='read x; echo "<$x>"; exit 5')
    done = kurma("attach", "open", input="typed\n")
    assert (done.returncode, done.stdout) == (5, "<typed>\n")


def test_nobodys_input_is_empty(kurma: Any) -> None:
    uuid = detached(kurma, script='read x; echo "<$x>$?"')
    ended(kurma, uuid)
    assert kurma.out("logs", uuid) == "<>1\n"


def test_what_does_not_come_up(kurma: Any) -> None:
    """It is told, and with --rm nothing is left."""
    before = kurma.out("list", "--no-legend")
    done = kurma("run", "-d", "--rm", "--net", "none", "-v", "/nowhere/at/all:/x", kurma.image)
    assert (done.returncode, done.stdout) == (125, "")
    assert "/nowhere/at/all" in done.stderr
    assert kurma.out("list", "--no-legend") == before


def test_nothing_is_printed_then(kurma: Any) -> None:
    done = kurma("run", "-d", "--prefix", kurma.image)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0] == "kurma: --prefix: with --detach nothing is printed"


def test_it_needs_a_daemon(kurma: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kurma.environment, "KURMA_HOST", "local")
    for words in (("run", "-d", kurma.image), ("start", "-d", "some"), ("run-prepared", "-d", "some")):
        done = kurma(*words)
        assert (done.returncode, done.stdout) == (2, "")
        assert "belongs to a daemon" in done.stderr
