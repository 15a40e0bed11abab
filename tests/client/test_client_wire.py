"""The client's end of a connection, with a real server of the daemon's at the other one."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kurma_core import VERSION
from kurma_core.api.wire import MESSAGE, PROTOCOL, error_from_json, frame
from kurma_core.client import Settings, in_process
from kurma_core.client.client import Client
from kurma_core.client.local.managers import Managers
from kurma_core.client.remote.http import Body, Connection
from kurma_core.client.remote.streams import Stream
from kurma_core.client.remote.transport import Remote, quoted
from kurma_core.config import Config, load
from kurma_core.daemon.http import exchange
from kurma_core.daemon.http.dispatch import Dispatcher
from kurma_core.daemon.http.error_status import Gone
from kurma_core.daemon.http.messages import Messages, attempts_of
from kurma_core.daemon.http.server import Server
from kurma_core.daemon.metrics import Metrics
from kurma_core.errors import DaemonGoneError, HostError, UsageError
from tests.kit.waiting import until


def client_of(connection: Connection, config: Config) -> Client:
    def here() -> Managers:
        return Managers(Settings(), config)

    return Client(Settings(), Remote(Settings(), connection, here), here)


def transport_of(client: Client) -> Remote:
    assert isinstance(client.transport, Remote)
    return client.transport


Serve = Callable[[], Client]


@pytest.fixture
def serve(tmp_path: Any) -> Iterator[Serve]:
    """A server with all operations on a state directory that is empty, and a client of it."""
    (tmp_path / "kurma.json").write_text("{}")
    config = load(str(tmp_path / "kurma.json"), str(tmp_path / "state"))
    path = str(tmp_path / "kurmad.sock")
    daemon: Any = SimpleNamespace(client=in_process(Managers(Settings(), config)))
    daemon.server = Server(Dispatcher(daemon, Metrics()))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    daemon.server.listen(listener)
    daemon.server.start()
    clients = []

    def make() -> Client:
        connection = Connection.open(path)
        clients.append(client_of(connection, config))
        return clients[-1]

    yield make
    for client in clients:
        client.close()
    daemon.server.close()
    listener.close()


Say = Callable[..., Client]


@pytest.fixture
def say(tmp_path: Any) -> Iterator[Say]:
    """``say(answer, …)``: a client of what answers each connection with bytes, and closes it."""
    listeners: list[socket.socket] = []
    clients = []

    def make(*answers: bytes) -> Client:
        path = str(tmp_path / f"{len(listeners)}.sock")
        listener = socket.socket(socket.AF_UNIX)
        listeners.append(listener)
        listener.bind(path)
        listener.listen()

        def run() -> None:
            with contextlib.suppress(OSError):  # the client may be gone, and the test over
                for answer in answers:
                    connected, _ = listener.accept()
                    with connected:
                        connected.recv(65536)
                        connected.sendall(answer)

        threading.Thread(target=run, daemon=True).start()
        connection = Connection.open(path)
        clients.append(client_of(connection, load(None, str(tmp_path))))
        return clients[-1]

    yield make
    for client in clients:
        client.close()
    for listener in listeners:
        listener.close()


def answer(value: Any, *, status: str = "200 OK", version: str = VERSION, more: str = "") -> bytes:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 {status}\r\nKurma-Version: {version}\r\nContent-Type: application/json\r\n{more}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def test_a_connection_that_was_closed_while_idle_is_opened_again(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that was opened to look for kurmad: a client may wait for a person before it asks for anything."""
    monkeypatch.setattr(exchange, "IDLE_PATIENCE", 0.05)
    client = serve()
    first = transport_of(client)._first
    assert first is not None
    until(first.closed, "the end of the connection")
    assert client.images_list().images == ()


def test_what_a_dead_daemon_was_asked_for_is_not_asked_again(say: Say) -> None:
    """It may have begun with it. The next request has a connection of its own."""
    ok = answer([])
    client = say(ok, b"", ok)
    assert client.pods() == []
    with pytest.raises(HostError, match="has gone"):
        client.rm("web")
    assert client.pods() == []


