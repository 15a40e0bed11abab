"""The supervisor's loop and its control socket, with real descriptors."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kurma_stager_default.inside.callins.control_client import Asking, Gone, Refused, ask, supervisor_has_ended
from kurma_stager_default.inside.errors import SetupError, complain
from kurma_stager_default.inside.event_loop import Loop
from kurma_stager_default.inside.pod.control_socket import PACKET, Control, Conversation, Refusal
from kurma_stager_default.inside.pod.memory_trimming import Rest


class Served:
    """A control socket whose loop turns in a thread."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "run" / "control")
        self.loop = Loop()
        self.control = Control(self.loop, self.path)
        self._stop, self._wake = os.pipe2(os.O_NONBLOCK)
        self._over = False
        self.loop.watch(self._stop, self._end)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _end(self, _fd: int, _events: int) -> None:
        self._over = True

    def _serve(self) -> None:
        while not self._over:
            self.loop.turn()

    def close(self) -> None:
        os.write(self._wake, b"x")
        self._thread.join()
        self.control.close()
        os.close(self._wake)
        os.close(self._stop)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    one = Served(tmp_path)
    yield one
    one.close()


def test_the_loop_calls_whom_it_concerns_and_no_other() -> None:
    loop = Loop()
    read, write = os.pipe2(os.O_NONBLOCK)
    other, quiet = os.pipe2(os.O_NONBLOCK)
    heard: list[bytes] = []
    loop.watch(read, lambda fd, _: heard.append(os.read(fd, 10)))
    loop.watch(other, lambda _fd, _: heard.append(b"wrong"))
    # In more years than poll(2) can wait for.
    loop.at("far", time.monotonic() + 1e9, lambda: heard.append(b"too soon"))
    os.write(write, b"a")
    loop.turn()
    assert heard == [b"a"]
    loop.unwatch(read)
    loop.unwatch(read)  # twice does no harm
    os.write(write, b"b")
    loop.at("end", time.monotonic(), lambda: heard.append(b"time"))
    loop.turn()
    assert heard == [b"a", b"time"]
    for fd in (read, write, other, quiet):
        os.close(fd)


def test_an_error_does_not_control_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    complain("kurma: it's \x1b[31mred\nkurma: fake\udc80")
    complain("kurma: grün")
    assert capfd.readouterr().err == "kurma: it's \\x1b[31mred\\nkurma: fake\\udc80\nkurma: grün\n"


def test_a_timer_that_another_has_cancelled_or_replaced_does_not_call() -> None:
    loop = Loop()
    called: list[str] = []

    def first() -> None:
        called.append("first")
        loop.cancel("second")
        loop.at("third", time.monotonic() + 60, lambda: called.append("later"))

    now = time.monotonic()
    loop.at("first", now, first)
    loop.at("second", now, lambda: called.append("second"))
    loop.at("third", now, lambda: called.append("third"))
    loop.turn()
    assert called == ["first"]


def test_a_descriptor_unwatched_by_a_callback_of_the_same_turn_is_not_called() -> None:
    loop = Loop()
    pipes = [os.pipe2(os.O_NONBLOCK) for _ in range(2)]
    called: list[int] = []

    def handler(fd: int, _events: int) -> None:
        called.append(fd)
        for read, _ in pipes:
            loop.unwatch(read)

    for read, write in pipes:
        loop.watch(read, handler)
        os.write(write, b"x")
    loop.turn()
    assert len(called) == 1
    for read, write in pipes:
        os.close(read)
        os.close(write)


def test_who_has_worked_rests_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Soon after much, now and then after little; more work puts nothing off, and without work nobody wakes up."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    loop = Loop()
    rest = Rest(loop)
    assert loop._sleep() is None
    rest.begin()
    assert rest.due()
    rest.take()
    assert not rest.due()
    assert loop._sleep() is None

    def wait() -> float:
        """Seconds until the rest that is to come has come."""
        began = now[0]
        while not rest.due():
            sleep = loop._sleep()
            assert sleep is not None
            now[0] += sleep / 1000
            loop.turn()
        return now[0] - began

    rest.worked()
    now[0] += 5
    rest.worked()
    assert wait() == pytest.approx(5, abs=0.01)
    rest.take()
    rest.worked()
    rest.worked(much=True)
    now[0] += 0.6
    rest.worked(much=True)
    rest.worked()
    assert wait() == pytest.approx(0.4, abs=0.01)
    rest.worked()  # what the loop says of each of its turns: nothing comes of that one
    rest.take()
    assert loop._sleep() is None


