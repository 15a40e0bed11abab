"""``--detach``: pods that outlive the command that asked for them, and are kurmad's."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli.person import Person
from tests.kit.command import KURMA
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


def test_start_and_restart_follow_the_way_the_pod_was_made(kurma: Any) -> None:
    script = ("--net", "none", "--exec", "/bin/sh", kurma.image, "--", "-c", "echo hello; exit 4")
    # Made by run -d or create: in the background.
    behind = detached(kurma, "--name", "behind", script="sleep 1000")
    made = kurma.out("create", "--name", "made", *script).strip()
    kurma.out("stop", "-t", "0s", "behind")
    done = kurma("start", "behind", "made")
    assert (done.returncode, done.stdout) == (0, f"{behind}\n{made}\n"), done.stderr
    assert state(kurma, "behind") == "running"
    assert ended(kurma, "made")["exitCode"] == 4
    done = kurma("restart", "-t", "0s", "behind")
    assert (done.returncode, done.stdout, state(kurma, "behind")) == (0, f"{behind}\n", "running"), done.stderr
    for words in (("start", "-a"), ("start", "-ai"), ("restart", "--attach")):
        done = kurma(*words, "made")
        assert (done.returncode, done.stdout) == (4, "hello\n"), done.stderr
    # Made by run without -d: in the foreground.
    assert kurma("run", "--name", "here", *script).returncode == 4
    for command in ("start", "restart"):
        done = kurma(command, "here")
        assert (done.returncode, done.stdout) == (4, "hello\n"), done.stderr
        done = kurma(command, "-d", "here")
        assert (done.returncode, len(done.stdout)) == (0, 37), done.stderr
        ended(kurma, "here")
    for words in (("-a", "-d", "here"), ("-a", "here", "made"), ("--prefix", "made")):
        assert kurma("start", *words).returncode == 2


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
    before = kurma.out("list", "--quiet")
    done = kurma("run", "-d", "--rm", "--net", "none", "-v", "/nowhere/at/all:/x", kurma.image)
    assert (done.returncode, done.stdout) == (125, "")
    assert "/nowhere/at/all" in done.stderr
    assert kurma.out("list", "--quiet") == before


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
        assert hints == [f"  hint: the pod is still there: kurma start {uuid[:8]}, kurma rm {uuid[:8]}"]
        kurma.out("rm", uuid)


def test_of_pods_that_want_one_port_at_once_one_gets_it(kurma: Any, tmp_path: Path) -> None:
    """W9, 19: the others name the pod that has it; none stays prepared, which ``gc`` would leave alone."""
    detached(kurma, "--rm", script="true")  # from here on, stagers wait
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    words = ("-p", f"127.0.0.1:{port}:80", "--net", "default", "--exec", "/bin/sleep", kurma.image, "--", "1000")
    try:
        _of_pods_one_gets_the_port(kurma, tmp_path, port, words)
    finally:
        kurma("rm", "--force", "--all", "--yes")
        kurma.out("network", "rm", "default")


def _of_pods_one_gets_the_port(kurma: Any, tmp_path: Path, port: int, words: tuple[str, ...]) -> None:
    known = set(pods(kurma))
    for more in ((), ("--rm",), ("--uuid-file",)):
        commands = [
            kurma.popen(
                "run", "-d", *more, *([str(tmp_path / str(number))] if "--uuid-file" in more else ()), *words
            )
            for number in range(3)
        ]
        told = [one.communicate()[1] for one in commands]
        assert sorted(one.returncode for one in commands) == [0, 125, 125], told
        listed = [pod for pod in json.loads(kurma.out("list", "--format", "json")) if pod["uuid"][:8] not in known]
        (up,) = [pod for pod in listed if pod["state"] == "running"]
        losers = [pod["uuid"][:8] for pod in listed if pod["state"] == "errored"]
        assert len(listed) == len(losers) + 1
        assert not (more and losers)
        for line, hint in (text.splitlines() for text in told if text):
            assert line == f"kurma: port 127.0.0.1:{port}/tcp of the host leads to pod {up['name']} already"
            assert hint.startswith(f"  hint: choose another port, or: kurma stop {up['uuid'][:8]}")
            named = [uuid for uuid in losers if f"still there: kurma start {uuid}, kurma rm {uuid}" in hint]
            assert len(named) == ("still there" in hint)
        kurma.out("rm", "--force", up["uuid"], *losers)
        known = set(pods(kurma))


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


# --- an app that dies at once, at a terminal (19.3) ---


class Terminal:
    """Runs commands at a terminal, each to its end."""

    def __init__(self, kurma: Any) -> None:
        self._kurma = kurma

    def __call__(self, *words: str) -> list[str]:
        """What is on the screen then, line by line."""
        person = Person((*KURMA, *words), self._kurma.environment, columns=200)
        try:
            assert person.wait() == 0, bytes(person.screen)
            # A progress bar erases its line.
            return person.screen.decode().replace("\r", "").rpartition("\x1b[K")[2].splitlines()
        finally:
            person.close()

    def told(self, name: str, *words: str) -> list[str]:
        """What is said of its end, without the UUID, after ``run`` and after ``start``."""
        uuid, *said = self("run", "-d", "--net", "none", "--name", name, *words)
        assert len(uuid) == 36
        # On a busy machine the app may end too late for the command.
        started = until(lambda: self._again(name), "a word of the end")
        assert said in ([], started)
        return started

    def _again(self, name: str) -> list[str]:
        self._kurma("wait", name)
        return self("start", "-d", name)[1:]


@pytest.fixture
def terminal(kurma: Any) -> Terminal:
    return Terminal(kurma)


def script(kurma: Any, text: str, *options: str) -> tuple[str, ...]:
    return (*options, "--exec", "/bin/sh", kurma.image, "--", "-c", text)


def test_its_last_lines_the_reason_and_a_hint(kurma: Any, terminal: Terminal) -> None:
    text = "for n in 1 2 3 4 5; do echo $n; done; printf 'bind: \\033[31mAddress already in use' >&2; exit 3"
    assert terminal.told("dies", *script(kurma, text)) == [
        "kurma: app busybox has ended: exit code 3; its last lines:",
        *(f"  | {number}" for number in (2, 3, 4, 5)),
        "  | bind: \\x1b[31mAddress already in use",
        "  hint: another program of its network namespace has that port; all of its output: kurma logs dies",
    ]


def test_the_signal_that_ended_it(kurma: Any, terminal: Terminal) -> None:
    for name in ("SEGV", "KILL"):
        told = terminal.told(f"dies-{name.lower()}", *script(kurma, f"kill -{name} $$"))
        assert told[0] == f"kurma: app busybox has ended: killed by SIG{name}"
        assert told[-1] == f"  hint: all of its output: kurma logs dies-{name.lower()}"


def test_too_little_memory(kurma: Any, terminal: Terminal) -> None:
    told = terminal.told("dies-oom", *script(kurma, "exec tail /dev/zero", "--memory", "16Mi"))
    assert told[0].startswith("kurma: app busybox has ended: killed for want of memory")
    assert told[-1] == "  hint: --memory gives it more; all of its output: kurma logs dies-oom"


def test_a_shell_without_a_terminal(kurma: Any, terminal: Terminal) -> None:
    told = terminal.told("dies-shell", "--exec", "/bin/sh", kurma.image)
    assert told[0] == "kurma: app busybox has ended: exit code 0"
    assert "-it gives it a terminal" in told[1]


def test_one_that_its_restart_policy_starts_again(kurma: Any, terminal: Terminal) -> None:
    words = ("run", "-d", "--net", "none", "--name", "dies-again", "--restart", "always")
    until(lambda: terminal(*words, *script(kurma, "exit 4"))[1:] or kurma.out("rm", "-f", "dies-again"), "its end")
    kurma.out("rm", "-f", "dies-again")


def test_removed_at_its_end_at_once(kurma: Any, terminal: Terminal) -> None:
    def told() -> list[str]:
        return terminal("run", "-d", "--rm", "--net", "none", "--name", "gone", *script(kurma, "exit 4"))[1:]

    said = until(told, "its end")
    # It may be removed before the command looks, or after.
    assert said[0] in (
        "kurma: pod gone has ended and was removed (--rm)",
        "kurma: app busybox has ended: exit code 4",
    )
    assert said[1] == "  hint: without --rm, the pod stays, and kurma logs prints its output"


def test_a_pod_that_runs_on_says_nothing(kurma: Any, terminal: Terminal) -> None:
    assert len(terminal("run", "-d", "--net", "none", "--name", "lives", *script(kurma, "sleep 1000"))) == 1


def test_nothing_is_printed_then(kurma: Any) -> None:
    done = kurma("run", "-d", "--prefix", kurma.image)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0] == "kurma: --prefix: a pod in the background prints nothing"


def test_it_needs_a_daemon(kurma: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kurma.environment, "KURMA_HOST", "local")
    for words in (("run", "-d", kurma.image), ("start", "-d", "some"), ("run-prepared", "-d", "some")):
        done = kurma(*words)
        assert (done.returncode, done.stdout) == (2, "")
        assert "cannot run in the background" in done.stderr
