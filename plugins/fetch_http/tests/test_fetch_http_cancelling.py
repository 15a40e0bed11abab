"""An operation that is cancelled from another thread ends at once, wherever it waits for a server; it alone."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
import trustme
from kurma_fetch_http.resuming_reader import ResumingReader
from kurma_fetch_http.transport import Transport
from kurma_fetch_http.web_archive import web_archive
from kurma_testing.webserver import Page, WebServer, web_server

from kurma_core.cancellation import Cancellation, current, governing
from kurma_core.errors import Cancelled
from tests.kit.waiting import until

#: Seconds in which what is cancelled ends; the servers here say nothing for far longer.
PROMPT = 0.9


class Running:
    """A call in a thread of its own, as an operation of its own."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.operation = Cancellation()
        self.result: object = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(call,))
        self._thread.start()

    def _run(self, call: Callable[[], object]) -> None:
        try:
            with governing(self.operation):
                self.result = call()
        except BaseException as error:  # noqa: BLE001 - what it is, is asked below
            self.error = error

    def goes_on(self, reached: Callable[[], object] = lambda: True) -> bool:
        """Still, a while after it has come so far."""
        until(reached)
        self._thread.join(0.2)
        return self._thread.is_alive()

    def cancel(self) -> None:
        """And see it end."""
        self.operation.cancel()
        self._thread.join(PROMPT)
        assert not self._thread.is_alive(), "it waits on"
        assert isinstance(self.error, Cancelled), repr(self.error)

    def end(self) -> object:
        self._thread.join(10)
        assert self.error is None
        return self.result


@contextmanager
def mute(head: bytes = b"", *, backlog: int | None = None) -> Iterator[tuple[str, list[socket.socket]]]:
    """A server that takes connections, says ``head``, and nothing more; and those connections."""
    taken: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0), backlog=backlog) as listener, ExitStack() as opened:

        def take() -> None:
            while True:
                try:
                    peer = listener.accept()[0]
                except OSError:
                    return
                opened.enter_context(peer)
                taken.append(peer)
                if head:
                    peer.sendall(head)

        threading.Thread(target=take, daemon=True).start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}", taken
        finally:
            listener.shutdown(socket.SHUT_RDWR)


@contextmanager
def full() -> Iterator[str]:
    """A port where no connection is taken: the queue is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as opened:
        for _ in range(3):
            one = opened.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def transport(**options: object) -> Transport:
    return Transport(insecure={"http", "tls"}, **options)  # type: ignore[arg-type]


def test_while_nobody_takes_the_connection() -> None:
    with full() as host:
        one = Running(lambda: transport().request(f"http://{host}/x"))
        assert one.goes_on()
        one.cancel()


def test_while_tls_is_not_answered() -> None:
    with mute() as (host, taken):
        one = Running(lambda: transport().request(f"https://{host}/x"))
        assert one.goes_on(lambda: taken)
        one.cancel()
        assert len(taken) == 1, "it was tried again"
        greeting = b""
        taken[0].settimeout(2)
        while data := taken[0].recv(1 << 16):  # it ends: the connection was closed
            greeting += data
        assert greeting.startswith(b"\x16\x03")


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nX-Long: "])
def test_while_the_head_of_the_answer_does_not_come(head: bytes) -> None:
    with mute(head) as (host, taken):
        one = Running(lambda: transport().request(f"http://{host}/x"))
        assert one.goes_on(lambda: taken)
        one.cancel()
        assert len(taken) == 1, "it was tried again"


def test_while_the_head_does_not_come_over_tls() -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    with web_server(context) as server:
        server.pages["/x"] = Page(b"x", delay=5)
        one = Running(lambda: transport().request(server.url("/x")))
        assert one.goes_on(lambda: server.seen)
        one.cancel()


@pytest.mark.parametrize("name", ["http_proxy", "https_proxy"])
def test_while_the_proxy_does_not_answer(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with mute() as (host, taken):
        monkeypatch.setenv(name, f"http://{host}")
        monkeypatch.delenv("no_proxy", raising=False)
        one = Running(lambda: transport().request(f"{name.partition('_')[0]}://example.com/x"))
        assert one.goes_on(lambda: taken)
        one.cancel()


def test_while_the_name_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the C library, where nothing wakes it."""
    answer = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *words, **options: answer.wait(20) and [])
    one = Running(lambda: transport().request("http://example.com/x"))
    try:
        assert one.goes_on()
        one.cancel()
    finally:
        answer.set()


def test_in_a_pause_that_the_server_asked_for() -> None:
    with web_server() as server:
        server.pages["/x"] = Page(b"x", statuses=[429], headers={"Retry-After": "30"})
        one = Running(lambda: transport().request(server.url("/x")))
        assert one.goes_on(lambda: server.seen)
        one.cancel()
        assert len(server.seen) == 1


@pytest.mark.parametrize("length", [True, False], ids=["length", "until-close"])
def test_while_the_body_does_not_come(length: bool) -> None:
    with web_server() as server:
        server.pages["/x"] = Page(bytes(100_000), stalls=[1000, 1000], length=length)

        def read() -> bytes:
            with web_archive(server.url("/x"), transport()).blob.open(0) as stream:
                return b"".join(iter(lambda: stream.read(1 << 16), b""))

        one = Running(read)
        assert one.goes_on(lambda: server.seen)
        one.cancel()
        assert len(server.seen) == 1, "it was asked again"


def test_a_reader_that_resumes_asks_no_more() -> None:
    """Its connection breaks, and the server does not answer the next request."""
    with web_server() as server:
        page = server.pages["/x"] = Page(bytes(100_000), cuts=[1000])

        def read() -> bytes:
            with web_archive(server.url("/x"), transport()).blob.open(0) as stream:
                assert isinstance(stream, ResumingReader)
                page.delay = 5
                return b"".join(iter(lambda: stream.read(1 << 16), b""))

        one = Running(read)
        assert one.goes_on(lambda: len(server.seen) > 1)
        one.cancel()


def test_the_other_one_goes_on() -> None:
    """Two wait for the same server; each has its own."""
    with web_server() as server:
        server.pages["/x"] = Page(b"content", delay=2.0)
        shared = transport()

        def ask() -> bytes:
            return shared.request(server.url("/x"))[0].read()

        one, two = Running(ask), Running(ask)
        assert one.goes_on(lambda: len(server.seen) > 1)
        one.cancel()
        assert two.goes_on()
        assert two.end() == b"content"


def test_what_was_cancelled_before_asks_nobody(server: WebServer) -> None:
    operation = Cancellation()
    operation.cancel()
    with governing(operation), pytest.raises(Cancelled):
        transport().request(server.url("/x"))
    assert not server.seen
    assert transport().request(server.url("/x"))[0].status == 200, "outside, nobody has cancelled anything"
    assert not current().cancelled


@pytest.fixture
def server() -> Iterator[WebServer]:
    with web_server() as server:
        server.pages["/x"] = Page(b"x")
        yield server