def test_a_daemon_that_dies_on_the_way_is_told_of(say: Say) -> None:
    head = f"HTTP/1.1 200 OK\r\nKurma-Version: {VERSION}\r\nContent-Type: application/x-ndjson\r\n"
    for begun in (b"", b"HTTP/1.1 200", f"{head}Transfer-Encoding: chunked\r\n\r\n".encode()):
        client = say(begun)
        with pytest.raises(
            HostError, match=r"the daemon at .*\.sock has gone: it closed the connection"
        ) as caught:
            client.rm("web")
        assert caught.value.exit_code == 125
        assert caught.value.hint is not None


def test_a_stranger_is_told_of(say: Say) -> None:
    for said in (b"220 mail.example.com ESMTP\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"x" * 70000):
        with pytest.raises(HostError, match=r"the server at .*\.sock is not kurmad"):
            say(said).pods()


def test_a_daemon_of_another_version_is_understood_as_far_as_it_goes(say: Say) -> None:
    newer = {"kind": "NewError", "message": "new trouble", "hint": None, "exitCode": 99, "data": {}, "more": 1}
    with pytest.raises(Exception, match="new trouble") as caught:
        say(answer({"error": newer}, status="400 Bad Request", version="99.0")).pods()
    assert getattr(caught.value, "exit_code", 0) == 99
    lines = [{"is": "news", "about": "x"}, {"is": "result", "value": []}]
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    head = "HTTP/1.1 200 OK\r\nKurma-Version: 99.0\r\nContent-Type: application/x-ndjson\r\n"
    client = say(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    assert client.pods() == []


def test_where_a_daemon_of_another_version_is_not_understood_that_is_told(say: Say) -> None:
    unknown = {"kind": "UsageError", "message": "no such path", "exitCode": 2, "data": {"unknown": True}}
    old = answer({"error": unknown}, status="404 Not Found", version="0.0.1")
    with pytest.raises(
        HostError, match=f"kurmad has version 0.0.1, and this command {VERSION}: no such path"
    ) as one:
        say(old).pods()
    assert one.value.exit_code == 125
    assert "restart kurmad with this version" in str(one.value.hint)
    with pytest.raises(UsageError, match="no such path"):
        say(answer({"error": unknown}, status="404 Not Found")).pods()
    for value in ([{"uuid": "x"}], {"a": 1}, 7):
        with pytest.raises(HostError, match=r"cannot understand .*: it is kurma 0\.0\.1, and this is"):
            say(answer(value, version="0.0.1")).pods()


def test_operations_that_are_not_there_are_known_as_such(serve: Serve) -> None:
    """By which a client tells a daemon of another version from a mistake of its own."""
    client = serve()
    for method, target in (("GET", "/v1/nothing"), ("PUT", "/v1/pods"), ("GET", "/v1/pods?x=1")):
        with pytest.raises(UsageError) as caught:
            transport_of(client)._ask(method, target, None, {})
        assert caught.value.data["unknown"] is True


def test_a_wrong_body_gets_an_ordinary_error(serve: Serve) -> None:
    """Also where the answer would be a stream."""
    upgrade = {"Content-Type": "application/json", "Connection": "Upgrade", "Upgrade": PROTOCOL}
    for body, why in ((b"{}", r"\$\.exec is missing"), (b"[]", r"\$: expected an object, found an empty list")):
        with pytest.raises(UsageError, match=f"the request's body: {why}"):
            transport_of(serve())._ask("POST", "/v1/pods/web/enter", body, upgrade)


def test_a_body_that_is_not_wanted_is_answered_all_the_same(say: Say) -> None:
    """Who sends it hears why, though the connection closes under it."""
    refused = {"kind": "UsageError", "message": "too much", "exitCode": 2, "data": {}}
    client = say(answer({"error": refused}, status="413 Payload Too Large"))

    def pieces() -> Iterator[bytes]:
        for _ in range(200):
            yield bytes(1 << 16)

    with pytest.raises(UsageError, match="too much"):
        transport_of(client)._ask("POST", "/v1/images/upload", Body(200 << 16, pieces()), {})


def test_names_with_anything_in_them_arrive(serve: Serve) -> None:
    client = serve()
    for name in ("a/b", "a?b#c", "a%2Fb", "ü é", "a&b=c;d", "..", "a+b"):
        with pytest.raises(Exception, match="image") as caught:
            client.image(name)
        with pytest.raises(Exception, match="image") as here:
            in_process(client.here).image(name)
        assert str(caught.value) == str(here.value)
    assert quoted("a b/ü+") == "a%20b%2F%C3%BC%2B"


def test_who_does_not_read_holds_up_nobody() -> None:
    """Notes wait, what passes is left out, and the end has all that was kept."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    theirs.settimeout(5)
    sent = []

    def send(message: Any) -> None:
        ours.sendall(json.dumps(message).encode() + b"\n")
        sent.append(message)

    telling = Messages(ours, send)
    assert telling.silent
    began = time.monotonic()
    for number in range(5000):
        telling.tell({"is": "progress", "done": number, "fill": "x" * 1000})
        if number % 10 == 0:
            telling.tell({"is": "note", "text": f"{number}", "fill": "x" * 1000})
    assert time.monotonic() - began < 5
    assert len(sent) < 400
    assert not telling.silent
    received = bytearray()

    def read() -> None:
        while data := theirs.recv(65536):
            received.extend(data)

    reader = threading.Thread(target=read)
    reader.start()
    telling.end({"is": "result", "value": 1})
    ours.close()
    reader.join()
    lines = [json.loads(line) for line in received.splitlines()]
    assert [line["text"] for line in lines if line["is"] == "note"] == [str(n) for n in range(0, 5000, 10)]
    assert lines[-1] == {"is": "result", "value": 1}
    theirs.close()


def test_of_very_many_notes_the_first_are_let_go_of() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    while True:  # until there is no room any more
        try:
            ours.send(b"x", socket.MSG_DONTWAIT)
        except BlockingIOError:
            break
    sent: list[Any] = []
    telling = Messages(ours, sent.append)
    for number in range(1500):
        telling.tell({"is": "note", "text": f"{number}"})
    assert sent == []
    telling.end({"is": "result", "value": None})
    assert sent[0] == {"is": "note", "text": "500 notes were not read in time"}
    assert [line["text"] for line in sent[1:-1]] == [str(number) for number in range(500, 1500)]
    ours.close()
    theirs.close()


def test_what_a_daemon_said_before_it_closed_a_stream_is_heard() -> None:
    """A client that types, or says, something meanwhile finds the connection closed, and reads why."""
    ours, theirs = socket.socketpair()
    error = {"kind": "UsageError", "message": "it is stopped", "hint": None, "exitCode": 2, "data": {}}
    with theirs:
        theirs.sendall(frame(MESSAGE, json.dumps({"is": "error", "error": error}).encode()))
    with Stream(Connection(ours, "kurmad.sock"), lambda message: None, error_from_json) as stream:
        stream.type(b"typed")
        stream.say(**{"is": "stop", "force": False})
        stream.receive()
        with pytest.raises(UsageError, match="it is stopped"):
            list(stream.frames())
        with pytest.raises(DaemonGoneError):
            stream.receive()


def test_whoever_has_gone_is_told_nothing() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    theirs.close()

    def send(message: Any) -> None:
        try:
            ours.sendall(b"x")
        except OSError:
            raise Gone from None

    telling = Messages(ours, send)
    for _ in range(3):
        telling.tell({"is": "note", "text": "x"})
    with pytest.raises(Gone):
        telling.end({"is": "result", "value": None})
    ours.close()


def test_attempts_are_what_a_client_says_within_reason() -> None:
    assert [attempts_of(text) for text in (None, "", "0", "3", "99999999", "-1", "x", "²")] == [
        0,
        0,
        0,
        3,
        9,
        0,
        0,
        0,
    ]


def test_a_wrong_address_is_told_of(tmp_path: Any) -> None:
    (tmp_path / "file").write_text("")
    for name, why in (("none", "no such file"), ("file", "connection refused"), ("file/x", "not a directory")):
        with pytest.raises(HostError, match=f"cannot reach the daemon at {tmp_path}/{name}: {why}"):
            Connection.open(f"{tmp_path}/{name}")
    assert Connection.find(f"{tmp_path}/none") is None
