"""Port-forward by every protocol, with a backend of the tests' own (C18, C18b)."""

import base64
import contextlib
import select
import socket
import threading

import pytest
from kurma_cri.streaming.requests import PortForward
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from kurma_core.errors import HostError
from plugins.cri.tests.spdy_client import SpdyClient, Tunnel
from plugins.cri.tests.streaming_parts import FORWARD, ScriptedBackend, messages, serving


def upper(connected):
    """Answers in upper case, and ends when the client does."""
    while data := connected.recv(65536):
        connected.sendall(data.upper())


def hello(connected):
    """Says hello and closes the connection."""
    connected.sendall(b"hello")


def only_reads(connected):
    while connected.recv(65536):
        pass


class Stuck:
    """Neither reads nor ends until the connection is closed."""

    def __init__(self):
        self.gone = threading.Event()

    def __call__(self, connected):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        poll = select.poll()
        poll.register(connected, select.POLLHUP)
        poll.poll(20_000)
        self.gone.set()


def backend(**ports):
    refusal = HostError("cannot connect to port 81 of pod web: Connection refused")
    return ScriptedBackend(ports={80: upper, 81: refusal, 82: hello, 83: only_reads, **ports})


@contextlib.contextmanager
def client_of(server, way="spdy", request=FORWARD, **options):
    url = server.url(request)
    with contextlib.ExitStack() as stack:
        if way == "tunnel":
            options["connected"] = Tunnel(url)
        client = SpdyClient(url, versions=["portforward.k8s.io"], **options)
        stack.callback(client.close)
        yield client


def open_pair(client, port, number=None, first="error"):
    headers = {"port": str(port), **({} if number is None else {"requestid": str(number)})}
    streams = {}
    for kind in ("error", "data") if first == "error" else ("data", "error"):
        streams[kind] = client.open(kind, **headers)
    return streams["error"], streams["data"]


@pytest.mark.parametrize("way", ["spdy", "tunnel"])
@pytest.mark.parametrize("windows", [False, True])
def test_both_directions_and_half_close(way, windows):
    with serving(backend()) as server, client_of(server, way, windows=windows) as client:
        error, data = open_pair(client, 80, 0)
        other_error, other = open_pair(client, 80, 1, first="data")
        error.close()
        text = b"some text" * 30_000
        data.send(text, fin=True)
        other.send(b"other", fin=True)
        assert data.read_all() == text.upper()
        assert (other.read_all(), other_error.read_all(), error.read_all()) == (b"OTHER", b"", b"")


def test_streams_without_request_ids():
    """The error stream n belongs to the data stream n+2."""
    with serving(backend()) as server, client_of(server) as client:
        for _ in range(2):
            error, data = open_pair(client, 80)
            data.send(b"text", fin=True)
            assert (data.read_all(), error.read_all()) == (b"TEXT", b"")


def test_a_port_that_refuses():
    with serving(backend()) as server, client_of(server) as client:
        error, data = open_pair(client, 81, 0)
        data.wait(lambda stream: stream.status is not None)
        error.wait(lambda stream: stream.status is not None)
        assert bytes(error.data) == b"cannot connect to port 81 of pod web: Connection refused"
        # The others of the connection go on.
        error, data = open_pair(client, 80, 1)
        data.send(b"text", fin=True)
        assert data.read_all() == b"TEXT"


def test_a_mistake_of_the_backend(caplog):
    with serving(ScriptedBackend(ports={80: ZeroDivisionError("secret")})) as server, client_of(server) as client:
        error, _ = open_pair(client, 80, 0)
        error.wait(lambda stream: stream.status is not None)
        assert b"its log has the details" in error.data
        assert "secret" in caplog.text


def test_a_pod_that_closes_the_connection_first():
    """The error stream ends, too: some clients wait for it before they end their own side."""
    with serving(backend()) as server, client_of(server) as client:
        error, data = open_pair(client, 82, 0)
        assert (data.read_all(), error.read_all()) == (b"hello", b"")
        data.send(b"too late")
        data.wait(lambda stream: stream.status is not None)


