"""Requests are limited in size, number and time, and whoever is slow, or talks nonsense, harms nobody else."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kurma_core.api.describe import openapi
from kurma_core.client import Settings, in_process
from kurma_core.client.local.managers import Managers
from kurma_core.client.remote.http import Connection
from kurma_core.daemon.http import exchange
from kurma_core.daemon.http.caller_rights import Peer, Quota
from kurma_core.daemon.http.dispatch import Dispatcher
from kurma_core.daemon.http.exchange import Exchange
from kurma_core.daemon.http.server import Server
from kurma_core.daemon.metrics import Metrics
from kurma_core.errors import BusyError
from tests.kit.waiting import until

ASKED = b"GET /v1/version HTTP/1.1\r\nHost: x\r\n\r\n"
Handle = Callable[[Exchange], None]
Start = Callable[..., "Running"]


class Running:
    """A server on a socket of its own. :param slow: what it does before it answers ``/slow``."""

    def __init__(self, path: Path, most: int | None, slow: Handle) -> None:
        self.path = str(path)
        config: Any = SimpleNamespace()
        daemon: Any = SimpleNamespace(client=in_process(Managers(Settings(), config)))
        dispatcher = Dispatcher(daemon, Metrics())

        def handle(one: Exchange) -> None:
            (slow if one.path == "/slow" else dispatcher)(one)

        self.server = daemon.server = Server(handle) if most is None else Server(handle, most)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.path)
        self.server.listen(listener)
        self.server.start()

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self.path)
        connection.settimeout(10)
        return connection

    def say(self, data: bytes) -> bytes:
        """All that is answered, until the server closes the connection."""
        with self.connect() as connection:
            with contextlib.suppress(BrokenPipeError):
                connection.sendall(data)
            return rest(connection)

    def works(self) -> float:
        """Seconds that somebody else's request takes."""
        begin = time.monotonic()
        with self.connect() as connection:
            connection.sendall(ASKED)
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        return time.monotonic() - begin


