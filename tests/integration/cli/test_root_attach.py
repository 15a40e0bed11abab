"""``kurma run -it`` and ``kurma attach``: terminals and standard inputs of apps (G9, H8)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli.callins import call_ins
from tests.integration.cli.person import Person
from tests.kit.command import KURMA
from tests.kit.house import both_ways
from tests.kit.waiting import PATIENCE, until

pytestmark = pytest.mark.root

READY = "echo ready; "


@pytest.fixture
def at_terminal(kurma: Any) -> Iterator[Callable[..., Person]]:
    people: list[Person] = []

    def start(*words: str, **more: Any) -> Person:
        people.append(Person((*KURMA, *words), kurma.environment, **more))
        return people[-1]

    yield start
    for person in people:
        person.close()


def run_words(kurma: Any, name: str, *options: str, script: str) -> tuple[str, ...]:
    named = ("run", "--name", name, "--net", "none", *options)
    return (*named, "--exec", "/bin/sh", kurma.image, "--", "-c", script)


@pytest.fixture
def begin(kurma: Any) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """``begin(*WORDS, …)``: ``kurma WORDS`` with pipes."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str, **more: Any) -> subprocess.Popen[bytes]:
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
        started.append(subprocess.Popen([*KURMA, *words], env=kurma.environment, **streams))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def attached(begin: Any) -> Callable[..., subprocess.Popen[bytes]]:
    """``attached(*WORDS, …)``: ``kurma attach WORDS``, once it is."""

    seen: set[int] = set()

    def start(*words: str, **more: Any) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] = begin("attach", *words, **more)
        until(lambda: set(_watching(process.pid)) - seen, "it does not attach")
        seen.update(_watching(process.pid))
        return process

    return start


def _watching(client: int) -> Iterator[int]:
    """Call-ins of it, or of its kurmad, that follow a log."""
    for call_in in call_ins(client):
        with contextlib.suppress(OSError):
            fds = [os.readlink(f"/proc/{call_in}/fd/{fd}") for fd in os.listdir(f"/proc/{call_in}/fd")]
            if any("inotify" in fd for fd in fds):
                yield call_in


@both_ways
def test_run_with_a_terminal(kurma: Any, at_terminal: Any) -> None:
    """The app has a terminal of the right size from its first moment on; it is its console; Ctrl-C is its own."""
    script = (
        "stty size; tty; echo $TERM; stat -c %a:%u:%g $(tty); echo console >/dev/console; trap 'echo int' INT;"
        'echo ready; read line; echo got $line; while ! read x; do :; done; echo "<$x>"; read x; exit 9'
    )
    person = at_terminal(*run_words(kurma, "it", "-it", script=script), rows=31, columns=99)
    person.expect("31 99\r\n/dev/pts/0\r\nxterm\r\n620:0:5\r\nconsole\r\nready\r\n")
    person.wait_raw()
    person.type("words\n")
    person.expect("got words\r\n")
    person.type(b"\x03")
    person.expect("int\r\n")
    person.type(b"\x10\x11")  # no detach keys here; the terminal takes the second for itself
    person.type("still\n")
    person.expect("<\x10still>\r\n")
    person.type(b"\x04")
    assert person.wait() == 9
    assert person.settings() == person.before
    log = kurma.out("logs", "--stream", "stdout", "it")
    assert "console\n" in log.replace("\r", "")
    assert kurma.out("logs", "--stream", "stderr", "it") == ""


def test_a_terminal_in_a_user_namespace(kurma: Any, at_terminal: Any) -> None:
    """The pod's root has it, who is nobody's root outside; a command's, too."""
    script = "stat -c %a:%u:%g $(tty); echo console >/dev/console; echo tty >/dev/tty; read x; echo got $x"
    person = at_terminal(*run_words(kurma, "mapped", "-it", "--userns", "auto", script=script))
    person.expect("620:0:5\r\nconsole\r\ntty\r\n")
    inner = at_terminal("enter", "mapped", "--", "sh", "-c", "stat -c %a:%u:%g $(tty)")
    assert inner.wait() == 0
    inner.expect("620:0:5\r\n")
    person.type("this\n")
    person.expect("got this\r\n")
    assert person.wait() == 0
    assert person.settings() == person.before


@both_ways
def test_run_with_a_terminal_is_resized_and_stopped(kurma: Any, at_terminal: Any) -> None:
    script = "trap 'stty size' WINCH; trap 'echo bye; exit 4' TERM; echo ready; while :; do sleep 0.05; done"
    person = at_terminal(*run_words(kurma, "sized", "-it", script=script))
    person.expect("ready\r\n")
    person.wait_raw()
    person.resize(50, 150)
    person.expect("50 150\r\n")
    person.signal(signal.SIGTERM)
    person.expect("bye\r\n")
    assert person.wait() == 4
    assert person.settings() == person.before


