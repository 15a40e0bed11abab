"""Servers that answer as no honest one does: without end, or with numbers that are none (D2, D6)."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import kurma_fetch_http.plugin
import pytest
from kurma_fetch_http import transport
from kurma_fetch_http.deadline import LowSpeed
from kurma_fetch_http.transport import Transport
from kurma_fetch_http.web_archive import web_archive
from kurma_testing import load_driver

from kurma_core.errors import FetchError, FetchTimeoutError
from kurma_core.hookspecs.fetcher import FetchRequest, RemoteArchive
from plugins.fetch_http.tests.endless import endless


class Answers:
    """Answers each request with the next of some texts, the last for all that follow.

    :ivar connections: how many were made.
    """

    def __init__(self, texts: list[bytes], *, without_end: bool) -> None:
        self.connections = 0
        self._texts = texts
        self._without_end = without_end
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open = [self._listener]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/x.aci"

    def stop(self) -> None:
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._thread.join()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                self._open.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError):
            while connection.recv(1 << 16):
                connection.sendall(self._texts.pop(0) if len(self._texts) > 1 else self._texts[0])
                while self._without_end:
                    connection.sendall(b"x" * (1 << 16))


@contextmanager
def answers(*texts: bytes, without_end: bool = False) -> Iterator[Answers]:
    server = Answers(list(texts), without_end=without_end)
    try:
        yield server
    finally:
        server.stop()


def answer(status: str, *headers: str, body: bytes = b"", length: bool = True) -> bytes:
    lines = [f"HTTP/1.1 {status}", *headers, *([f"Content-Length: {len(body)}"] if length else [])]
    return "\r\n".join([*lines, "", ""]).encode() + body


def resolve(tmp_path: Path, server: Answers) -> RemoteArchive:
    fetcher = load_driver(kurma_fetch_http.plugin, tmp_path, {"retries": 1, "timeout": 5.0})
    found = fetcher.resolve(server.url, FetchRequest("linux", "amd64", frozenset({"http"})))
    assert isinstance(found, RemoteArchive)
    return found


def content(found: RemoteArchive) -> bytes:
    with found.blob.open(0) as stream:
        return b"".join(iter(lambda: stream.read(5000), b""))


@pytest.mark.parametrize("status", ["503 Busy", "429 Too Many Requests", "404 Not Found", "302 Found"])
def test_an_answer_that_is_not_wanted_may_have_no_end(tmp_path: Path, status: str) -> None:
    headers = ("Retry-After: 0", "Location: /x.aci")
    with answers(answer(status, *headers, length=False), without_end=True) as server:
        with pytest.raises(FetchError):
            resolve(tmp_path, server)


@pytest.mark.parametrize("headers", [("Location: /x.aci",), ("Location: /x.aci", "Transfer-Encoding: chunked")])
def test_a_short_one_keeps_the_connection(headers: tuple[str, ...]) -> None:
    chunked = len(headers) > 1
    body = b"4\r\nmove\r\n0\r\n\r\n" if chunked else b"moved"
    moved, good = answer("302 Found", *headers, body=body, length=not chunked), answer("200 OK", body=b"abc")
    with answers(moved, answer("503 Busy", "Retry-After: 0", body=b"later"), good) as server:
        transport = Transport(insecure={"http"}, retries=1, sleep=lambda seconds: None)
        found, _ = transport.request(server.url)
        assert found.read() == b"abc"
        assert server.connections == 1


@pytest.mark.parametrize("number", ["9" * 400, "9" * 5000, "-5", "\u0665", "1e3", ""])
def test_numbers_in_headers(tmp_path: Path, number: str) -> None:
    """What is no honest number says nothing; and nothing is fresh for ever."""
    with answers(answer("200 OK", f"Cache-Control: max-age={number}", body=b"abc")) as server:
        assert resolve(tmp_path, server).max_age == 0
    with answers(answer("200 OK", f"Cache-Control: max-age={'9' * 15}", body=b"abc")) as server:
        assert resolve(tmp_path, server).max_age == 365 * 86400
    with answers(answer("200 OK", f"Content-Length: {number}", body=b"abc", length=False)) as server:
        assert resolve(tmp_path, server).blob.size is None


class Drip(Answers):
    """Sends its one text byte by byte, ten a second, once it was asked something."""

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError):
            connection.recv(1 << 16)
            for byte in self._texts[0]:
                connection.sendall(bytes((byte,)))
                time.sleep(0.1)


@pytest.fixture
def drip() -> Iterator[Callable[[bytes], Drip]]:
    made: list[Drip] = []

    def start(text: bytes) -> Drip:
        made.append(Drip([text], without_end=False))
        return made[-1]

    yield start
    for one in made:
        one.stop()


@pytest.mark.parametrize("through", ["directly", "a proxy"])
def test_a_head_that_comes_byte_by_byte(
    drip: Callable[[bytes], Drip], through: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No single wait is long, and the whole has no end: it is given up after twice the time-out."""
    server = drip(answer("200 OK", *(f"X-Number-{number}: 0" for number in range(20)), body=b"x"))
    url = server.url
    if through == "a proxy":
        monkeypatch.setenv("https_proxy", url.removesuffix("/x.aci"))
        url = "https://example.com/x.aci"
    began = time.monotonic()
    with pytest.raises(FetchTimeoutError, match="no answer in time"):
        Transport(insecure={"http"}, timeout=0.5).request(url)
    assert 0.5 < time.monotonic() - began < 3
    assert server.connections == 1


