"""``kurma enter -it`` at a real terminal (H8): every manner that people expect of it, seen from both ends."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integration.cli.callins import call_ins
from tests.integration.cli.person import Person
from tests.kit.command import KURMA
from tests.kit.waiting import PATIENCE, until

pytestmark = pytest.mark.root


def sleeping_pod(kurma: Any, name: str) -> subprocess.Popen[str]:
    words = ("--name", name, "--net", "none", "--exec", "/bin/sh", kurma.image)
    process: subprocess.Popen[str] = kurma.popen("run", *words, "--", "-c", "echo up; exec sleep 1000")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


@pytest.fixture(scope="module")
def pod(kurma_command: Any) -> Iterator[str]:
    """A pod that sleeps, for all of these tests; its name."""
    process = sleeping_pod(kurma_command, "tty-pod")
    yield "tty-pod"
    kurma_command("rm", "--force", "tty-pod")
    process.communicate()


@pytest.fixture
def at_terminal(kurma_command: Any) -> Iterator[Callable[..., Person]]:
    """``at_terminal(*WORDS, …)``: ``kurma WORDS`` in front at a terminal."""
    people: list[Person] = []

    def start(*words: str, **more: Any) -> Person:
        people.append(Person((*KURMA, *words), kurma_command.environment, **more))
        return people[-1]

    yield start
    for person in people:
        person.close()


def entered(at_terminal: Callable[..., Person], *command: str, **more: Any) -> Person:
    person = at_terminal("enter", "-it", "tty-pod", "--", *(command or ("sh",)), **more)
    person.wait_raw()
    return person


def inside(kurma: Any, *command: str) -> str:
    """What a command in the pod says, without a terminal."""
    done = kurma("enter", "-i", "tty-pod", "--", *command)
    return str(done.stdout)


def gone(kurma: Any, marker: str) -> None:
    until(lambda: marker not in inside(kurma, "ps", "-o", "args"), lambda: f"{marker} still runs")


def in_front(kurma: Any, command: str) -> None:
    """Waits until it has been executed, or goes on, as the job in front: only then are keys its own."""

    def runs() -> bool:
        lines = [line.split(None, 1) for line in inside(kurma, "ps", "-o", "stat,args").splitlines()]
        return any(line[1:] == [command] and not line[0].startswith("T") for line in lines)

    until(runs, command)


def test_a_shell_with_a_terminal_of_its_own(kurma_command: Any, pod: str, at_terminal: Any) -> None:
    person = entered(at_terminal, rows=33, columns=121)
    person.expect("# ")
    person.type(
        "tty; stty size; echo $TERM; test -t 0 -a -t 1 -a -t 2 && echo all-three; stat -c %a:%u:%g $(tty)\n"
    )
    person.expect("/dev/pts/")
    person.expect("33 121\r\n")
    person.expect("xterm\r\n")
    person.expect("all-three\r\n")
    person.expect("620:0:5\r\n")
    person.type("printf '\\033[1;31mred\\033[0m\\n'\n")
    person.expect(b"\x1b[1;31mred\x1b[0m\r\n")
    person.type("exit 7\n")
    assert person.wait() == 7
    assert person.settings() == person.before


def test_job_control(kurma_command: Any, pod: str, at_terminal: Any) -> None:
    """Ctrl-C, Ctrl-Z, Ctrl-\\ and Ctrl-D do inside what they do anywhere; the client notices none of them."""
    person = entered(at_terminal)
    person.expect("# ")
    person.type("sleep 771\n")
    in_front(kurma_command, "sleep 771")
    person.type(b"\x1a")
    person.expect("Stopped")
    person.type("jobs; echo jobs-end\n")
    assert b"sleep 771" in person.expect("jobs-end\r\n")
    person.type("fg\n")
    person.expect("sleep 771")
    in_front(kurma_command, "sleep 771")
    person.type(b"\x03")
    person.expect("# ")
    person.type("echo after $?\n")
    person.expect("after 130\r\n")
    person.type("sleep 772\n")
    in_front(kurma_command, "sleep 772")
    person.type(b"\x1c")
    person.expect("# ")
    person.type("echo quit $?\n")
    person.expect("quit 131\r\n")
    person.type(b"\x04")
    assert person.wait() == 0
    assert person.settings() == person.before


def test_a_plain_user_has_the_terminal(kurma_command: Any, pod: str, at_terminal: Any) -> None:
    person = at_terminal(
        "exec", "-it", "--user", "alice", "tty-pod", "--", "sh", "-c", "stat -c %U $(tty); echo ok >/dev/tty"
    )
    assert person.wait() == 0
    person.expect("alice\r\nok\r\n")


def test_the_window_changes_its_size(kurma_command: Any, pod: str, at_terminal: Any) -> None:
    script = 'trap "stty size" WINCH; echo ready; while :; do sleep 0.05; done'
    person = entered(at_terminal, "sh", "-c", script)
    person.expect("ready\r\n")
    person.resize(50, 160)
    person.expect("50 160\r\n")
    person.type(b"\x03")
    assert person.wait() == 130
    assert person.settings() == person.before


def test_a_resize_that_only_the_client_is_told_of(kurma_command: Any, pod: str, at_terminal: Any) -> None:
    """A program that runs it without a session of its own sends it SIGWINCH; it is for the command."""
    person = entered(at_terminal, "sh", "-c", 'trap "stty size" WINCH; echo ready; while :; do sleep 0.05; done')
    person.expect("ready\r\n")
    person.suspend()
    person.resize(44, 99)
    person.signal(signal.SIGWINCH)
    person.signal(signal.SIGCONT)
    person.expect("44 99\r\n")
    person.type(b"\x03")
    assert person.wait() == 130


def _callin(client: int) -> int:
    return until(lambda: list(call_ins(client)), "a call-in")[0]


def test_a_megabyte_pasted_comes_through_whole(kurma_command: Any, pod: str, at_terminal: Any) -> None:
    """Raw inside, so that the tty changes nothing: all of it in, all of it back at the same time."""
    person = entered(at_terminal, "sh", "-c", "stty raw -echo; echo ready; exec head -c 1048576")
    person.expect("ready")
    person.expect("\n")
    pasted = random.Random(4).randbytes(1 << 20)
    person.type(pasted)
    assert person.wait() == 0
    assert bytes(person.screen[-len(pasted) :]) == pasted
    assert person.settings() == person.before


@pytest.mark.full
def test_a_megabyte_of_lines_is_echoed_and_read(kurma_command: Any, pod: str, at_terminal: Any) -> None:
    person = entered(at_terminal, "sh", "-c", "echo ready; wc")
    person.expect("ready\r\n")
    # The kernel keeps 4 KiB of echoes that nobody has read yet, and drops what is more: so who looks at his echo
    # waits for it. What is read is all there in any case.
    lines, echo = (b"x" * 127 + b"\n") * 16, (b"x" * 127 + b"\r\n") * 16
    for _ in range(64):
        person.type(lines)
        assert person.expect(echo) == b""
    person.type(lines * 448 + b"\x04")
    assert person.wait() == 0
    person.expect(b"8192      8192   1048576")


@pytest.mark.full
def test_typing_without_reading_does_not_wedge_it(kurma_command: Any, pod: str, at_terminal: Any) -> None:
    """The person's side is full in both directions; then it is read, and everything is there."""
    person = entered(at_terminal, "sh", "-c", "stty raw -echo; echo ready; exec cat")
    person.expect("ready")
    person.expect("\n")
    seen = len(person.screen)
    pasted = random.Random(5).randbytes(1 << 20)
    count = person.type_blindly(pasted)
    assert count > 10_000
    person.type(pasted[count:])
    person.expect(pasted[-64:])
    assert bytes(person.screen[seen:]) == pasted
    person.signal(signal.SIGTERM)
    person.wait()


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_to_the_client_ends_it_and_restores_the_terminal(
    kurma_command: Any, pod: str, at_terminal: Any, number: int
) -> None:
    marker = f"sleep 81{number}"
    person = entered(at_terminal, "sh", "-c", f"{marker}; true")
    person.signal(number)
    assert person.wait() == 128 + number
    assert person.settings() == person.before
    gone(kurma_command, marker)