@pytest.mark.full
@both_ways
def test_the_foreground_killed_leaves_pod_and_terminal_as_they_should_be(kurma: Any, at_terminal: Any) -> None:
    person = at_terminal(
        *run_words(kurma, "left", "-it", script="echo ready; while read x; do echo got $x; done; exit 3")
    )
    person.expect("ready\r\n")
    person.wait_raw()
    person.signal(signal.SIGKILL)
    assert person.wait() == -9
    person._until(lambda: person.settings() == person.before, "terminal as it was")
    assert json.loads(kurma.out("status", "left", "--format", "json"))["state"] == "running"
    other = at_terminal("attach", "left", rows=20, columns=70)
    other.wait_raw()
    other.type("again\n")
    other.expect("got again\r\n")
    other.type(b"\x04")
    assert other.wait() == 3
    assert other.settings() == other.before


def test_a_terminal_without_input(kurma: Any) -> None:
    """-t alone: a terminal, and nobody types."""
    done = kurma(*run_words(kurma, "mute", "--rm", "-t", script="test -t 0 -a -t 1 -a -t 2 && echo terminal"))
    assert (done.returncode, done.stdout) == (0, "terminal\n")


@both_ways
def test_a_terminal_without_a_person(kurma: Any) -> None:
    done = kurma(*run_words(kurma, "piped", "--rm", "-it", script="stty -echo; cat; exit 6"), input="one\ntwo\n")
    assert done.returncode == 6
    assert done.stdout.endswith("one\ntwo\n")
    assert "standard input is not a terminal" in done.stderr


@both_ways
def test_attach_and_detach(kurma: Any, at_terminal: Any) -> None:
    """Several at once see all from then on; keys of one's own; the app and the others notice no leaving."""
    script = 'echo early; while read x; do echo "<$x>"; stty size; done'
    first = at_terminal(*run_words(kurma, "shared", "-it", script=script))
    first.expect("early\r\n")
    first.wait_raw()
    second = at_terminal("attach", "shared", rows=40, columns=111)
    second.wait_raw()
    until(lambda: len(set(_watching(second.pid))) >= 1, "it does not attach")
    watching = len(set(_watching(second.pid)))
    third = at_terminal("attach", "shared", "--no-stdin")
    until(lambda: len(set(_watching(third.pid)) | set(_watching(second.pid))) > watching, "it does not attach")
    assert not third.raw()
    second.type("hello\n")
    for person in (first, second):
        person.expect("<hello>\r\n40 111\r\n")
    third.expect("<hello>")
    third.expect("40 111")
    for person in (first, second, third):
        assert b"early" not in person.screen or person is first
    # The first of the keys alone goes through, once it is known that the second does not follow.
    second.type(b"\x10x\n")
    first.expect("<\x10x>")
    second.type(b"\x10\x11")
    assert second.wait() == 0
    assert second.settings() == second.before
    fourth = at_terminal("attach", "shared", "--detach-keys", "a,ctrl-b,c")
    fourth.wait_raw()
    fourth.type(b"aa\x02\n")
    first.expect("<aa\x02>")
    fourth.type(b"aa\x02c")
    assert fourth.wait() == 0
    fifth = at_terminal("attach", "shared", "--detach-keys", "")
    fifth.wait_raw()
    fifth.type(b"\x10\x11\n")
    fifth.expect("<a\x10>")  # the app's terminal takes Ctrl-Q for itself
    fifth.signal(signal.SIGKILL)
    assert fifth.wait() == -9
    fifth._until(lambda: fifth.settings() == fifth.before, "terminal as it was")
    first.type(b"\x04")
    assert first.wait() == 0
    assert third.wait() == 0
    for person in (first, third):
        assert person.settings() == person.before