@pytest.mark.parametrize("way", ["reset", "half-closed and reset", "disconnected", "half-closed and disconnected"])
def test_a_client_that_vanishes(way):
    stuck = Stuck()
    with serving(ScriptedBackend(ports={84: stuck})) as server, client_of(server) as client:
        _, data = open_pair(client, 84, 0)
        if "half-closed" in way:
            data.close()
        if "reset" in way:
            data.reset()
        else:
            client.close()
        assert stuck.gone.wait(20)


def test_one_connection_that_is_not_read_leaves_others_alone():
    """Of a client that keeps to windows."""
    with serving(ScriptedBackend(ports={80: upper, 84: Stuck()})) as server:
        with client_of(server, windows=True) as client:
            _, stuck = open_pair(client, 84, 0)
            stuck.send(b"x" * 40_000)
            _, data = open_pair(client, 80, 1)
            data.send(b"text" * 5_000, fin=True)
            assert len(data.read_all()) == 20_000


def test_wrong_streams_are_reset():
    with serving(backend(), opening=0.2) as server, client_of(server) as client:
        for kind, port in (("stdin", "80"), ("data", "0"), ("data", "65536"), ("error", "x"), ("data", "")):
            stream = client.open(kind, port=port, requestid="9")
            stream.wait(lambda one: one.status is not None)
        error = client.open("error", port="80", requestid="7")
        again = client.open("error", port="80", requestid="7")
        again.wait(lambda one: one.status is not None)
        other_port = client.open("data", port="82", requestid="7")
        other_port.wait(lambda one: one.status is not None)
        # The other stream of the pair does not come in time.
        error.wait(lambda one: one.status is not None)
        assert b"was not opened" in error.data


@pytest.mark.full
def test_too_many_streams_are_refused():
    with serving(backend()) as server, client_of(server) as client:
        streams = [client.open("error", port="80", requestid=str(number)) for number in range(513)]
        streams[-1].wait(lambda one: one.status == 3)
        assert all(stream.status is None for stream in streams[:-1])


@pytest.mark.parametrize("version", ["v4.channel.k8s.io", "v4.base64.channel.k8s.io", None])
def test_the_older_websocket_protocol(version):
    encoded = version == "v4.base64.channel.k8s.io"

    def plain(message):
        return (int(message[0]), base64.b64decode(message[1:])) if encoded else (message[0], message[1:])

    with serving(backend()) as server:
        url = server.url(PortForward(pod="pod", ports=(80, 81, 82)))
        subprotocols = [version] if version else None
        with connect(
            url.replace("http:", "ws:"), subprotocols=subprotocols, compression=None, proxy=None
        ) as client:
            client.send("0" + base64.b64encode(b"text").decode() if encoded else b"\x00text")
            found = {}

            def receive():
                number, data = plain(client.recv(timeout=20))
                found.setdefault(number, []).append(data)

            def text(number):
                return b"".join(found.get(number, [])[1:])

            while not (text(0) == b"TEXT" and b"refused" in text(3) and text(4) == b"hello" and 5 in found):
                receive()
    # Clients take the port from the first message of each channel, which has nothing else.
    ports = {number: messages[0] for number, messages in found.items()}
    assert ports == {0: b"\x50\0", 1: b"\x50\0", 2: b"\x51\0", 3: b"\x51\0", 4: b"\x52\0", 5: b"\x52\0"}
    assert text(3) == b"cannot connect to port 81 of pod web: Connection refused"


def test_the_older_protocol_needs_ports():
    with serving(backend()) as server:
        for ports in ((), tuple(range(1, 200))):
            url = server.url(PortForward(pod="pod", ports=ports)).replace("http:", "ws:")
            with pytest.raises(InvalidStatus) as caught:
                connect(url, subprotocols=["v4.channel.k8s.io"], proxy=None)
            assert caught.value.response.status_code == 400


def test_the_older_protocol_ends_with_its_connections():
    with serving(backend()) as server:
        url = server.url(PortForward(pod="pod", ports=(82,))).replace("http:", "ws:")
        with connect(url, subprotocols=["v4.channel.k8s.io"], compression=None, proxy=None) as client:
            assert b"".join(message[1:] for message in messages(client)) == b"\x52\x00\x52\x00hello"
