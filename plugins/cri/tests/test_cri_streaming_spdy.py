"""Exec and attach over SPDY, with a client that was written from the protocol (C18, C18b, C18c)."""

import contextlib
import json
import socket
import struct
import threading

import pytest
from kurma_cri.streaming import streams as limits
from kurma_cri.streaming.spdy import Data, FrameReader, Ping, SpdyError, SynStream

from kurma_core.errors import PodStateError
from plugins.cri.tests import spdy_client
from plugins.cri.tests.spdy_client import Refused, SpdyClient
from plugins.cri.tests.streaming_parts import (
    ScriptedBackend,
    attach_request,
    echo,
    exec_request,
    read_to_the_end,
    serving,
    until_gone,
)
from tests.kit.waiting import until

OLD = ["v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"]
SUCCESS = {"metadata": {}, "status": "Success"}


@contextlib.contextmanager
def connected(server, request, *names, **options):
    """A client, and the streams of these names."""
    client = SpdyClient(server.url(request), **options)
    try:
        yield client, *(client.open(name) for name in ("error", *names))
    finally:
        client.close()


def status_of(error):
    return json.loads(error.read_all())


@pytest.mark.parametrize("windows", [False, True])
def test_input_output_and_half_close(windows):
    data = bytes(range(256)) * 2000
    with serving() as server:
        request = exec_request("stdin", "stdout", "stderr")
        with connected(server, request, "stdin", "stdout", "stderr", windows=windows) as (_, error, *streams):
            stdin, stdout, stderr = streams
            stdin.send(data)
            stdin.close()
            assert stdout.read_all() == data
            assert stderr.read_all() == b"512000\n"
            assert status_of(error) == SUCCESS