@pytest.mark.full
@pytest.mark.parametrize("how", ["stop", "rm", "killed"])
def test_the_pods_end_while_many_are_at_it(kurma: Any, at_terminal: Any, how: str) -> None:
    """Each terminal is as it was; who knows the app's exit code ends with it, who does not says why in a line."""
    script = "trap 'exit 4' TERM; echo ready; while :; do sleep 0.05; done"
    first = at_terminal(*run_words(kurma, "many", "-it", script=script))
    first.expect("ready\r\n")
    inside = ("--", "sh", "-c", "echo inside; exec cat")
    others = [at_terminal("attach", "many"), at_terminal("enter", "-it", "many", *inside)]
    others[1].expect("inside\r\n")
    for person in (first, *others):
        person.wait_raw()
        until(lambda person=person: list(call_ins(person.pid)), "it is not in the pod")
    if how == "killed":
        state = next(kurma.state.glob("pods/*/state.json"))
        os.kill(json.loads(state.read_text())["stager"]["pid"], signal.SIGKILL)
    else:
        kurma.out(*(("stop",) if how == "stop" else ("rm", "--force")), "many")
    codes = [person.wait() for person in (first, *others)]
    said = [bytes(person.screen).decode() for person in (first, *others)]
    ended = "kurma: pod many has ended\r\n"
    if how == "stop":
        assert codes == [4, 4, 137]
        assert said == ["ready\r\n", "", f"inside\r\n{ended}"]
    else:
        assert codes == [137, 137, 137]
        assert said[0].endswith("kurma: pod many: the stager ended with status 137\r\n")
        assert said[1:] == [ended, f"inside\r\n{ended}"]
    assert all(person.settings() == person.before for person in (first, *others))


@pytest.mark.full
@both_ways
def test_the_pod_is_killed_before_an_attach_is_answered(kurma: Any, begin: Any) -> None:
    """The supervisor is stopped meanwhile: a call-in that asks it, or is about to, waits."""
    process = begin(*run_words(kurma, "early", script="echo ready; exec sleep 1000"))
    assert process.stdout.readline() == b"ready\n"
    uuid = json.loads(kurma.out("status", "early", "--format", "json"))["uuid"]
    state = Path(kurma.state, "pods", uuid, "state.json")
    stager = json.loads(state.read_text())["stager"]["pid"]
    os.kill(stager, signal.SIGSTOP)
    attach = begin("attach", "early", stdin=subprocess.DEVNULL)
    until(lambda: list(call_ins(attach.pid)), "it is not in the pod")
    os.kill(stager, signal.SIGKILL)
    assert attach.communicate(timeout=PATIENCE) == (b"", b"kurma: pod early has ended\n")
    assert attach.returncode == 137
    assert process.wait(PATIENCE) == 137


@both_ways
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_end_an_attach_and_not_the_app(kurma: Any, at_terminal: Any, attached: Any, number: int) -> None:
    first = at_terminal(*run_words(kurma, "kept", "-it", script="echo ready; read x; echo got $x"))
    first.expect("ready\r\n")
    first.wait_raw()
    second = at_terminal("attach", "kept")
    second.wait_raw()
    second.signal(number)
    assert second.wait() == 128 + number
    assert second.settings() == second.before
    # Nor does one whose input is at its end from the start: there is still somebody who types.
    job = attached("kept", stdin=subprocess.DEVNULL)
    third = at_terminal("attach", "kept")
    third.wait_raw()
    third.hang_up()
    began = time.monotonic()
    first.type("on\n")
    first.expect("got on\r\n")
    assert first.wait() == 0
    # Nobody is waited for who has gone.
    assert time.monotonic() - began < 1.5
    assert job.communicate(timeout=PATIENCE)[0].endswith(b"got on\r\n")
    assert job.returncode == 0


@both_ways
def test_input_of_several_ends_with_the_last(kurma: Any, begin: Any, attached: Any) -> None:
    """As with podman. Who just leaves ends nothing."""
    process = begin(*run_words(kurma, "fed", "-i", script="echo ready; exec cat"))
    assert process.stdout.readline() == b"ready\n"
    one, two = attached("fed"), attached("fed")

    def says(writer: Any, text: bytes) -> None:
        writer.stdin.write(text)
        writer.stdin.flush()
        assert process.stdout.readline() == text

    says(process, b"from run\n")
    process.stdin.close()
    process.stdin = None
    says(one, b"from one\n")
    one.stdin.close()
    one.stdin = None
    leaver = attached("fed")
    leaver.kill()
    leaver.wait()
    time.sleep(0.2)
    says(two, b"from two\n")
    assert process.poll() is None
    two.stdin.close()
    two.stdin = None
    assert process.wait(PATIENCE) == 0
    for other in (one, two):
        out, _ = other.communicate(timeout=PATIENCE)
        assert other.returncode == 0
        assert out.endswith(b"from one\nfrom two\n"), out


