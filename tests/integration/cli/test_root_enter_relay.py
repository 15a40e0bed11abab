"""A command in a pod has no descriptor of its caller: real attempts to get at the caller's files and terminal."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli.person import Person
from tests.kit.command import KURMA
from tests.kit.house import both_ways
from tests.kit.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.vm, both_ways]


@pytest.fixture
def enter(kurma: Any, sleeping: Any) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """``enter(SCRIPT, …)``: a shell in a pod, with the caller's descriptors given by the test."""
    sleeping("relay")

    def run(script: str, *options: str, **streams: Any) -> subprocess.CompletedProcess[bytes]:
        words = [*KURMA, "enter", *options, "relay", "--", "sh", "-c", script]
        streams = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE, **streams}
        return subprocess.run(words, env=kurma.environment, check=False, timeout=60, **streams)

    return run


@pytest.fixture
def at_terminal(kurma: Any, sleeping: Any) -> Iterator[Callable[..., Person]]:
    sleeping("relay")
    people: list[Person] = []

    def start(*words: str) -> Person:
        people.append(Person((*KURMA, *words), kurma.environment))
        return people[-1]

    yield start
    for person in people:
        person.close()


def test_the_callers_files_are_out_of_reach(enter: Any, tmp_path: Path) -> None:
    """Neither emptied, nor read, nor written; nor seen by their names."""
    log, source, errors = tmp_path / "log", tmp_path / "source", tmp_path / "errors"
    log.write_text("what was there before\n")
    source.write_text("of the host\n" * 3)
    script = (
        "for number in 0 1 2; do readlink /proc/$$/fd/$number; done;"
        "(: >/proc/self/fd/1); (cat <>/proc/self/fd/1 & sleep 0.1; kill $!); (echo written 1<>/proc/self/fd/0) &"
        "echo end; echo err >&2; head -n 1"
    )
    with log.open("ab") as out, source.open("r+b") as given, errors.open("ab") as err:
        done = enter(script, stdin=given, stdout=out, stderr=err)
        assert done.returncode == 0
    said = log.read_text()
    assert said.startswith("what was there before\n")
    assert said.count("pipe:[") == 3
    assert str(tmp_path) not in said
    assert "end\n" in said
    assert source.read_text() == "of the host\n" * 3


@pytest.mark.full
def test_odd_descriptors(enter: Any, tmp_path: Path) -> None:
    """Write-only or closed standard input, a full device, a reader that goes, bytes that are no text."""
    with open(tmp_path / "out", "wb") as given:
        done = enter("cat; exit 3", stdin=given, stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout, done.stderr) == (3, b"", b"")
    done = enter("cat; exit 3", stdout=subprocess.PIPE, preexec_fn=lambda: os.close(0))
    assert (done.returncode, done.stdout, done.stderr) == (3, b"", b"")
    with open("/dev/full", "wb") as full:
        done = enter("yes", stdout=full)
    assert done.stderr.startswith(b"kurma: cannot write standard output: No space left on device\n")
    assert done.returncode == 125
    read, write = os.pipe()
    os.close(read)
    done = enter("exec yes", stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")
    data = os.urandom(3 << 20)
    done = enter("cat; kill -9 $$", input=data, stdin=None, stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (137, data)


@pytest.mark.full
def test_a_process_left_behind_holds_up_nobody(kurma: Any, enter: Any) -> None:
    """Without a terminal it lives on, as with podman, and has nothing of the caller's."""
    done = enter("sleep 905 & echo over", stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (0, b"over\n")
    assert b"sleep 905" in enter("ps -o args; pkill -f 'sleep 905'", stdout=subprocess.PIPE).stdout


@pytest.mark.full
@pytest.mark.parametrize("flags", ["-it", "-i"])
def test_a_process_left_behind_gets_no_key(kurma: Any, at_terminal: Any, flags: str) -> None:
    """What is typed after the command's end is for the caller's shell alone; the command's session has ended."""
    script = (
        "exec 3<&0; trap '' HUP; (trap '' HUP; while read -r x <&3; do echo $x >>/tmp/stolen; done; "
        "echo mine >&3; exec sleep 906) & echo up; exit 7"
    )
    person = at_terminal("enter", flags, "relay", "--", "sh", "-c", script)
    assert person.wait() == 7
    assert person.settings() == person.before
    person.expect("up\r\n")
    person.type("secret\n")
    time.sleep(0.3)  # for a reader that would be there
    assert b"mine" not in person.screen
    assert os.read(person.slave, 100) == b"secret\n"
    stolen = kurma("enter", "relay", "--", "sh", "-c", "cat /tmp/stolen; true")
    assert "secret" not in stolen.stdout
    if flags == "-it":
        until(lambda: "sleep 906" not in kurma.out("enter", "relay", "--", "ps", "-o", "args"))
    else:
        kurma("enter", "relay", "--", "pkill", "sleep")


def test_a_session_ends_with_its_command(kurma: Any, at_terminal: Any) -> None:
    """Processes that ignore a hang-up as well; a daemon, which has a session of its own, goes on."""
    script = (
        "trap '' HUP; nohup sleep 907 >/dev/null 2>&1 & setsid sleep 908 </dev/null >/dev/null 2>&1 &"
        "until ps -o args | grep -q '^sleep 908'; do sleep 0.02; done; exit 3"
    )
    person = at_terminal("enter", "-t", "relay", "--", "sh", "-c", script)
    assert person.wait() == 3
    left = kurma.out("enter", "relay", "--", "ps", "-o", "args")
    assert "sleep 907" not in left
    assert "sleep 908" in left