def test_a_request_is_answered(served: Served) -> None:
    def double(talk: Conversation, request: dict[str, int]) -> None:
        talk.answer({"twice": 2 * request["number"]})
        talk.end()

    served.control.verbs["double"] = double
    assert ask({"do": "double", "number": 21}, path=served.path) == {"twice": 42}
    assert os.stat(served.path).st_mode & 0o777 == 0o600


def test_a_document_goes_beside_the_request_however_long(served: Served) -> None:
    def count(talk: Conversation, _request: dict[str, object]) -> None:
        talk.answer({"bytes": os.fstat(talk.fds[0]).st_size})
        talk.end()

    served.control.verbs["count"] = count
    before = len(os.listdir("/proc/self/fd"))
    assert ask({"do": "count"}, b"x" * (PACKET * 20), served.path) == {"bytes": PACKET * 20}
    time.sleep(0.05)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("request_", "reason", "code"),
    [
        ({"do": "nothing"}, "nothing that this stager does: 'nothing'", 2),
        ({"what": "x"}, "not understood: 'do'", 2),
        ({"do": []}, "not understood", 2),
        ({"do": "refuse"}, "no such app", 7),
        ({"do": "raise"}, "not understood", 2),
    ],
)
def test_what_cannot_be_done_is_said(served: Served, request_: dict[str, object], reason: str, code: int) -> None:
    def refuse(_talk: Conversation, _request: dict[str, object]) -> None:
        raise Refusal("no such app", 7)

    def wrong(_talk: Conversation, request: dict[str, object]) -> None:
        request["missing"]

    served.control.verbs.update({"refuse": refuse, "raise": wrong})
    with pytest.raises(Refused, match=reason) as caught:
        ask(request_, path=served.path)
    assert caught.value.code == code


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b"7", b"x" * (PACKET + 1)])
def test_garbage_harms_nobody(served: Served, data: bytes) -> None:
    def hello(talk: Conversation, _request: dict[str, object]) -> None:
        talk.answer({})
        talk.end()

    served.control.verbs["hello"] = hello
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(served.path)
        client.send(data)
        client.settimeout(5)
        if data:
            assert b"not understood" in client.recv(PACKET)
    assert ask({"do": "hello"}, path=served.path) == {}


def test_a_client_that_does_not_read_is_left(served: Served) -> None:
    ended = threading.Event()

    def flood(talk: Conversation, _request: dict[str, object]) -> None:
        talk.on_end = ended.set
        while talk.answer({"x": "y" * 1000}):
            pass

    served.control.verbs["flood"] = flood
    asking = Asking({"do": "flood"}, path=served.path)
    assert ended.wait(10)
    asking.close()


def test_more_clients_than_are_served_at_once_wait_for_their_turn(served: Served) -> None:
    def hello(talk: Conversation, _request: dict[str, object]) -> None:
        talk.answer({})
        talk.end()

    served.control.verbs["hello"] = hello
    served.control.verbs["stay"] = lambda talk, _request: None
    idle = [Asking({"do": "stay"}, path=served.path) for _ in range(256)]
    late = Asking({"do": "hello"}, path=served.path)
    idle.pop().close()
    assert late.hear() == ({}, [])
    assert late.hear() == (None, [])
    late.close()
    for one in idle:
        one.close()


def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="does not answer"):
        ask({"do": "hello"}, path=str(tmp_path / "nothing"))
    assert not supervisor_has_ended(str(tmp_path / "nothing"))


def test_a_supervisor_that_has_ended(tmp_path: Path) -> None:
    served = Served(tmp_path)
    served.control.verbs["status"] = served.control.verbs["stay"] = lambda talk, _request: None
    assert not supervisor_has_ended(served.path)
    asking = Asking({"do": "stay"}, path=served.path)
    served.close()
    assert supervisor_has_ended(served.path)
    with pytest.raises(Gone):
        ask({"do": "status"}, path=served.path)
    assert asking.hear() == (None, [])
    with pytest.raises(Gone):
        asking.say({"size": None})
    asking.close()