@pytest.mark.parametrize("version", ["v4.channel.k8s.io", *OLD])
@pytest.mark.parametrize("code", [0, 3])
def test_exit_codes(version, code):
    with serving(ScriptedBackend(lambda *_: code)) as server:
        with connected(server, exec_request("stdout"), "stdout", versions=[version]) as (client, error, stdout):
            assert client.version == version
            assert stdout.read_all() == b""
            text = error.read_all()
    if version in OLD:
        assert text == (b"command terminated with non-zero exit code: 3" if code else b"")
    elif code:
        status = json.loads(text)
        assert (status["status"], status["reason"]) == ("Failure", "NonZeroExitCode")
        assert status["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]
    else:
        assert json.loads(text) == SUCCESS


@pytest.mark.parametrize("version", ["v4.channel.k8s.io", "v2.channel.k8s.io"])
def test_failures(version, caplog):
    def refuse(request, streams):
        raise (
            PodStateError("it has ended") if "stdin" in str(request) and request.stdin else ValueError("secret")
        )

    with serving(ScriptedBackend(refuse)) as server:
        with connected(server, attach_request("stdin"), "stdin", versions=[version]) as (_, error, _):
            known = error.read_all()
        with connected(server, exec_request("stdout"), "stdout", versions=[version]) as (_, error, _):
            mistake = error.read_all()
    if version == "v2.channel.k8s.io":
        assert known == b"it has ended"
    else:
        status = json.loads(known)
        assert (status["status"], status["reason"], status["code"]) == ("Failure", "InternalError", 500)
        assert status["message"] == "it has ended"
    assert b"its log has the details" in mistake
    assert b"secret" not in mistake
    assert "secret" in caplog.text


def test_versions_are_negotiated():
    with serving() as server:

        def refused(*versions, status):
            with pytest.raises(Refused) as caught:
                SpdyClient(server.url(exec_request("stdout")), versions=versions)
            assert caught.value.status == status
            return caught.value.headers

        refused(status=400)
        headers = refused("v9.channel.k8s.io", status=403)
        accepted = [text for key, text in headers if key == "x-accepted-stream-protocol-versions"]
        assert accepted == ["v4.channel.k8s.io", *OLD]
        several = ["v9.channel.k8s.io, v3.channel.k8s.io", "v4.channel.k8s.io"]
        with connected(server, exec_request("stdout"), versions=several) as (client, *_):
            assert client.version == "v3.channel.k8s.io"
            assert ("upgrade", "SPDY/3.1") in client.headers


@pytest.mark.parametrize("version", ["v4.channel.k8s.io", "v3.channel.k8s.io"])
def test_a_terminal_is_resized(version):
    sizes, enough = [], threading.Event()

    def run(request, streams):
        def resized(*size):
            sizes.append(size)
            if size == (50, 100):
                enough.set()

        streams.on_resize(resized)
        assert enough.wait(20)
        return 0

    with serving(ScriptedBackend(run)) as server:
        request = exec_request("stdin", "stdout", tty=True)
        with connected(server, request, "stdin", "stdout", versions=[version]) as (client, error, _, stdout):
            resize = client.open("resize")
            resize.send(b'{"Width":80,"Height":24}\n{"Width":')
            resize.send(b'100,"Height":50}')
            assert stdout.read_all() == b""
            error.read_all()
    assert sizes[-1] == (50, 100)


def test_nonsense_as_a_size_is_dropped():
    found = []
    sink = limits.Resizes(lambda *size: found.append(size))
    for text in (
        b'{"Width":0,"Height":1}',
        b'{"Width":true,"Height":1}',
        b"[]",
        b'{"Width":70000,"Height":1}',
        b"5 ",
    ):
        sink.put(text)
    sink.put(b'{"Width":5,"Height":6}')
    assert found == [(6, 5)]
    sink.put(b"[" * 10_000)
    sink.put(b'{"Width":5,"Height":6}')
    assert found == [(6, 5)]


def test_no_resize_stream_before_version_3():
    with serving(ScriptedBackend(lambda *_: 0)) as server:
        request = exec_request("stdout", tty=True)
        with connected(server, request, "stdout", versions=["v2.channel.k8s.io"]) as (_, error, _):
            assert error.read_all() == b""


def test_streams_that_were_not_asked_for_are_refused():
    release = threading.Event()
    with serving(ScriptedBackend(lambda *_: release.wait(20) and 0)) as server:
        with connected(server, exec_request("stdout"), "stdout") as (client, error, _):
            for kind in ("stdout", "stdin", "resize", "other", None):
                stream = client.open(kind)
                stream.wait(lambda one: one.status == 3)
            release.set()
            assert status_of(error) == SUCCESS


def test_streams_that_are_not_opened_in_time():
    with serving(opening=0.2, leaving=0.2) as server:
        with connected(server, exec_request("stdin", "stdout"), "stdout") as (client, error, _):
            assert "stdin" in status_of(error)["message"]
            client.wait_over()


@pytest.mark.parametrize("way", ["disconnected", "reset", "half-closed and disconnected"])
def test_a_client_that_vanishes(way):
    found, started = [], threading.Event()

    def run(request, streams):
        assert streams.stdin.read() == b"some"
        started.set()
        found.append(read_to_the_end(streams.stdin))
        if way != "reset":
            until_gone(streams)
        with contextlib.suppress(BrokenPipeError):
            while True:
                streams.stdout.write(b"x" * 4096)
        return 0

    with serving(ScriptedBackend(run)) as server:
        with connected(server, exec_request("stdin", "stdout"), "stdin", "stdout") as (_, _, stdin, stdout):
            stdin.send(b"some")
            assert started.wait(20)
            if way == "half-closed and disconnected":
                stdin.close()
            elif way == "reset":
                stdin.reset()
                stdout.reset()
            until(lambda: found or way == "disconnected")
    assert found == [(b"", way == "half-closed and disconnected")]


def test_a_client_that_does_not_read_slows_the_program_down():
    written, blocked = [], threading.Event()

    def run(request, streams):
        timer = threading.Timer(0.5, blocked.set)
        for _ in range(64):
            timer.cancel()
            timer = threading.Timer(0.5, blocked.set)
            timer.start()
            streams.stdout.write(b"x" * (1 << 20))
            written.append(1)
        timer.cancel()
        return 0

    with serving(ScriptedBackend(run)) as server:
        with connected(server, exec_request("stdout"), "stdout") as (client, error, stdout):
            client.reads.clear()
            assert blocked.wait(20)
            assert len(written) < 60
            client.reads.set()
            stdout.wait(lambda stream: stream.ended)
            assert len(stdout.data) == 64 << 20
            assert status_of(error) == SUCCESS


@pytest.mark.full
def test_a_program_that_does_not_read_slows_the_client_down():
    go_on = threading.Event()

    def run(request, streams):
        assert go_on.wait(20)
        return echo(request, streams)

    data = b"y" * (32 << 20)
    with serving(ScriptedBackend(run)) as server:
        with connected(server, exec_request("stdin", "stdout"), "stdin", "stdout") as (_, _, stdin, stdout):
            sent = threading.Event()

            def send():
                stdin.send(data, fin=True)
                sent.set()

            threading.Thread(target=send, daemon=True).start()
            assert not sent.wait(0.5)
            go_on.set()
            stdout.wait(lambda stream: stream.ended)
            assert (len(stdout.data), sent.is_set()) == (len(data), True)


@pytest.mark.full
def test_a_client_that_vanishes_while_its_input_is_not_read(monkeypatch):
    def run(request, streams):
        until_gone(streams)
        return 0

    monkeypatch.setattr(limits, "_LOOK", 0.05)
    with serving(ScriptedBackend(run)) as server:
        client = SpdyClient(server.url(exec_request("stdin")))
        client.open("error")
        stdin = client.open("stdin")

        def send():
            with contextlib.suppress(OSError):
                while True:
                    stdin.send(b"z" * 16384)

        sender = threading.Thread(target=send)
        sender.start()
        sender.join(0.3)
        assert sender.is_alive()
        client.close()
        sender.join()


@pytest.mark.full
def test_an_idle_client_is_disconnected():
    def run(request, streams):
        until_gone(streams)
        return 0

    with serving(ScriptedBackend(run), idle=0.3) as server:
        with connected(server, exec_request("stdout"), "stdout") as (client, *_):
            client.wait_over()


def test_pings_are_answered():
    release = threading.Event()
    with serving(ScriptedBackend(lambda *_: release.wait(20) and 0)) as server:
        with connected(server, exec_request("stdout"), "stdout") as (client, error, _):
            client.ping(4)  # the answer to a ping of the server's
            client.ping(7)
            with client.changed:
                client.wait(lambda: client.pongs == [7])
            release.set()
            error.read_all()


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x80\x02\x00\x01\x00\x00\x00\x00",  # version 2
        b"\x80\x03\x00\x01\x00\x00\x00\x0a" + bytes(10),  # SYN_STREAM without headers
        b"\x80\x03\x00\x01\x00\x00\x00\x0e" + bytes(3) + b"\x01" + bytes(6) + b"nope",
        b"\x80\x03\x00\x06\x00\x00\x00\x03abc",
        b"\x80\x03\x00\x04\x00\xff\xff\xff",  # a frame that is too long
    ],
)
def test_malformed_frames_end_the_connection(nonsense):
    def run(request, streams):
        until_gone(streams)
        return 0

    with serving(ScriptedBackend(run)) as server:
        with connected(server, exec_request("stdout"), "stdout") as (client, *_):
            client.write(nonsense)
            client.wait_over()
            assert client.gone_away == (3, 1)


