"""What stands before a real registry: TLS, a token server, connections that break, and a count of what was asked.

Requests are handed on to the registry as they came; the answers come from it, but for the faults that a test sets.
"""

from __future__ import annotations

import base64
import http.client
import http.server
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True)
class Asked:
    """One request: its path, where it wanted to begin, and how many bytes of the body it got."""

    method: str
    path: str
    authorization: str
    start: int = 0
    sent: int = 0
    body: str = ""


@dataclass
class Tokens:
    """A token server. Repositories under ``public/`` are open to anybody; the others to ``user``, password
    ``secret``, or to the refresh token ``refresh``.

    :param uses: how many requests each token is good for.
    :ivar issued: repository by token, and the uses that are left.
    """

    uses: int = 1000
    issued: dict[str, list[Any]] = field(default_factory=dict)

    def issue(self, scope: str, allowed: bool) -> str | None:
        match = re.fullmatch(r"repository:([a-z0-9/]+):pull", scope)
        if match is None or not (allowed or match[1].startswith("public/")):
            return None
        token = f"t{len(self.issued)}"
        self.issued[token] = [match[1], self.uses]
        return token

    def good(self, token: str, path: str) -> bool:
        entry = self.issued.get(token)
        if entry is None or not entry[1] or not path.startswith(f"/v2/{entry[0]}/"):
            return False
        entry[1] -= 1
        return True


class Front:
    """:param target: host:port of the registry.

    :ivar cut: given a path, after how many bytes of its body the connection is cut; None: it is not.
    :ivar fault: given a path, the status to answer with instead of asking the registry; None: ask it.
    :ivar change: given a path and a body, what is sent instead.
    :ivar stall: given a path, after how many bytes nothing more comes; None: it does not stall.
    :ivar pace: seconds between pieces of 64 KiB.
    """

    def __init__(self, target: str, tls: ssl.SSLContext | None, tokens: Tokens | None) -> None:
        self.asked: list[Asked] = []
        self.cut: Callable[[str], int | None] = lambda path: None
        self.fault: Callable[[str], int | None] = lambda path: None
        self.change: Callable[[str, bytes], bytes] = lambda path, body: body
        self.stall: Callable[[str], int | None] = lambda path: None
        self.over = threading.Event()
        self.headers: dict[str, str] = {}
        self.pace = 0.0
        self.tokens = tokens
        self.target = target
        self.server = _Server(("127.0.0.1", 0), _handler(self))
        if tls is not None:
            self.server.socket = tls.wrap_socket(
                self.server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.host = f"127.0.0.1:{self.server.server_address[1]}"
        self.scheme = "http" if tls is None else "https"

    def of(self, digest: str) -> list[Asked]:
        """What was asked of one blob."""
        return [asked for asked in self.asked if asked.path.endswith(f"/blobs/{digest}")]

    def tokens_asked(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.path == "/token"]

    def realm(self) -> str:
        return f"{self.scheme}://{self.host}/token"


@contextmanager
def front(target: str, tls: ssl.SSLContext | None = None, tokens: Tokens | None = None) -> Iterator[Front]:
    found = Front(target, tls, tokens)
    thread = threading.Thread(target=found.server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.over.set()
        found.server.shutdown()
        found.server.server_close()
        thread.join()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that hang up are what some tests are about."""


def _handler(front: Front) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 20

        def log_message(self, format: str, *args: object) -> None:
            """Tests look at ``asked``."""

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
            self._token({key: values[0] for key, values in parse_qs(body).items()}, body)

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            if parts.path == "/token":
                self._token({key: values[0] for key, values in parse_qs(parts.query).items()}, "")
                return
            authorization = self.headers.get("Authorization", "")
            status = front.fault(parts.path)
            if status is None and front.tokens is not None:
                token = authorization.removeprefix("Bearer ")
                status = None if front.tokens.good(token, parts.path) else 401
            if status is not None:
                front.asked.append(Asked("GET", parts.path, authorization))
                self._fault(status, parts.path)
            else:
                self._hand_on(parts.path, authorization)

        def _fault(self, status: int, path: str) -> None:
            headers = dict(front.headers)
            if status == 401:
                scope = f"repository:{path.removeprefix('/v2/').rpartition('/')[0].rpartition('/')[0]}:pull"
                headers["WWW-Authenticate"] = f'Bearer realm="{front.realm()}",service="tests",scope="{scope}"'
            self._say(status, headers, b'{"errors": [{"code": "NO", "message": "not now"}]}')

        def _token(self, query: dict[str, str], body: str) -> None:
            authorization = self.headers.get("Authorization", "")
            front.asked.append(Asked(self.command, "/token", authorization, body=body))
            known = base64.b64encode(b"user:secret").decode()
            allowed = authorization == f"Basic {known}" or query.get("refresh_token") == "refresh"
            assert front.tokens is not None
            token = front.tokens.issue(query.get("scope", ""), allowed)
            if token is None:
                self._say(401, {}, b"{}")
            else:
                self._say(200, {}, json.dumps({"token": token, "expires_in": 60}).encode())

        def _hand_on(self, path: str, authorization: str) -> None:
            names = ("Accept", "Range")
            wanted = {name: self.headers[name] for name in names if name in self.headers}
            # The registry may be gone by now, where a test has held us back.
            with closing(http.client.HTTPConnection(front.target, timeout=20)) as connection:
                connection.request("GET", path, headers=wanted)
                answer = connection.getresponse()
                body = front.change(path, answer.read())
            start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").rstrip("-"))
            kept = ("Content-Type", "Content-Range", "Location", "Docker-Content-Digest")
            headers = {name: answer.headers[name] for name in kept if name in answer.headers}
            sent = self._say(answer.status, headers, body, front.cut(path), front.stall(path))
            front.asked.append(Asked("GET", path, authorization, start, sent))

        def _say(
            self,
            status: int,
            headers: dict[str, str],
            body: bytes,
            cut: int | None = None,
            stall: int | None = None,
        ) -> int:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            whole = body if cut is None else body[:cut]
            sent = 0
            if stall is not None:
                self.wfile.write(whole[:stall])
                front.over.wait()
                self.close_connection = True
                return stall
            try:
                for place in range(0, len(whole), 1 << 16):
                    sent += self.wfile.write(whole[place : place + (1 << 16)])
                    if front.pace:
                        time.sleep(front.pace)
            except OSError:
                self.close_connection = True
            if cut is not None:
                self.close_connection = True
            return sent

    return Handler