@both_ways
def test_a_megabyte_into_an_app_and_out_of_it(kurma: Any) -> None:
    """An app that reads slowly is waited for; all of it comes through."""
    data = os.urandom(1 << 20)
    process = subprocess.run(
        [*KURMA, *run_words(kurma, "big", "--rm", "-i", script="sleep 0.3; exec cat")],
        input=data, capture_output=True, env=kurma.environment, timeout=60, check=False,
    )  # fmt: skip
    assert (process.returncode, process.stdout) == (0, data)


@both_ways
def test_streams_and_the_exit_code(kurma: Any, begin: Any, attached: Any) -> None:
    """Also of who has not read it all by the time that the app, and the pod with it, ends."""
    script = "trap 'seq 1 50000; echo err >&2; exit 42' USR1; echo up; while :; do sleep 0.05; done"
    process = begin(*run_words(kurma, "streams", script=script), stdout=subprocess.DEVNULL)
    until(lambda: kurma("logs", "streams").stdout == "up\n", "up")
    one = attached("streams", stdin=subprocess.DEVNULL)
    kurma.out("kill", "-s", "USR1", "streams")
    until(lambda: kurma("logs", "streams").stderr == "err\n", "the app's last word")
    time.sleep(0.3)
    out, err = one.communicate(timeout=PATIENCE)
    assert (one.returncode, err) == (42, b"err\n")
    assert out == b"".join(b"%d\n" % number for number in range(1, 50001))
    assert process.wait(PATIENCE) == 42


@pytest.mark.full
@both_ways
def test_a_flood_reaches_who_reads_and_is_not_held_up_by_who_does_not(
    kurma: Any, begin: Any, attached: Any
) -> None:
    script = "mkfifo /tmp/go; echo up; read x </tmp/go; seq 1 300000; echo 'the end'; read x </tmp/go; exit 5"
    process = begin(*run_words(kurma, "flood", script=script), stdout=subprocess.DEVNULL)
    until(lambda: kurma("logs", "flood").stdout == "up\n", "up")
    reader, deaf = (attached("flood", stdin=subprocess.DEVNULL) for _ in range(2))
    go = ("enter", "flood", "--", "sh", "-c", "echo >/tmp/go")
    kurma.out(*go)
    # Nobody empties the pipe of the second one's call-in; the app comes to its next step all the same.
    until(lambda: kurma.out("logs", "--tail", "1", "flood") == "the end\n", "the app's next step")
    read = b""
    while not read.endswith(b"the end\n"):
        read += os.read(reader.stdout.fileno(), 1 << 16)
    assert read == b"".join(b"%d\n" % number for number in range(1, 300001)) + b"the end\n"
    began = time.monotonic()
    kurma.out(*go)
    assert process.wait(PATIENCE) == 5
    assert time.monotonic() - began < 10
    assert reader.wait(PATIENCE) == 5
    # Its call-in was let go with the pod; what that had passed on waits for its reader, the rest is in the log.
    deaf.stdout.read()
    assert deaf.wait(PATIENCE) == 137


def test_what_cannot_be_attached_to(kurma: Any, sleeping: Any, tmp_path: Path) -> None:
    process = sleeping("plain")
    done = kurma("attach", "plain/nobody")
    assert (done.returncode, done.stderr.splitlines()[0]) == (125, "kurma: pod plain has no app nobody")
    assert kurma("attach", "no-such-pod").returncode == 125
    done = kurma("attach", "plain", "--detach-keys", "ctrl-1")
    assert done.returncode == 2
    assert "'ctrl-1' is not a key" in done.stderr
    kurma.out("stop", "plain", "--force")
    process.communicate()
    done = kurma("attach", "plain")
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        125,
        "kurma: cannot attach to pod plain: it is errored",
    )