def test_the_terminal_is_restored_after_kill_9_of_the_client(
    kurma_command: Any, pod: str, at_terminal: Any
) -> None:
    person = entered(at_terminal, "sh", "-c", "sleep 821; true")
    person.signal(signal.SIGKILL)
    assert person.wait() == -signal.SIGKILL
    person._until(lambda: person.settings() == person.before, "terminal as it was")
    gone(kurma_command, "sleep 821")


@pytest.mark.full
def test_kill_9_of_the_client_while_a_megabyte_is_pasted(kurma_command: Any, pod: str, at_terminal: Any) -> None:
    """What is typed stands in every buffer on the way, and nobody reads what comes back."""
    person = entered(at_terminal, "sh", "-c", "stty raw -echo; echo ready; cat; sleep 825")
    person.expect("ready")
    assert person.type_blindly(bytes(1 << 20)) > 10_000
    person.signal(signal.SIGKILL)
    person._until(lambda: person.settings() == person.before, "terminal as it was")
    assert person.wait() == -signal.SIGKILL
    gone(kurma_command, "sleep 825")


@pytest.mark.full
def test_the_terminal_is_restored_after_kill_9_of_the_call_in(
    kurma_command: Any, pod: str, at_terminal: Any
) -> None:
    person = entered(at_terminal, "sh", "-c", "sleep 822; true")
    os.kill(_callin(person.pid), signal.SIGKILL)
    assert person.wait() == 137
    assert person.settings() == person.before
    gone(kurma_command, "sleep 822")


