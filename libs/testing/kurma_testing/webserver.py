"""HTTP servers for tests: a web server that misbehaves on demand, and a proxy that tunnels to it."""

from __future__ import annotations

import base64
import http.server
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl


#: Seconds that a stalled answer pauses.
_STALL = 30.0


@dataclass
class Page:
    """The content and behaviour of one path.

    :param etag: sent as the validator; "" for none.
    :param cuts: for each following request, the number of bytes after which the connection is cut.
    :param statuses: for each following request, a status to answer instead of the content.
    :param ranges: ranges are supported.
    :param length: the length is announced.
    :param stalls: for each following request, the number of bytes after which the answer pauses.
    :param delay: seconds before the answer.
    :param gate: the server waits with the answer until it is set.
    :ivar sent: how often the content, or a part of it, was sent.
    """

    content: bytes = b""
    etag: str = '"one"'
    cuts: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    ranges: bool = True
    length: bool = True
    delay: float = 0.0
    gate: threading.Event | None = None
    redirect: str = ""
    authorization: str = ""
    stalls: list[int] = field(default_factory=list)
    sent: int = 0


@dataclass(frozen=True)
class Seen:
    """One received request."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""


class WebServer:
    """Serves :attr:`pages` (by path, without the query) on a free port of 127.0.0.1, or the port given.

    A page may belong to one host: then its key is host and path (``example.com/a``).

    :ivar seen: the received requests.
    """

    def __init__(self, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", port: int = 0) -> None:
        self.pages: dict[str, Page] = {}
        self.seen: list[Seen] = []
        self._server = _Server((host, port), _handler(self))
        if tls is not None:
            # The threads of the connections do the TLS handshake: one that fails must not end the server.
            self._server.socket = tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._scheme = "http" if tls is None else "https"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def host(self) -> str:
        return f"{self._server.server_address[0]!s}:{self._server.server_address[1]}"

    def url(self, path: str) -> str:
        return f"{self._scheme}://{self.host}{path}"

    def requests(self, path: str) -> list[Seen]:
        return [seen for seen in self.seen if seen.path.partition("?")[0] == path]

    def start(self) -> WebServer:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def web_server(tls: ssl.SSLContext | None = None, port: int = 0) -> Iterator[WebServer]:
    """Runs a :class:`WebServer` inside a ``with`` statement."""
    server = WebServer(tls, port=port).start()
    try:
        yield server
    finally:
        server.stop()


class _Server(http.server.ThreadingHTTPServer):
    # Connections that a client keeps open must not keep the test from ending.
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores errors: some tests have clients that hang up, or refuse the certificate."""


def _handler(server: WebServer) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 20

        def log_message(self, format: str, *args: object) -> None:
            """Logs nothing; tests use ``seen``."""

        def do_GET(self) -> None:
            self._answer(b"")

        def do_DELETE(self) -> None:
            self._answer(b"")

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers.get("Content-Length", "0"))))

        def _answer(self, body: bytes) -> None:
            server.seen.append(Seen(self.command, self.path, dict(self.headers), body))
            path = self.path.partition("?")[0]
            page = server.pages.get(self.headers.get("Host", "") + path) or server.pages.get(path)
            if page is None:
                self._say(404, {}, b"no such page")
                return
            if page.delay:
                threading.Event().wait(page.delay)
            if page.gate is not None:
                page.gate.wait(_STALL)
            if page.statuses:
                self._say(page.statuses.pop(0), page.headers, b"not now")
            elif page.authorization and self.headers.get("Authorization") != page.authorization:
                self._say(401, page.headers, b"who are you")
            elif page.redirect:
                self._say(302, {"Location": page.redirect}, b"")
            else:
                self._page(page)

        def _page(self, page: Page) -> None:
            start = self._start_of(page)
            content = page.content[start:]
            headers = dict(page.headers)
            if page.etag:
                headers["ETag"] = page.etag
            if start:
                headers["Content-Range"] = f"bytes {start}-{len(page.content) - 1}/{len(page.content)}"
            if page.etag and self.headers.get("If-None-Match") == page.etag:
                self._say(304, headers, b"")
                return
            page.sent += 1
            cut = page.cuts.pop(0) if page.cuts else None
            stall = page.stalls.pop(0) if page.stalls else None
            self._say(206 if start else 200, headers, content, length=page.length, cut=cut, stall=stall)

        def _start_of(self, page: Page) -> int:
            span = self.headers.get("Range", "")
            meant = self.headers.get("If-Range", page.etag) == page.etag
            if not page.ranges or not meant or not span.startswith("bytes="):
                return 0
            return int(span.removeprefix("bytes=").rstrip("-"))

        def _say(
            self,
            status: int,
            headers: Mapping[str, str],
            content: bytes,
            *,
            length: bool = True,
            cut: int | None = None,
            stall: int | None = None,
        ) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if length:
                self.send_header("Content-Length", str(len(content)))
            else:
                self.send_header("Connection", "close")
            self.end_headers()
            if stall is not None:
                self.wfile.write(content[:stall])
                threading.Event().wait(_STALL)
                return
            self.wfile.write(content if cut is None else content[:cut])
            if cut is not None or not length:
                self.close_connection = True

    return Handler


class Proxy:
    """Listens on a free port of 127.0.0.1.

    :param hosts: the target ``host:port`` by the requested ``host:port``; others are refused (502).
    :param login: the ``USER:PASSWORD`` that the proxy requires; "" for none.
    :ivar asked: the ``host:port`` of each request.
    """

    def __init__(self, hosts: Mapping[str, str], login: str = "") -> None:
        self.hosts = dict(hosts)
        self.asked: list[str] = []
        self._login = "Basic " + base64.b64encode(login.encode()).decode() if login else ""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._socket.getsockname()[1]}"

    def start(self) -> Proxy:
        self._thread.start()
        return self

    def stop(self) -> None:
        # close() alone would not wake the thread that waits in accept().
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            head = b""
            while b"\r\n\r\n" not in head:
                data = client.recv(4096)
                if not data:
                    return
                head += data
            request, *lines = head.decode("latin-1").split("\r\n")
            target = request.split()[1]
            self.asked.append(target)
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            if self._login and headers.get("proxy-authorization") != self._login:
                self._refuse(client, "407 Proxy Authentication Required")
                return
            place = self.hosts.get(target)
            if place is None:
                self._refuse(client, "502 Bad Gateway")
                return
            host, _, port = place.rpartition(":")
            with socket.create_connection((host, int(port))) as server:
                self._open.append(server)
                client.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
                back = threading.Thread(target=_pump, args=(server, client), daemon=True)
                back.start()
                _pump(client, server)
                back.join()

    def _refuse(self, client: socket.socket, status: str) -> None:
        client.sendall(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        client.shutdown(socket.SHUT_RDWR)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxy(hosts: Mapping[str, str], login: str = "") -> Iterator[Proxy]:
    """Runs a :class:`Proxy` inside a ``with`` statement."""
    server = Proxy(hosts, login).start()
    try:
        yield server
    finally:
        server.stop()
