"""``kurma enter`` at a terminal, in process and by way of kurmad: it makes no difference."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integration.cli.callins import call_ins
from tests.integration.cli.person import Person
from tests.kit.command import KURMA
from tests.kit.house import both_ways

pytestmark = [pytest.mark.root, both_ways]


@pytest.fixture
def entered(kurma: Any, sleeping: Any) -> Iterator[Callable[..., Person]]:
    """``entered(*WORDS)``: ``kurma enter -it POD WORDS`` at a terminal."""
    sleeping("inner")
    people: list[Person] = []

    def start(*words: str) -> Person:
        command = (*KURMA, "enter", "-it", "inner", "--", *words)
        people.append(Person(command, kurma.environment, rows=33, columns=99))
        people[-1].wait_raw()
        return people[-1]

    yield start
    for person in people:
        person.close()


def test_size_keys_and_exit_code(entered: Any) -> None:
    person = entered(
        "sh", "-c", "trap 'stty size' WINCH; trap 'echo int; exit 9' INT; stty size; while :; do sleep 0.05; done"
    )
    person.expect("33 99\r\n")
    person.resize(50, 150)
    person.expect("50 150\r\n")
    person.type(b"\x03")
    person.expect("int\r\n")
    assert person.wait() == 9
    assert person.settings() == person.before


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_end_it(entered: Any, number: int) -> None:
    person = entered("sh", "-c", "echo up; while :; do sleep 0.05; done")
    person.expect("up\r\n")
    person.signal(number)
    assert person.wait() == 128 + number
    assert person.settings() == person.before


@pytest.mark.full
def test_a_killed_client_leaves_the_terminal_as_it_was(entered: Any) -> None:
    person = entered("sh", "-c", "echo up; while :; do sleep 0.05; done")
    person.expect("up\r\n")
    (call_in,) = call_ins(person.pid)
    person.signal(signal.SIGKILL)
    assert person.wait() == -9
    person._until(lambda: person.settings() == person.before, "terminal as it was")
    person._until(lambda: not os.path.exists(f"/proc/{call_in}"), "end of the call-in")


@pytest.mark.full
def test_a_megabyte_each_way(entered: Any) -> None:
    person = entered(
        "sh",
        "-c",
        "stty raw -echo; echo go; head -c 1048576 | wc -c; yes 0123456789 | head -c 1048576; echo; echo over",
    )
    person.expect("go\n")
    person.type(b"x" * (1 << 20))
    person.expect("1048576\n")
    assert len(person.expect("over\n")) == (1 << 20) + 1
    assert person.wait() == 0


def test_without_a_terminal(kurma: Any, sleeping: Any) -> None:
    """Bytes as they are, two streams, and the exit codes."""
    sleeping("plain")
    data = "".join(f"{number}\n" for number in range(100_000))
    done = kurma("enter", "plain", "--", "sh", "-c", "cat; echo sorry >&2; exit 255", input=data)
    assert (done.returncode, done.stdout, done.stderr) == (255, data, "sorry\n")
    done = kurma("enter", "plain", "--", "/no/such", stdin=None)
    assert done.returncode == 127
    done = kurma("enter", "plain", "--", "/etc/passwd")
    assert done.returncode == 126


def test_mistyped_names(kurma: Any, sleeping: Any) -> None:
    """19.3: of pods, apps, images and networks; each has the name that was meant."""
    sleeping("seen")
    for words, hint in (
        (("stop", "sene"), "did you mean seen? see: kurma list"),
        (("logs", "seem"), "did you mean seen?"),
        (("rmi", "example.com/busybxo"), "did you mean example.com/busybox?"),
        (("image", "show", "busybxo"), "did you mean example.com/busybox?"),
        (("exec", "seen/busibox", "true"), "its apps: busybox"),
        (("run", "--rm", "--net", "defalt", kurma.image), "there are: "),
        (("network", "show", "defalt"), "there are: "),
        (("run", "--rm", "--stager", "defualt", kurma.image), "default"),
        (("run", "--rm", "--renderer", "overly", kurma.image), "overlay"),
    ):
        done = kurma(*words)
        assert done.returncode in (2, 125)
        assert len(done.stderr.splitlines()) == 2, done.stderr
        assert hint in done.stderr.splitlines()[1], done.stderr


def test_all_pods(kurma: Any, sleeping: Any) -> None:
    """19.3: stop -a and rm -a."""
    sleeping("first")
    sleeping("second")
    assert kurma("run", "--name", "over", "--net", "none", kurma.image).returncode == 3
    done = kurma("rm", "-a")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "kurma: rm: --all removes over",
        "  hint: --yes removes them without a question",
    ]
    kurma.out("rm", "-ay")
    assert {pod["name"] for pod in kurma.json("list")} == {"first", "second"}
    kurma.out("stop", "-a", "-t", "0s")
    assert kurma.json("ps") == []
    kurma.out("rm", "--all", "--yes")
    assert kurma.json("list") == []


def test_the_words_of_podman(kurma: Any, sleeping: Any) -> None:
    """19.3: aliases, POD/APP, and a program without --."""
    sleeping("seen")
    done = kurma("exec", "-e", "A=b", "seen/busybox", "sh", "-c", "echo $A $0 -l; exit 5", "zero")
    assert (done.returncode, done.stdout) == (5, "b zero -l\n")
    assert kurma.out("exec", "--app", "busybox", "seen", "echo", "--help", "--") == "--help --\n"
    assert kurma("exec", "seen").returncode == 2
    ended = kurma("run", "--name", "over", "--net", "none", "--exec", "/bin/echo", kurma.image, "first", "--rm")
    assert ended.stdout == "first --rm\n"
    image = kurma.out("pull", kurma.image).strip()
    rows = [line.split() for line in kurma.out("ps", "--no-legend").splitlines()]
    assert [row[1] for row in rows] == ["seen"]
    pods = kurma.json("ls")
    assert [pod["name"] for pod in kurma.json("ps")] == ["seen"]
    assert kurma.json("ps", "-a") == kurma.json("list", "-a") == pods
    assert kurma.out("ps", "-q").split() == [pod["uuid"] for pod in pods if pod["name"] == "seen"]
    assert image in kurma.out("images", "-aq").split()
    found = json.loads(kurma.out("inspect", "seen", "example.com/busybox", "default"))
    assert [one.get("name") or one["image"]["name"] for one in found] == ["seen", "example.com/busybox", "default"]
    assert json.loads(kurma.out("image", "inspect", image))[0] == found[1]
    assert json.loads(kurma.out("network", "inspect", "default"))[0] == found[2]
    done = kurma("inspect", "seen", "nothing", "default")
    assert done.returncode == 125
    assert [one["name"] for one in json.loads(done.stdout)] == ["seen", "default"]
    assert done.stderr.startswith("kurma: cannot inspect nothing: ")
    assert kurma("inspect", "--type", "image", "seen").returncode == 125