@pytest.mark.full
def test_apps_that_do_not_run(kurma: Any, attached: Any, tmp_path: Path) -> None:
    def app(name: str, script: str, **notes: str) -> dict[str, Any]:
        body = {"exec": ["/bin/sh", "-c", script], "user": "0", "group": "0"}
        annotations = [{"name": "kurma.io/" + key, "value": value} for key, value in notes.items()]
        return {"name": name, "image": kurma.image, "app": body, "annotations": annotations}

    apps = [
        app("open", "echo up; cat", stdin="true"),
        app("tty", "tty; cat", terminal="true"),
        app("over", "true"),
        app("again", "sleep 0.3; exit 1", restart="always"),
    ]
    file = tmp_path / "pod.json"
    file.write_text(json.dumps({"apps": apps, "networks": ["none"]}))
    process = kurma.popen("run", "--name", "four", "--pod", str(file))
    until(lambda: "up" in kurma("logs", "four/open").stdout, "up")
    until(lambda: kurma.out("logs", "four/tty") == "/dev/pts/0\n", "the terminal's name")
    until(lambda: json.loads(kurma.out("app", "list", "four", "--format", "json"))[2]["exited"], "its end")
    done = kurma("attach", "four/over")
    assert (done.returncode, done.stderr) == (125, "kurma: app over has ended\n")

    def restarting() -> bool:
        done = kurma("attach", "four/again")
        if done.returncode == 1:
            return False  # it ran, and ended while attached
        if done.stderr == "kurma: app again has not been started yet\n":
            return False  # just about to
        assert (done.returncode, done.stderr) == (
            125, "kurma: app again does not run just now: it is about to be started again\n"
        )  # fmt: skip
        return True

    until(restarting, "no pause between two executions was met")
    leaver = attached("four/open")
    leaver.kill()
    leaver.wait()
    time.sleep(0.2)
    # The standard input of an app that nobody had in the foreground; its end ends the app, not who has left.
    done = kurma("attach", "four/open", input="typed\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "typed\n", "")
    done = kurma("attach", "four/tty", input="at a terminal\n")
    assert (done.returncode, done.stdout) == (0, "at a terminal\nat a terminal\n")
    late = ("app", "add", "four", "--name", "late", "--exec", "/bin/sh", kurma.image)
    kurma.out(*late[:3], "-it", "--start", *late[3:], "--", "-c", "tty; read x; echo $x")
    done = kurma("attach", "four/late", input="to who came late\n")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "to who came late")
    assert kurma.out("logs", "four/late").startswith("/dev/pts/")
    kurma.out("app", "rm", "four", "late")
    done = kurma(*late[:3], "--annotation", "kurma.io/stdin=no", *late[3:])
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        2, "kurma: app late: its annotation kurma.io/stdin is 'no'"
    )  # fmt: skip
    assert "late" not in kurma.out("app", "list", "four")
    kurma.out("stop", "four", "--force")
    process.communicate()
    apps = [app("tty", "true", terminal="yes")]
    file.write_text(json.dumps({"apps": apps, "networks": ["none"]}))
    done = kurma("run", "--pod", str(file))
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        2, "kurma: app tty: its annotation kurma.io/terminal is 'yes'"
    )  # fmt: skip


READS = 'echo up; while read x; do echo "<$x>"; done; echo over; exec sleep 1000'


def _reads(kurma: Any, begin: Any, name: str, stdin: str, *options: str) -> None:
    """A pod in which an app reads lines; its standard input is kept as the annotation says."""
    begin(*run_words(kurma, name, script="exec sleep 1000"), stdin=subprocess.DEVNULL)
    until(lambda: f'"{name}"' in kurma.out("list", "--filter", "state=running", "--format", "json"), "the pod")
    words = ("--annotation", f"kurma.io/stdin={stdin}", "--exec", "/bin/sh", *options)
    kurma.out("app", "add", "--start", "--name", "reader", *words, name, kurma.image, "--", "-c", READS)


def test_input_ends_with_the_first_client_or_never(kurma: Any, begin: Any) -> None:
    """``once``: its end is the first client's; later ones give none. ``keep``: no client ends it."""
    for name, stdin in (("once", "once"), ("keeper", "keep")):
        _reads(kurma, begin, name, stdin)
        for line in ("one", "two"):
            process = subprocess.Popen(
                [*KURMA, "attach", f"{name}/reader"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=kurma.environment,
            )  # fmt: skip
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{line}\n".encode())
            process.stdin.close()
            if stdin == "keep":
                assert process.stdout.readline() == f"<{line}>\n".encode()
            elif line == "one":
                assert process.stdout.read(len("<one>\nover\n")) == b"<one>\nover\n"
            process.kill()
            process.wait()
            process.stdout.close()
        expected = "up\n<one>\nover\n" if stdin == "once" else "up\n<one>\n<two>\n"
        assert kurma.out("logs", f"{name}/reader") == expected
        kurma.out("rm", "--force", name)


def test_output_of_an_app_without_a_log(kurma: Any, begin: Any, attached: Any) -> None:
    """It is shown to clients while they are attached, and kept nowhere."""
    _reads(kurma, begin, "mute", "keep", "--log-path", "")
    one = attached("mute/reader")
    for line in (b"first", b"second"):
        one.stdin.write(line + b"\n")
        one.stdin.flush()
        assert one.stdout.readline() == b"<%s>\n" % line
    one.kill()
    one.wait()
    assert kurma.out("logs", "mute") == ""
    kurma.out("rm", "--force", "mute")
