"""The streaming server's tokens, requests and limits (C18a)."""

import socket
import threading

import pytest
from kurma_cri.streaming import server as server_module
from kurma_cri.streaming.sessions import Times
from kurma_cri.streaming.tokens import LIFETIME, MOST, Tokens, TooManyTokensError

from kurma_core.errors import HostError
from plugins.cri.tests.spdy_client import Refused, SpdyClient, upgrade
from plugins.cri.tests.streaming_parts import FORWARD, ScriptedBackend, exec_request, serving, until_gone
from tests.kit.waiting import until

SPDY = [("Connection", "keep-alive, Upgrade"), ("Upgrade", "SPDY/3.1")]


def test_the_usual_limits():
    """In seconds. A client of kubectl opens its streams at once, and may be silent for hours."""
    assert (Times().opening, Times().idle) == (30, 4 * 3600)
    assert (LIFETIME, MOST) == (60, 1000)


def test_a_token_is_for_one_request_within_a_minute():
    now = [0.0]
    tokens = Tokens(lambda: now[0])
    first, second = tokens.make(FORWARD), tokens.make(FORWARD)
    assert first != second
    assert tokens.take("exec", first) is None
    assert tokens.take("portforward", first) is FORWARD
    assert tokens.take("portforward", first) is None
    now[0] = LIFETIME
    assert tokens.take("portforward", second) is None


def test_the_number_of_open_tokens_is_limited():
    now = [0.0]
    tokens = Tokens(lambda: now[0])
    last = [tokens.make(FORWARD) for _ in range(MOST)][-1]
    with pytest.raises(TooManyTokensError):
        tokens.make(FORWARD)
    tokens.take("portforward", last)
    tokens.make(FORWARD)
    now[0] = LIFETIME
    for _ in range(MOST):
        tokens.make(FORWARD)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_url(method):
    with serving(ScriptedBackend(lambda *_: 0)) as server:
        url = server.url(exec_request("stdout"))
        assert url.startswith(f"http://127.0.0.1:{server.port}/exec/")
        client = SpdyClient(url, method=method)
        error = client.open("error")
        client.open("stdout")
        error.read_all()
        client.close()


def test_requests_that_are_refused():
    with serving() as server:

        def refused(url, status, headers=SPDY, method="POST"):
            with pytest.raises(Refused) as caught:
                upgrade(url, headers, method)
            assert caught.value.status == status
            assert caught.value.body.endswith("\n")

        url = server.url(exec_request("stdout"))
        base, token = url.rsplit("/", 1)
        for wrong in (
            base,
            f"{base}/",
            f"{base}/x",
            f"{url}/x",
            url.replace("exec", "attach"),
            f"{base[:-5]}/{token}",
        ):
            refused(wrong, 404)
        refused(url, 405, method="PUT")
        refused(url, 400, [*SPDY, ("Content-Length", "x")])
        refused(server.url(exec_request("stdout")), 405, [("Connection", "Upgrade"), ("Upgrade", "websocket")])
        refused(url, 413, [*SPDY, ("Content-Length", "100000")], "POST")


def test_a_request_without_an_upgrade():
    with serving() as server:
        for headers in ([], [("Upgrade", "SPDY/3.1")], [("Connection", "Upgrade"), ("Upgrade", "h2c")]):
            with pytest.raises(Refused) as caught:
                upgrade(server.url(exec_request("stdout")), headers)
            assert caught.value.status == 400


def test_a_client_that_sends_no_request():
    with serving(request=0.2) as server:
        with socket.create_connection(("127.0.0.1", server.port), 20) as client:
            client.sendall(b"GET /")
            assert client.recv(100) == b""


def test_too_many_connections_are_closed(monkeypatch):
    monkeypatch.setattr(server_module, "_MOST", 1)
    with serving() as server:
        with socket.create_connection(("127.0.0.1", server.port), 20) as first:
            first.sendall(b"GET /")
            with socket.create_connection(("127.0.0.1", server.port), 20) as second:
                assert second.recv(100) == b""


def test_an_address_that_is_taken():
    with serving() as server, pytest.raises(HostError, match=f"port {server.port}"):
        server_module.StreamingServer("127.0.0.1", server.port, ScriptedBackend(), None).start()


@pytest.mark.parametrize(("address", "host"), [("0.0.0.0", "127.0.0.1"), ("::1", "[::1]"), ("::", "[::1]")])
def test_other_addresses(address, host):
    with serving(address=address) as server:
        url = server.url(FORWARD)
        assert url.startswith(f"http://{host}:{server.port}/portforward/")
        client = SpdyClient(url, versions=["portforward.k8s.io"])
        client.ping(1)
        with client.changed:
            client.wait(lambda: client.pongs == [1])
        client.close()


def test_the_end_of_the_server_disconnects_clients():
    started = threading.Event()

    def run(request, streams):
        started.set()
        until_gone(streams)
        return 0

    with serving(ScriptedBackend(run)) as server:
        client = SpdyClient(server.url(exec_request("stdin", "stdout")))
        for name in ("error", "stdin", "stdout"):
            client.open(name)
        assert started.wait(20)
        idle = socket.create_connection(("127.0.0.1", server.port), 20)
        until(lambda: len(server._connections) == 2)
        server.stop()
        client.wait_over()
        assert idle.recv(10) == b""
        idle.close()
        client.close()
