"""Proxies that tunnel, and servers that stop answering half-way (D6)."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import kurma_fetch_http.plugin
import pytest
import trustme
from kurma_testing import load_driver
from kurma_testing.webserver import Page, WebServer, proxy, web_server

from kurma_core.errors import FetchError, FetchRefusedError, FetchTimeoutError, FetchTLSError
from kurma_core.hookspecs.fetcher import FetchRequest

CONTENT = bytes(range(256)) * 100


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def secure(authority: trustme.CA, tmp_path: Path) -> Iterator[WebServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("example.com").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with web_server(context) as server:
        server.pages["/x.aci"] = Page(CONTENT)
        yield server


def fetch(tmp_path: Path, url: str, *insecure: str, **options: object) -> bytes:
    fetcher = load_driver(kurma_fetch_http.plugin, tmp_path, {"ca_file": str(tmp_path / "ca.pem"), **options})
    found = fetcher.resolve(url, FetchRequest("linux", "amd64", frozenset(insecure)))
    with found.blob.open(0) as stream:
        return b"".join(iter(lambda: stream.read(5000), b""))


@pytest.mark.parametrize("variable", ["https_proxy", "HTTPS_PROXY", "all_proxy"])
def test_https_goes_through_a_tunnel(
    tmp_path: Path, secure: WebServer, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """The proxy sees the host's name and nothing else; the certificate is checked against that name."""
    with proxy({"example.com:443": secure.host, "other.example.com:443": secure.host}) as way:
        monkeypatch.setenv(variable, way.host)
        assert fetch(tmp_path, "https://example.com/x.aci") == CONTENT
        assert way.asked == ["example.com:443"]
        with pytest.raises(FetchTLSError, match="the certificate is for another name"):
            fetch(tmp_path, "https://other.example.com/x.aci")


def test_a_proxy_with_a_login(tmp_path: Path, secure: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with proxy({"example.com:443": secure.host}, login="us er:p@ss") as way:
        monkeypatch.setenv("https_proxy", f"http://us%20er:p%40ss@{way.host}")
        assert fetch(tmp_path, "https://example.com/x.aci") == CONTENT
        monkeypatch.setenv("https_proxy", f"http://us%20er:secret@{way.host}")
        with pytest.raises(FetchRefusedError, match="the proxy requires credentials") as caught:
            fetch(tmp_path, "https://example.com/x.aci")
        assert "secret" not in f"{caught.value} {caught.value.hint}"


def test_a_proxy_that_refuses_or_is_not_there(
    tmp_path: Path, secure: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with proxy({}) as way:
        monkeypatch.setenv("https_proxy", way.host)
        with pytest.raises(FetchRefusedError, match=r"does not connect to it \(502 Bad Gateway\)"):
            fetch(tmp_path, "https://example.com/x.aci")
    with pytest.raises(FetchRefusedError, match="connection refused by the proxy"):
        fetch(tmp_path, "https://example.com/x.aci")
    monkeypatch.setenv("https_proxy", "socks5://127.0.0.1:1")
    with pytest.raises(FetchError, match="only http and https proxies"):
        fetch(tmp_path, "https://example.com/x.aci")


def test_hosts_that_need_no_proxy(tmp_path: Path, secure: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with proxy({}) as way:
        monkeypatch.setenv("https_proxy", way.host)
        monkeypatch.setenv("no_proxy", "example.org,127.0.0.1")
        with pytest.raises(FetchTLSError, match="for another name"):
            fetch(tmp_path, secure.url("/x.aci"))
        assert not way.asked


# --- time ---


@contextmanager
def stalling(*answers: bytes) -> Iterator[str]:
    """A server that answers each connection with some bytes and then nothing more; its host and port."""
    listener = socket.create_server(("127.0.0.1", 0))
    opened: list[socket.socket] = []

    def serve() -> None:
        with suppress(OSError):
            for answer in answers:
                connection, _ = listener.accept()
                opened.append(connection)
                if answer:
                    connection.recv(4096)
                    connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        for one in (listener, *opened):
            one.close()


@pytest.fixture
def no_ca(tmp_path: Path, authority: trustme.CA) -> None:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))


@pytest.mark.usefixtures("no_ca")
def test_a_server_that_takes_connections_and_says_nothing(tmp_path: Path) -> None:
    with stalling(b"", b"") as host:
        with pytest.raises(FetchTimeoutError, match="no answer in time"):
            fetch(tmp_path, f"http://{host}/x.aci", "http", timeout=0.2)
        with pytest.raises(FetchTimeoutError, match="no answer in time"):
            fetch(tmp_path, f"https://{host}/x.aci", timeout=0.2)


@pytest.mark.usefixtures("no_ca")
def test_a_body_that_stalls_is_asked_for_again_from_there(tmp_path: Path) -> None:
    head = b'HTTP/1.1 200 OK\r\nETag: "one"\r\nContent-Length: 10000\r\n\r\n' + b"a" * 5000
    more = b'ETag: "one"\r\nContent-Range: bytes 5000-9999/10000\r\nContent-Length: 5000\r\n\r\n' + b"b" * 5000
    with stalling(head, b"HTTP/1.1 206 Partial Content\r\n" + more) as host:
        assert fetch(tmp_path, f"http://{host}/x.aci", "http", timeout=2) == b"a" * 5000 + b"b" * 5000


@pytest.mark.usefixtures("no_ca")
def test_a_body_that_only_stalls_is_given_up(tmp_path: Path) -> None:
    head = b'HTTP/1.1 200 OK\r\nETag: "one"\r\nContent-Length: 10\r\n\r\n'
    with stalling(head, head, head) as host:
        with pytest.raises(FetchTimeoutError):
            fetch(tmp_path, f"http://{host}/x.aci", "http", timeout=0.2, retries=2)
