"""Exec and attach over WebSocket, with another library's client (C18, C18c, C18d)."""

import base64
import contextlib
import json
import threading

import pytest
from websockets.exceptions import ConnectionClosed, ConnectionClosedError, InvalidStatus
from websockets.sync.client import connect

from plugins.cri.tests.streaming_parts import (
    ScriptedBackend,
    attach_request,
    exec_request,
    messages,
    read_to_the_end,
    serving,
    until_gone,
)

SUCCESS = {"metadata": {}, "status": "Success"}
BINARY = ["v5.channel.k8s.io", "v4.channel.k8s.io", "channel.k8s.io", None]
ENCODED = ["v4.base64.channel.k8s.io", "base64.channel.k8s.io"]


@contextlib.contextmanager
def websocket(server, request, *versions, **options):
    url = server.url(request).replace("http:", "ws:")
    subprotocols = [version for version in versions if version] or None
    with connect(url, subprotocols=subprotocols, compression=None, proxy=None, **options) as client:
        yield client


def said(client):
    """Everything until the end, by channel. The first message is returned apart."""
    first = client.recv(timeout=20)
    channels = {}
    for message in messages(client):
        if isinstance(message, str):
            number, data = int(message[0]), base64.b64decode(message[1:], validate=True)
        else:
            number, data = message[0], message[1:]
        channels[number] = channels.get(number, b"") + data
    assert client.protocol.close_code == 1000
    return first, channels


def one_line(request, streams):
    """Answers a line of input, on both outputs."""
    line = b""
    while not line.endswith(b"\n"):
        line += streams.stdin.read()
    for output in (streams.stdout, streams.stderr):
        output.write(line)
    return len(line)


@pytest.mark.parametrize("version", [*BINARY, *ENCODED])
def test_every_version(version):
    with serving(ScriptedBackend(one_line)) as server:
        request = exec_request("stdin", "stdout", "stderr")
        with websocket(server, request, "v9.channel.k8s.io" if version else None, version) as client:
            assert client.subprotocol == version
            if version in ENCODED:
                client.send("0" + base64.b64encode(b"four").decode())
                client.send(["0", base64.b64encode(b"\n").decode()])  # in two pieces
            else:
                client.send(b"\x00four")
                client.send([b"\x00", b"", b"\n"])
            first, channels = said(client)
    assert first == ("1" if version in ENCODED else b"\x01")
    assert (channels[1], channels[2]) == (b"four\n", b"four\n")
    if version and ("v4" in version or "v5" in version):
        causes = json.loads(channels[3])["details"]["causes"]
        assert causes == [{"reason": "ExitCode", "message": "5"}]
    else:
        assert channels[3] == b"command terminated with non-zero exit code: 5"


@pytest.mark.parametrize(("names", "first"), [(["stdin", "stderr"], b"\x02"), (["stdin"], b"\x03")])
def test_the_first_message_is_on_the_lowest_channel(names, first):
    with serving(ScriptedBackend(lambda *_: 0)) as server:
        with websocket(server, exec_request(*names), "v4.channel.k8s.io") as client:
            assert said(client) == (first, {3: json.dumps(SUCCESS).encode()})


@pytest.mark.parametrize("version", ["v5.channel.k8s.io", "v4.channel.k8s.io"])
def test_version_5_closes_channels(version):
    found = []

    def run(request, streams):
        found.append(read_to_the_end(streams.stdin))
        return 0

    with serving(ScriptedBackend(run)) as server:
        with websocket(server, exec_request("stdin", "stdout"), version) as client:
            client.send(b"\x00input")
            client.send(b"\xff\x07")
            client.send(b"\xff\x00")
            if version == "v5.channel.k8s.io":
                assert said(client)[1] == {3: json.dumps(SUCCESS).encode()}
        with contextlib.suppress(ConnectionClosed):
            client.recv(timeout=20)
    assert found == [(b"input", version == "v5.channel.k8s.io")]


def test_a_terminal_is_resized():
    sizes, enough = [], threading.Event()

    def run(request, streams):
        streams.on_resize(lambda *size: (sizes.append(size), size == (50, 100) and enough.set()))
        assert enough.wait(20)
        return 0

    with serving(ScriptedBackend(run)) as server:
        request = exec_request("stdin", "stdout", tty=True)
        with websocket(server, request, "v5.channel.k8s.io") as client:
            client.send(b'\x04{"Width":80,"Height":24}')
            client.recv(timeout=20)
            client.send(b'\x04{"Width":100,"Height":50}')
            *_, last = messages(client)
            assert last[:1] == b"\x03"
    assert sizes[-1] == (50, 100)


def test_pings_are_answered():
    release = threading.Event()
    with serving(ScriptedBackend(lambda *_: release.wait(20) and 0)) as server:
        with websocket(server, exec_request("stdout"), "v5.channel.k8s.io") as client:
            assert client.ping().wait(20)
            release.set()
            assert said(client)[1] == {3: json.dumps(SUCCESS).encode()}


@pytest.mark.parametrize(
    ("version", "message"),
    [("base64.channel.k8s.io", "0???"), ("base64.channel.k8s.io", "x"), ("base64.channel.k8s.io", "0abc")],
)
def test_malformed_messages_end_the_connection(version, message):
    def run(request, streams):
        until_gone(streams)
        return 0

    with serving(ScriptedBackend(run)) as server:
        with websocket(server, exec_request("stdin"), version) as client:
            client.send(message)
            client.recv(timeout=20)
            with pytest.raises(ConnectionClosedError):
                list(messages(client))
            assert client.protocol.close_code == 1002


@pytest.mark.parametrize("way", ["close", "abort"])
def test_a_client_that_vanishes(way):
    found = []

    def run(request, streams):
        found.append(read_to_the_end(streams.stdin))
        with contextlib.suppress(BrokenPipeError):
            while True:
                streams.stdout.write(b"x" * 65536)
        raise AssertionError("a mistake after the end")

    with serving(ScriptedBackend(run)) as server:
        with websocket(server, attach_request("stdin", "stdout"), "v5.channel.k8s.io") as client:
            assert client.recv(timeout=20) == b"\x01"
            if way == "close":
                client.close()
            else:
                client.socket.shutdown(2)
    assert found == [(b"", False)]


@pytest.mark.full
def test_a_client_that_does_not_read_slows_the_program_down():
    count = []

    def run(request, streams):
        for _ in range(32):
            streams.stdout.write(b"x" * (1 << 20))
            count.append(1)
        return 0

    with serving(ScriptedBackend(run)) as server:
        with websocket(server, exec_request("stdout"), "v5.channel.k8s.io", max_size=None) as client:
            client.recv(timeout=20)
            assert len(count) < 32
            total = sum(len(message) - 1 for message in messages(client) if message[0] == 1)
    assert total == 32 << 20


def test_refusals():
    with serving() as server:
        with pytest.raises(InvalidStatus) as caught:
            websocket(server, exec_request("stdout"), "v9.channel.k8s.io").__enter__()
        assert caught.value.response.status_code == 400
        url = server.url(exec_request("stdout")).replace("http:", "ws:")
        with connect(url, subprotocols=["v5.channel.k8s.io"], proxy=None):
            with pytest.raises(InvalidStatus) as caught:
                connect(url, subprotocols=["v5.channel.k8s.io"], proxy=None)
            assert caught.value.response.status_code == 404