def rest(connection: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(65536):
            found += data
    return found


def error_of(answer: bytes) -> tuple[int, str]:
    """Status, which the API's description has, and the message."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status = int(head.split()[1])
    for one in openapi()["paths"]["/v1/pods"].values():
        assert str(status) in one["responses"] or status == 413
    return status, json.loads(body)["error"]["message"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[Running] = []

    def make(most: int | None = None, slow: Handle = lambda one: one.respond_json(200, None)) -> Running:
        made.append(Running(tmp_path / f"{len(made)}.sock", most, slow))
        return made[-1]

    yield make
    for one in made:
        one.server.close()
    until(lambda: all(not one.server.connections for one in made))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "REQUEST_PATIENCE", 0.5)
    monkeypatch.setattr(exchange, "IDLE_PATIENCE", 0.8)
    monkeypatch.setattr(exchange, "PIECE_PATIENCE", 0.5)


# --- size ---


def test_a_head_of_megabytes_is_refused_before_it_is_there(start: Start) -> None:
    running = start()
    for head in (
        b"GET /v1/version HTTP/1.1\r\nHost: x\r\nX: " + b"a" * (4 << 20),
        b"GET /" + b"a" * (1 << 20),
        b"GET /v1/version HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 100_000,
    ):
        assert error_of(running.say(head))[0] in (400, 431)
    assert running.works() < 2


def test_a_head_that_comes_in_one_piece_is_measured_too(start: Start) -> None:
    running = start()
    head = b"GET /v1/version HTTP/1.1\r\nHost: x\r\nX: %b\r\nConnection: close\r\n\r\n"
    assert running.say(head % (b"a" * (exchange.HEAD_LIMIT - 200))).startswith(b"HTTP/1.1 200")
    status, message = error_of(running.say(head % (b"a" * exchange.HEAD_LIMIT)))
    assert (status, message) == (431, "malformed request: its line and headers are too long")


def test_a_body_that_is_too_long_is_refused(start: Start) -> None:
    head = b"POST /v1/pods HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n"
    running = start()
    assert error_of(running.say(head)) == (413, f"the request's body is longer than {exchange.BODY_LIMIT} bytes")
    chunked = b"POST /v1/pods HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    big = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    assert error_of(running.say(chunked + big * 70))[0] == 413


def test_a_body_that_nobody_wants_is_no_next_request(start: Start) -> None:
    """Nor is one that is longer than it was said to be: the connection ends."""
    running = start()
    smuggled = b"GET /v1/pods HTTP/1.1\r\nHost: x\r\n\r\n"
    said = b"GET /v1/version HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(smuggled)
    last = ASKED.replace(b"Host: x", b"Host: x\r\nConnection: close")
    answers = running.say(said + smuggled + last)
    assert [line.split()[1] for line in answers.splitlines() if line.startswith(b"HTTP/1.1")] == [b"400", b"200"]
    answers = running.say(b"GET /v1/version HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}{}{}\r\n\r\n")
    assert answers.count(b"HTTP/1.1 200") == 1


@pytest.mark.parametrize("said", [b"{}", b" \r\n", b"{}\n"])
def test_a_body_that_says_nothing_may_come_where_none_is_taken(start: Start, said: bytes) -> None:
    head = b"GET /v1/version HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(said)
    running = start()
    with running.connect() as connection:
        connection.sendall(head + said + ASKED.replace(b"Host: x", b"Host: x\r\nConnection: close"))
        assert rest(connection).count(b"HTTP/1.1 200") == 2


@pytest.mark.parametrize(
    "said", [b'{"timeout":"banana"}', b'{"zork":1}', b"[]", b"banana", b" " * 70000 + b"true"]
)
def test_a_body_where_none_is_taken_is_refused_and_nothing_is_done(start: Start, said: bytes) -> None:
    """There is no daemon behind this server: whatever was done would be a mistake."""
    head = b"POST /v1/pods/web/stop HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(
        said
    )
    answer = start().say(head + said)
    assert error_of(answer) == (400, "POST /v1/pods/{pod}/stop takes no body")
    assert b"in the query: ?force=, ?timeout=, ?again=" in answer


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (b'{"pod": {}, "zork": 1}', "the request's body: $ has an unknown key 'zork'"),
        (b'{"pod": {}, "ports": [{"zork": 1}]}', "the request's body: $.ports[0] has an unknown key 'zork'"),
        (b'{"pod": {}, "apps": {"web": {"zork": 1}}}', "the request's body: $.apps.web has an unknown key 'zork'"),
        (
            b'{"pod": {"a": 1, "a": 2}}',
            'the request\'s body: $.pod.a: expected each key once, found key "a" twice',
        ),
        (
            b'{"pod": {}, "pod": {}}',
            'the request\'s body: $.pod: expected each key once, found key "pod" twice',
        ),
        (
            b'{"pod": ' + b"1" * 5000 + b"}",
            "the request's body: not JSON: a number of too many digits at line 1, column 9",
        ),
        (
            b'{"pod": NaN}',
            "the request's body: not JSON: NaN, which is no JSON number, at line 1, column 9",
        ),
        (
            b'{"pod": \xff}',
            "the request's body: not JSON: byte 0xff, which is not UTF-8, at line 1, column 9",
        ),
        (b'{"pod": }', "the request's body: not JSON: expecting value at line 1, column 9"),
        (b"[" * 200, "the request's body: $: expected at most 128 levels of nesting, found more"),
    ],
)
def test_a_body_with_what_nobody_would_read_is_refused(start: Start, said: bytes, message: str) -> None:
    head = b"POST /v1/pods HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(said)
    assert error_of(start().say(head + said)) == (400, message)


def test_a_parameter_that_is_given_twice_is_refused(start: Start) -> None:
    answer = start().say(b"GET /v1/events?since=0&since=1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert error_of(answer) == (400, "parameter since: it is given more than once")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (b"POST /v1/pods/x/kill?signal=65", 'parameter signal: expected an integer from 0 to 64, found "65"'),
        (b"POST /v1/pods/x/kill?signal=-5", 'parameter signal: expected an integer from 0 to 64, found "-5"'),
        (
            b"GET /v1/pods/x/logs?tail=-1",
            'parameter tail: expected an integer from 0 to 9223372036854775807, found "-1"',
        ),
        (
            b"GET /v1/pods/x/logs?since=9223372036854775808",
            (
                "parameter since: expected an integer from -9223372036854775807 to 9223372036854775807, "
                'found "9223372036854775808"'
            ),
        ),
        (
            b"POST /v1/pods/x/attach?rows=65536",
            'parameter rows: expected an integer from 0 to 65535, found "65536"',
        ),
    ],
)
def test_a_number_that_cannot_be_meant_is_refused(start: Start, target: bytes, message: str) -> None:
    answer = start().say(target + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert error_of(answer) == (400, message)


# --- nonsense ---


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\r\n\r\n\r\n\0\0\0",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
        b"GET /v1/version HTTP/1.1\r\n\r\n",
        b"GET /v1/version HTTP/9.9\r\nHost: x\r\n\r\n",
        b"GET /v1/version HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        b"GET /v1/version HTTP/1.1\r\nHost: x\r\n folded\r\n: y\r\n\r\n",
        b"GET  HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /v1/pods HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        b"POST /v1/pods HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\nhello",
        b"POST /v1/pods HTTP/1.1\r\nHost: x\r\nContent-Length: 0x5\r\n\r\nhello",
        b"POST /v1/pods HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/pods HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\nx",
        b"POST /v1/pods HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n",
        b"POST /v1/pods HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nx\r\n",
    ],
)
def test_nonsense_is_refused_in_a_line(start: Start, nonsense: bytes) -> None:
    running = start()
    answer = running.say(nonsense)
    status, message = error_of(answer)
    assert status in {400, 501, 505}, answer
    assert "\n" not in message
    assert "bytearray" not in message
    assert "b'" not in message
    assert answer.count(b"Cache-Control") == 1
    assert running.works() < 2


@pytest.mark.parametrize("framing", [b"Content-Length: 100\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n5\r\n{"])
def test_who_goes_away_in_the_middle_of_a_body_is_no_mistake(
    start: Start, caplog: pytest.LogCaptureFixture, framing: bytes
) -> None:
    running = start()
    with running.connect() as connection:
        connection.sendall(b"POST /v1/pods HTTP/1.1\r\nHost: x\r\n" + framing)
        connection.shutdown(socket.SHUT_WR)
        assert rest(connection) == b""
    assert not [record for record in caplog.records if record.exc_info]
    assert running.works() < 2


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (b"http://kurmad/v1/version", 200),
        (b"//v1/version", 404),
        (b"/v1/../v1/version", 404),
        (b"/v1/version?nothing=1", 400),
        (b"/v1/pods/%ff", 400),
        (b"/v1/pods/a%00b", 400),
        (b"/[", 404),
        (b"*", 404),
        (b"http://[", 404),
    ],
)
def test_targets(start: Start, target: bytes, status: int) -> None:
    answer = start().say(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert int(answer.split()[1]) == status, answer


def test_a_method_that_the_path_does_not_take(start: Start) -> None:
    answer = start().say(b"PUT /v1/pods HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert error_of(answer) == (405, "/v1/pods: takes GET, POST, not PUT")
    assert b"\r\nAllow: GET, POST\r\n" in answer


# --- time ---


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "said",
    [
        ASKED[:20],
        b"POST /v1/pods HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
        b"POST /v1/pods HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /v1/pods HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\nx",
    ],
)
def test_half_a_request_is_waited_for_but_not_for_long(start: Start, said: bytes) -> None:
    running = start()
    begin = time.monotonic()
    assert error_of(running.say(said)) == (408, "the request did not come in time")
    assert 0.4 < time.monotonic() - begin < 5


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "slowly", [ASKED, b"POST /v1/pods HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n" + b" " * 1000]
)
def test_a_byte_now_and_then_does_not_count_as_coming(start: Start, slowly: bytes) -> None:
    running = start()
    with running.connect() as connection:
        begin = time.monotonic()
        at = slowly.find(b"\r\n\r\n") + 4 if b"POST" in slowly else 0
        connection.sendall(slowly[:at])
        answer = b""
        while not answer and time.monotonic() < begin + 5:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(slowly[at : at + 1])
            at += 1
            if select.select([connection], [], [], 0.05)[0]:
                answer = rest(connection)
        assert error_of(answer)[0] == 408
        assert time.monotonic() - begin < 3


@pytest.mark.usefixtures("impatient")
def test_who_asks_for_nothing_is_let_go_without_a_word(start: Start) -> None:
    assert start().say(b"") == b""


@pytest.mark.usefixtures("impatient")
def test_who_does_not_take_the_answer_is_let_go(start: Start) -> None:
    gave_up = threading.Event()

    def endless(one: Exchange) -> None:
        one.begin("text/plain")
        try:
            while True:
                one.piece(b"x" * 65536)
        finally:
            gave_up.set()

    running = start(slow=endless)
    with running.connect() as connection:
        connection.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        assert gave_up.wait(10)
        assert running.works() < 2


@pytest.mark.usefixtures("impatient")
def test_who_reads_slowly_what_lasts_is_waited_for(start: Start) -> None:
    whole = b"x" * (2 << 20)

    def follow(one: Exchange) -> None:
        with running.server.lasting(one):
            one.begin("text/plain")
            one.piece(whole)
            one.end()

    running = start(slow=follow)
    with running.connect() as connection:
        connection.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        time.sleep(1.2)
        assert running.server.held == (0, 1)
        assert len(rest(connection)) > len(whole)
    until(lambda: running.server.held == (0, 0))


def test_who_closes_in_the_middle_leaves_nothing(start: Start) -> None:
    running = start()
    before = len(os.listdir("/proc/self/fd"))
    for end in (1, 20, len(ASKED) - 1, len(ASKED)):
        for _ in range(10):
            with running.connect() as connection:
                connection.sendall(ASKED[:end])
    until(lambda: running.server.connections == 0)
    until(lambda: running.server.held == (0, 0))
    until(lambda: len(os.listdir("/proc/self/fd")) <= before)


# --- number ---


def test_one_connection_too_many_is_told_so_and_the_others_are_served(start: Start) -> None:
    running = start(4)
    others = [running.connect() for _ in range(4)]
    until(lambda: running.server.connections == 4)
    for said in (b"", ASKED):
        answer = running.say(said)
        assert error_of(answer) == (503, "kurmad has reached its limit of 4 connections")
        assert b"Retry-After" in answer
    connection = Connection.open(running.path)
    refused = connection.request("GET", "/v1/version")
    assert (refused.status, json.loads(refused.read())["error"]["kind"]) == (503, "BusyError")
    connection.close()
    others[0].sendall(ASKED)
    assert others[0].recv(65536).startswith(b"HTTP/1.1 200")
    others.pop().close()
    until(lambda: running.server.connections == 3)
    assert running.works() < 2
    for other in others:
        other.close()


def test_thousands_of_connections_and_somebody_else_is_served_all_the_same(start: Start) -> None:
    """They come and go; whoever holds on to one is counted, and one is left for each who is not."""
    running = start(64)
    for _ in range(2000):
        with running.connect() as connection:
            connection.sendall(b"GET")
    until(lambda: running.server.connections == 0)
    held = [running.connect() for _ in range(63)]
    for _ in range(200):
        running.connect().close()
    # Those that are gone already are still to be let go.
    until(lambda: running.say(ASKED[:-2] + b"Connection: close\r\n\r\n").startswith(b"HTTP/1.1 200"))
    for connection in held:
        connection.close()


def test_what_lasts_holds_no_connection_that_others_need(start: Start) -> None:
    let_go = threading.Event()

    def follow(one: Exchange) -> None:
        with running.server.lasting(one):
            one.begin("text/plain")
            let_go.wait(20)
            one.end()

    running = start(3, slow=follow)
    following: list[socket.socket] = []
    for number in range(9):
        following.append(connection := running.connect())
        connection.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        until(lambda number=number: running.server.held == (0, number + 1))  # type: ignore[misc]
    assert running.works() < 2
    let_go.set()
    for connection in following:
        connection.close()
    until(lambda: running.server.held == (0, 0))


def test_without_a_descriptor_left_whoever_connects_is_told_so(start: Start) -> None:
    running = start()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(10)
    taken = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        client.connect(running.path)
        answer = client.recv(65536)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)
        client.close()
    assert error_of(answer) == (503, "kurmad cannot open a file: the host's limit is reached")
    assert running.works() < 2


def test_who_is_faster_at_the_last_descriptor_stops_nobody_from_listening(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that is kept for this is taken by another thread, at the moment at which it is free."""
    running = start()
    accept, opened = socket.socket.accept, os.open
    empty, asked = threading.Event(), threading.Event()
    empty.set()

    def none_left(listener: socket.socket) -> Any:
        if empty.is_set():
            asked.set()
            raise OSError(errno.EMFILE, "too many open files")
        return accept(listener)

    def open_(path: Any, *arguments: Any, **named: Any) -> int:
        if empty.is_set() and path == "/dev/null":
            raise OSError(errno.EMFILE, "too many open files")
        return opened(path, *arguments, **named)

    monkeypatch.setattr(socket.socket, "accept", none_left)
    monkeypatch.setattr(os, "open", open_)
    with running.connect() as waiting:
        for _ in range(3):
            asked.clear()
            assert asked.wait(10)
        begin = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - begin < 0.25, "it asks without end"
        empty.clear()
        waiting.sendall(ASKED)
        assert waiting.recv(65536).startswith(b"HTTP/1.1 200")
    monkeypatch.undo()
    assert running.works() < 2


def test_head_asks_for_no_more_than_how_an_answer_begins(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    running = start()
    for asked in (
        b"HEAD /v1/version HTTP/1.1\r\nHost: x\r\nAccept: application/x-ndjson\r\n\r\n",
        b"HEAD /v1/version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    ):
        head, _, body = running.say(asked).partition(b"\r\n\r\n")
        assert (head.split()[1], body) == (b"200", b"")
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def test_what_is_told_of_who_had_the_descriptor_before_cancels_nothing(start: Start) -> None:
    """The poll has told of somebody who has gone; by then the descriptor is another's, who is there."""
    running = start()
    ours, theirs = socket.socketpair()
    one: Any = SimpleNamespace(socket=ours)
    told: list[str] = []
    running.server.when_gone(one, lambda: told.append("gone"))
    stale = running.server.poller._calls[ours.fileno()]
    stale()
    assert told == []
    theirs.close()
    until(lambda: told == ["gone"])
    running.server.unwatch(one)
    ours.close()
    stale()
    assert told == ["gone"]


def test_who_connects_as_a_socket_is_closed_is_shut_out(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """An app's rights have changed, and it connects by the old socket just before that is closed."""
    running = start()
    path = f"{running.path}.app"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    accept = socket.socket.accept

    def closed_meanwhile(one: socket.socket) -> Any:
        found = accept(one)
        if one is listener:
            running.server.stop_listening_for_app(("pod", "app"))
        return found

    monkeypatch.setattr(socket.socket, "accept", closed_meanwhile)
    running.server.listen_for_app(listener, "full", ("pod", "app"), lambda connected, pid: False)
    with socket.socket(socket.AF_UNIX) as app:
        app.settimeout(10)
        app.connect(path)
        with contextlib.suppress(BrokenPipeError):
            app.sendall(ASKED)
        assert rest(app) == b""
    assert running.works() < 2


def test_each_has_a_share_and_root_has_what_is_left() -> None:
    quota = Quota(6, 4, 3, 2, 2)
    root, user, other = Peer(0, 1, "full"), Peer(1000, 1, "full"), Peer(1001, 1, "full")
    pod, second = Peer(0, 1, "read", "a"), Peer(0, 1, "read", "b")
    for peer in (user, user):
        quota.take(peer)
    with pytest.raises(BusyError, match="its limit of 2 connections of user 1000"):
        quota.take(user)
    for peer in (pod, pod):
        quota.take(peer)
    with pytest.raises(BusyError, match="connections of pod a"):
        quota.take(pod)
    with pytest.raises(BusyError, match="of all but root"):
        quota.take(other)
    quota.give_back(user)
    quota.take(second)
    with pytest.raises(BusyError, match=r"limit of \d+ connections of pods"):
        quota.take(second)
    quota.take(root)
    quota.take(root)
    with pytest.raises(BusyError, match="limit of 6 connections"):
        quota.take(root)
    assert quota.held == 6


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"networks": [{"name": "a\u0000"}]}, "$.networks[0].name"),
        ({"networks": [{"name": "a", "ips": [""]}]}, "$.networks[0].ips[0]"),
        ({"hostname": "\ud800"}, "$.hostname"),
        ({"pull": 5}, "$.pull"),
    ],
)
def test_text_that_no_name_can_be_is_refused(start: Start, body: dict[str, Any], path: str) -> None:
    pod = {"apps": [{"name": "a", "image": "x.aci"}]}
    data = json.dumps({"pod": pod, **body}).encode()
    head = f"POST /v1/pods HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    status, message = error_of(start().say(head.encode() + data))
    assert (status, f"{path}: " in message) == (400, True), message