@pytest.mark.parametrize(
    "block",
    [
        b"",
        struct.pack(">I", 1),
        struct.pack(">III", 1, 1 << 31, 0),
        struct.pack(">II", 1, 0) + struct.pack(">I", 0),  # no name
        struct.pack(">I", 2) + 2 * (struct.pack(">I", 1) + b"a" + struct.pack(">I", 0)),  # one name twice
        struct.pack(">I", 0) + b"more",
        struct.pack(">I", 1) + bytes(1 << 20),
    ],
)
def test_malformed_header_blocks(block):
    deflate = spdy_client.zlib.compressobj(zdict=spdy_client.DICTIONARY)
    body = bytes(3) + b"\x01" + bytes(6) + deflate.compress(block) + deflate.flush(2)
    with pytest.raises(SpdyError):
        list(FrameReader().feed(struct.pack(">HHI", 0x8003, 1, len(body)) + body))


def test_frames_that_come_byte_by_byte():
    deflate = spdy_client.zlib.compressobj(zdict=spdy_client.DICTIONARY)
    data = b""
    for number in (1, 3):
        block = struct.pack(">II", 1, 1) + b"A" + struct.pack(">I", 2) + b"bc"
        body = struct.pack(">IIH", number, 0, 0) + deflate.compress(block) + deflate.flush(2)
        data += struct.pack(">HHI", 0x8003, 1, 1 << 24 | len(body)) + body
    data += struct.pack(">II", 1, 1 << 24 | 2) + b"xy" + struct.pack(">HHII", 0x8003, 6, 4, 9)
    reader = FrameReader()
    frames = [frame for at in range(len(data)) for frame in reader.feed(data[at : at + 1])]
    assert frames == [
        SynStream(1, {"a": "bc"}, fin=True),
        SynStream(3, {"a": "bc"}, fin=True),
        Data(1, b"x"),
        Data(1, b"y", fin=True),
        Ping(9),
    ]


def test_frames_for_unknown_streams():
    with serving() as server:
        request = exec_request("stdin", "stdout")
        with connected(server, request, "stdin", "stdout", windows=True) as (client, error, stdin, stdout):
            stray = type(stdin)(client, 99)
            client.streams[99] = stray
            stray.send(b"data")
            stray.wait(lambda one: one.status == 2)
            client.control(3, struct.pack(">II", 77, 5))
            client.control(9, struct.pack(">II", 77, 5))
            client.control(
                8, struct.pack(">I", stdin.number) + client._deflate.compress(bytes(4)) + client._deflate.flush(2)
            )
            client.control(20, b"")
            stdin.send(b"end", fin=True)
            assert (stdout.read_all(), status_of(error)) == (b"end", SUCCESS)


def test_a_stream_that_ends_as_it_begins():
    with serving() as server:
        with connected(server, exec_request("stdin", "stdout")) as (client, error):
            client.open("stdin", flags=1)
            stdout = client.open("stdout")
            assert (stdout.read_all(), status_of(error)) == (b"", SUCCESS)


def test_what_comes_with_the_request_is_not_lost():
    """A client may send frames before it has the answer."""
    with serving() as server:
        url = server.url(exec_request("stdout"))
        head = (
            f"POST {url[url.index('/exec') :]} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
            "X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", server.port), 20) as sock:
            sock.sendall(head.encode() + b"\x80\x03\x00\x06\x00\x00\x00\x04\x00\x00\x00\x01")
            data = b""
            while not data.endswith(b"\x80\x03\x00\x06\x00\x00\x00\x04\x00\x00\x00\x01"):
                data += sock.recv(4096)
            assert data.startswith(b"HTTP/1.1 101")