def test_a_hangup_ends_the_command(kurma_command: Any, pod: str, at_terminal: Any) -> None:
    person = entered(at_terminal, "sh", "-c", "sleep 823; true")
    person.hang_up()
    gone(kurma_command, "sleep 823")


@pytest.mark.full
def test_a_command_deaf_to_hangups_is_killed(kurma_command: Any, pod: str, at_terminal: Any) -> None:
    person = entered(at_terminal, "sh", "-c", "trap '' HUP TERM; echo ready; while :; do sleep 0.824; done")
    person.expect("ready")
    person.signal(signal.SIGTERM)
    assert person.wait() == 143
    assert person.settings() == person.before
    gone(kurma_command, "sleep 0.824; done")


def test_the_pods_end_restores_the_terminal(kurma_command: Any, at_terminal: Any) -> None:
    """The call-in is killed with the pod's cgroup; the client puts the terminal back."""
    process = sleeping_pod(kurma_command, "brief")
    person = at_terminal("enter", "-it", "brief", "--", "sh")
    person.wait_raw()
    kurma_command.out("rm", "--force", "brief")
    assert person.wait() == 137
    assert person.settings() == person.before
    person.expect("kurma: pod brief has ended\r\n")
    process.communicate()


def test_a_command_that_is_killed_is_no_end_of_its_pod(kurma_command: Any, pod: str) -> None:
    done = kurma_command("enter", "-i", "tty-pod", "--", "sh", "-c", "kill -9 $$")
    assert (done.returncode, done.stderr) == (137, "")


def test_stopped_and_continued(kurma_command: Any, pod: str, at_terminal: Any) -> None:
    """A shell that had the terminal meanwhile has put its own settings there."""
    import termios

    person = entered(at_terminal)
    person.expect("# ")
    person.suspend()
    termios.tcsetattr(person.slave, termios.TCSANOW, person.before)
    person.resize(40, 100)
    person.signal(signal.SIGCONT)
    person.wait_raw()
    person.type("until [ \"$(stty size)\" = '40 100' ]; do sleep 0.05; done; echo as'' large\n")
    person.expect("as large\r\n")
    person.type("exit\n")
    assert person.wait() == 0
    assert person.settings() == person.before