def test_a_small_body_that_comes_byte_by_byte(drip: Callable[[bytes], Drip]) -> None:
    body = b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 100
    server = drip(body)
    found, url = Transport(insecure={"http"}, timeout=3.0).request(server.url)
    began = time.monotonic()
    with pytest.raises(FetchTimeoutError, match="is too slow"):
        transport.content(found, url, 1 << 14, 0.3)
    assert time.monotonic() - began < 3


def test_an_unwanted_body_that_comes_byte_by_byte(
    drip: Callable[[bytes], Drip], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kurma_fetch_http.transport._DISCARDING", 0.5)
    server = drip(b"HTTP/1.1 302 F\r\nLocation: x\r\n\r\n" + b"x" * 100)
    began = time.monotonic()
    with pytest.raises(FetchError):
        Transport(insecure={"http"}, timeout=0.2, retries=0).request(server.url)
    assert time.monotonic() - began < 8


def test_a_length_beside_chunks_says_nothing(tmp_path: Path) -> None:
    headers = ("Transfer-Encoding: chunked", "Content-Length: 99")
    with answers(answer("200 OK", *headers, body=b"3\r\nabc\r\n0\r\n\r\n", length=False)) as server:
        found = resolve(tmp_path, server)
        assert found.blob.size is None
        assert content(found) == b"abc"


_LENGTH = b'HTTP/1.1 200 OK\r\nETag: "a"\r\nContent-Length: 1000000\r\n\r\n'
_CHUNKED = b'HTTP/1.1 200 OK\r\nETag: "a"\r\nTransfer-Encoding: chunked\r\n\r\n'


@pytest.mark.parametrize("head", [_LENGTH, _CHUNKED])
def test_a_large_body_that_trickles(head: bytes) -> None:
    """Each byte comes before a read's time-out: it is ended for its speed, and asked for again as often as any."""
    transport = Transport(
        insecure={"http"}, retries=1, sleep=lambda seconds: None, low_speed=LowSpeed(10_000, 0.3), timeout=30
    )
    with endless(head, b"1", 0.01) as (url, asked):
        with web_archive(f"{url}/a.aci", transport).blob.open(0) as stream:
            with pytest.raises(FetchTimeoutError, match="is too slow: less than 10000 bytes a second"):
                list(iter(lambda: stream.read(1 << 18), b""))
    assert len(asked) <= 4, "the archive, its signatures, and once more"


def test_a_body_that_is_fast_enough_is_not_ended() -> None:
    """Several windows long, with a consumer that takes its time, which does not count."""
    transport = Transport(insecure={"http"}, retries=0, low_speed=LowSpeed(1, 0.1))
    with endless(_LENGTH, b"1", 0.01) as (url, _):
        with web_archive(f"{url}/a.aci", transport).blob.open(0) as stream:
            for count in range(40):
                assert stream.read(1 << 18)
                if count == 20:
                    time.sleep(0.3)
