"""Servers that ask to wait: for seconds or until a date, within bounds, and the user is told when it is long."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate

import pytest
from kurma_fetch_http.transport import LONGEST_WAIT, Transport, content
from kurma_testing.webserver import Page, WebServer, web_server

from kurma_core.errors import FetchError, FetchRefusedError


class Clock:
    """Does not wait, but remembers how long it was to."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.notes: list[str] = []

    def transport(self, retries: int = 4) -> Transport:
        return Transport(insecure={"http"}, retries=retries, sleep=self.waits.append, note=self.notes.append)


@pytest.fixture
def server() -> Iterator[WebServer]:
    with web_server() as server:
        server.pages["/x"] = Page(b"x")
        yield server


def busy(server: WebServer, retry_after: str, times: int = 1, status: int = 429) -> str:
    server.pages["/x"].statuses = [status] * times
    server.pages["/x"].headers = {"Retry-After": retry_after}
    return server.url("/x")


def test_a_long_wait_is_told_and_a_short_one_is_not(server: WebServer) -> None:
    clock = Clock()
    clock.transport().request(busy(server, "20"))
    assert clock.waits == [20.0]
    assert clock.notes == [f"{server.host}: too many requests: trying again in 20 s"]
    clock = Clock()
    clock.transport().request(busy(server, "1", status=503))
    assert (clock.waits, clock.notes) == ([1.0], [])


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_waits_without_a_word_grow(server: WebServer, status: int) -> None:
    """Each twice the last (D6); what is final is not asked again."""
    clock = Clock()
    server.pages["/x"].statuses = [status] * 4
    assert clock.transport().request(server.url("/x"))[0].status == 200
    assert clock.waits == [0.2, 0.4, 0.8, 1.6]
    server.pages["/x"].statuses = [status] * 9
    with pytest.raises(FetchError):
        clock.transport(retries=1).request(server.url("/x"))
    server.pages["/x"].statuses = [501]
    with pytest.raises(FetchError, match="status 501"):
        clock.transport().request(server.url("/x"))
    assert clock.waits == [0.2, 0.4, 0.8, 1.6, 0.2]


def test_a_connection_that_breaks_before_the_answer_is_tried_again(server: WebServer) -> None:
    """As a server does that is being restarted, or a proxy whose server is."""
    clock = Clock()
    taken: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answer in (b"", b"", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx"):
                connection, _ = listener.accept()
                with connection:
                    taken.append(len(connection.recv(1 << 16)))
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        answer, url = clock.transport().request(f"http://127.0.0.1:{listener.getsockname()[1]}/x")
        assert content(answer, url, 10, 60) == b"x"
        thread.join(10)
    assert len(taken) == 3
    assert clock.waits == [0.2, 0.4]


def test_a_date(server: WebServer) -> None:
    clock = Clock()
    clock.transport().request(busy(server, formatdate(time.time() + 30, usegmt=True)))
    (wait,) = clock.waits
    assert 25 < wait <= 30
    clock = Clock()
    clock.transport().request(busy(server, formatdate(time.time() - 3000, usegmt=True)))
    assert clock.waits == [0.0]


@pytest.mark.parametrize("text", ["soon", "-5", "1e9", "Fri, 31 Dec 9999 99:99:99", "\N{ARABIC-INDIC DIGIT FIVE}"])
def test_what_is_neither(server: WebServer, text: str) -> None:
    clock = Clock()
    clock.transport().request(busy(server, text.encode().decode("latin-1")))
    assert clock.waits == [0.2], "as if nothing were said"


@pytest.mark.parametrize("text", ["3600", "9" * 400, "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_too_long_to_wait_for(server: WebServer, text: str) -> None:
    clock = Clock()
    with pytest.raises(FetchRefusedError, match="too many requests") as caught:
        clock.transport().request(busy(server, text))
    assert clock.waits == []
    assert (caught.value.hint or "").endswith("seconds, as the server asks")


def test_all_waits_of_one_request_together_have_a_bound(server: WebServer) -> None:
    clock = Clock()
    with pytest.raises(FetchRefusedError, match="too many requests"):
        clock.transport(retries=50).request(busy(server, "25", times=50))
    assert sum(clock.waits) <= LONGEST_WAIT
    assert len(clock.waits) == 2


def test_what_is_sent_is_not_sent_to_where_it_is_redirected(server: WebServer) -> None:
    with web_server() as elsewhere:
        elsewhere.pages["/"] = Page(b"got you")
        server.pages["/x"].redirect = elsewhere.url("/")
        with pytest.raises(FetchRefusedError, match="redirects what was sent"):
            Clock().transport().request(server.url("/x"), method="POST", body=b"secret")
        assert elsewhere.seen == []
        assert Clock().transport().request(server.url("/x"))[1] == elsewhere.url("/")


def test_plain_http_to_some_hosts_alone(server: WebServer) -> None:
    with web_server() as elsewhere:
        elsewhere.pages["/"] = Page(b"got you")
        server.pages["/away"] = Page(redirect=elsewhere.url("/"))
        transport = Transport(plain=lambda host: host == server.host)
        assert transport.request(server.url("/x"))[0].status == 200
        with pytest.raises(FetchRefusedError, match="plain http is not allowed"):
            transport.request(server.url("/away"))
        assert elsewhere.seen == []