def test_what_cannot_be_run_leaves_the_terminal_alone(kurma_command: Any, pod: str, at_terminal: Any) -> None:
    person = at_terminal("enter", "-t", "tty-pod", "--", "no-such")
    assert person.wait() == 127
    person.expect("kurma: app busybox: no-such: not found in ")
    assert person.settings() == person.before


def test_a_terminal_by_itself_and_none_with_i(kurma_command: Any, pod: str, at_terminal: Any) -> None:
    for flags, said in (((), "/dev/pts/0\r\n"), (("-t",), "/dev/pts/0\r\n"), (("-i",), "not a tty\r\n")):
        person = at_terminal("enter", *flags, "tty-pod", "--", "tty")
        person.wait()
        person.expect(said)
        assert person.settings() == person.before
    with open("/dev/null", "w") as null:
        person = at_terminal("enter", "tty-pod", "--", "sh", "-c", "tty >&2", redirected={1: null.fileno()})
        person.wait()
        person.expect("not a tty\r\n")


def test_output_elsewhere_with_the_keyboard_here(
    kurma_command: Any, pod: str, at_terminal: Any, tmp_path: Any
) -> None:
    with open(tmp_path / "out", "wb") as out:
        person = at_terminal(
            "enter", "-t", "tty-pod", "--", "sh", "-c", "read x; echo got $x", redirected={1: out.fileno()}
        )
        person.wait_raw()
        person.type("this\n")
        assert person.wait() == 0
    assert (tmp_path / "out").read_bytes() == b"this\r\ngot this\r\n"
    assert person.settings() == person.before


def test_a_loop_reads_its_own_input(kurma_command: Any, pod: str, tmp_path: Any) -> None:
    """What a command did not read of the caller's file is left there."""
    source = tmp_path / "lines"
    source.write_text("one\ntwo\nthree\n")
    loop = f'while read line; do {" ".join(KURMA)} enter tty-pod -- sh -c "exec <&-; echo $line"; done'
    with source.open() as given:
        done = subprocess.run(
            ["sh", "-c", loop], stdin=given, stdout=subprocess.PIPE, env=kurma_command.environment, check=False
        )
    assert done.stdout == b"one\ntwo\nthree\n"


def test_without_a_terminal_here_input_is_typed(kurma_command: Any, pod: str) -> None:
    """As with podman: a warning, and on it goes. The end of the input is typed in too."""
    done = kurma_command(
        "enter", "-t", "tty-pod", "--", "sh", "-c", "cat; test -t 0 && exit 5", input="line\nhalf"
    )
    assert (done.returncode, done.stdout) == (5, "line\nhalfline\nhalf")
    assert "standard input is not a terminal" in done.stderr


def test_nobody_reads_the_output(kurma_command: Any, pod: str) -> None:
    words = [*KURMA, "enter", "-t", "tty-pod", "--", "sh", "-c", "while :; do echo 825; done"]
    process = subprocess.Popen(
        words,
        env=kurma_command.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.wait(PATIENCE) == 141
    assert process.stderr is not None
    process.stderr.close()
    gone(kurma_command, "echo 825")


def test_the_persons_terminal_is_not_in_the_pod(kurma_command: Any, pod: str, at_terminal: Any) -> None:
    """No descriptor, no controlling terminal, no name of it: nothing can be put into its input (TIOCSTI)."""
    person = entered(at_terminal)
    person.expect("# ")
    shell = _first_child(_callin(person.pid))
    outer = os.stat(os.ttyname(person.slave))
    with open(f"/proc/{shell}/stat") as file:
        assert os.major(int(file.read().rpartition(")")[2].split()[4])) == os.major(outer.st_rdev)
    found = [os.stat(f"/proc/{shell}/fd/{name}") for name in os.listdir(f"/proc/{shell}/fd")]
    assert outer.st_dev not in [status.st_dev for status in found]
    person.type("exit\n")
    assert person.wait() == 0


def _first_child(pid: int) -> int:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return int(file.read().split()[0])
