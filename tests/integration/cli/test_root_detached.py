"""``--detach``: pods that outlive the command that asked for them, and are kurmad's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kit.waiting import until

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


def pods(kurma: Any) -> list[str]:
    return [line.split()[0] for line in kurma.out("list", "--no-legend").splitlines()]


def until_listed(kurma: Any, listing: list[str]) -> None:
    """Until there are just these pods."""
    until(lambda: pods(kurma) == listing)


def ended(kurma: Any, pod: str) -> Any:
    return json.loads(kurma.out("status", "--wait", pod, "--format", "json"))


def test_it_runs_on(kurma: Any) -> None:
    uuid = detached(kurma, "--name", "onward", script="echo hello; sleep 1000")
    assert len(uuid) == 36
    assert state(kurma, "onward") == "running"
    until(lambda: kurma.out("logs", uuid) == "hello\n", "its word")
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
    before = pods(kurma)
    detached(kurma, "--rm", script="sleep 0.2")
    until_listed(kurma, before)


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


def test_what_did_not_come_up_is_told_of(kurma: Any, tmp_path: Path) -> None:
    """In front and in the background, in the same words; with --rm there is nothing to tell of."""
    path = tmp_path / "uuid"
    known = set(pods(kurma))
    for words in (
        ("run",),
        ("run", "-d"),
        ("run", "-d", "--uuid-file", str(path)),
        ("run", "-d", "--rm"),
        ("run", "--rm"),
    ):
        done = kurma(*words, "--net", "default,ip=1.2.3.4", kurma.image)
        assert (done.returncode, done.stdout) == (125, "")
        line, *hints = done.stderr.splitlines()
        assert line.startswith('kurma: network "default" cannot give a pod the address 1.2.3.4')
        left = [pod for pod in json.loads(kurma.out("list", "--format", "json")) if pod["uuid"][:8] not in known]
        if "--rm" in words:
            assert (hints, left) == ([], [])
            continue
        (pod,) = left
        assert pod["state"] == "errored"
        uuid = pod["uuid"]
        assert hints == [f"  hint: the pod is still there: kurma logs {uuid}, kurma rm {uuid}"]
        kurma.out("rm", uuid)


def test_a_program_that_cannot_be_executed(kurma: Any) -> None:
    """It is told with the words and the code of the foreground; the pod stays, and can be started again."""
    done = kurma("run", "--net", "none", "--exec", "/nonexist", kurma.image)
    assert (done.returncode, done.stdout, done.stderr) == (127, "", "kurma: app busybox: /nonexist: not found\n")
    there = kurma("run", "-d", "--net", "none", "--name", "lost", "--exec", "/nonexist", kurma.image)
    assert (there.returncode, there.stderr) == (127, done.stderr)
    assert ended(kurma, "lost")["uuid"] == there.stdout.strip()
    assert state(kurma, "lost") == "stopped"
    again = kurma("start", "-d", "lost")
    assert (again.returncode, again.stdout, again.stderr) == (127, there.stdout, done.stderr)
    # What is over is: nothing has to be waited for.
    kurma.out("rm", "lost")
    before = pods(kurma)
    done = kurma("run", "-d", "--rm", "--net", "none", "--exec", "/etc/passwd", kurma.image)
    assert (done.returncode, done.stdout) == (126, "")
    assert done.stderr == "kurma: app busybox: /etc/passwd: is not executable (mode 0644)\n"
    until_listed(kurma, before)


def test_one_app_of_several_cannot_be_executed(kurma: Any, tmp_path: Path) -> None:
    apps = [
        {"name": name, "image": kurma.image, "app": {"exec": words, "user": "0", "group": "0"}}
        for name, words in (("here", ["/bin/sleep", "1000"]), ("lost", ["ls -l"]))
    ]
    (tmp_path / "pod.json").write_text(json.dumps({"apps": apps, "networks": ["none"]}))
    done = kurma("run", "-d", "--name", "half", "--pod", str(tmp_path / "pod.json"))
    assert (done.returncode, len(done.stdout)) == (0, 37)
    assert done.stderr.startswith("kurma: app lost: ls -l: not found in /")
    assert done.stderr.endswith("; the blanks belong to its name: arguments are words of their own\n")
    assert state(kurma, "half") == "running"


def test_over_and_removed_before_anybody_can_look(kurma: Any) -> None:
    for _ in range(5):
        done = kurma("run", "-d", "--rm", "--net", "none", "--exec", "/bin/true", kurma.image)
        assert (done.returncode, done.stderr, len(done.stdout)) == (0, "", 37)


def test_nothing_is_printed_then(kurma: Any) -> None:
    done = kurma("run", "-d", "--prefix", kurma.image)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0] == "kurma: --prefix: with --detach nothing is printed"


def test_it_needs_a_daemon(kurma: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kurma.environment, "KURMA_HOST", "local")
    for words in (("run", "-d", kurma.image), ("start", "-d", "some"), ("run-prepared", "-d", "some")):
        done = kurma(*words)
        assert (done.returncode, done.stdout) == (2, "")
        assert "belongs to kurmad" in done.stderr
