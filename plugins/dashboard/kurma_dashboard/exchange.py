"""HTTP on one connection, by h11: reads requests within limits of size and time, sends answers and streams."""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import h11

from kurma_core.value import frozen
from kurma_dashboard.access import RefusedError

Json = Any
#: Bytes of a request's line and headers, and of its body, at most.
_HEAD_LIMIT = 16 << 10
_BODY_LIMIT = 8 << 10
_PIECE = 16 << 10
#: Seconds until the next request has begun, until a request has come, and until an answer has been taken.
_IDLE = 20.0
_REQUEST = 10.0
_ANSWER = 20.0
#: The page loads what this server sends; no script or style stands in the page itself.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
#: Seconds in which the rest of a refused request is read.
_DRAIN = 1.0
#: Headers of each answer.
SECURITY = (
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    # Not no-referrer: browsers would then send `Origin: null` with the page's own forms.
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)


class Gone(Exception):
    """The client has disconnected, or does not send or read in time."""


@frozen
class Request:
    """:param path: its parts, decoded. :param query: the last of each name.
    :param headers: names in lower case.
    """

    method: str
    path: tuple[str, ...]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Json]:
        """The body, which is an object; an empty body is an empty object.

        :raises RefusedError: it is not JSON, or not an object.
        """
        try:
            found = json.loads(self.body or b"{}")
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise RefusedError(400, "the body must be a JSON object")
        return found

    def cookie(self, name: str) -> str | None:
        for pair in self.headers.get("cookie", "").split(";"):
            key, _, value = pair.strip().partition("=")
            if key == name:
                return value
        return None


class Exchange:
    """The requests and answers of one connection."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_LIMIT)

    def read(self) -> Request | None:
        """The next request; None: there is none.

        :raises RefusedError: it is malformed, too long or late. :raises Gone: the client has gone.
        """
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        elif self._http.our_state is not h11.IDLE:
            return None
        end, body, head = time.monotonic() + _IDLE, b"", None
        try:
            while True:
                event = self._http.next_event()
                if event is h11.NEED_DATA:
                    if self._http.they_are_waiting_for_100_continue:
                        raise RefusedError(417, "the request must not wait for an answer")
                    if not self._receive(end):
                        return None
                    end = min(end, time.monotonic() + _REQUEST)
                elif isinstance(event, h11.Request):
                    head = event
                    # h11 does not apply its limit to a head that arrives in one piece.
                    if (
                        len(event.target) + sum(len(name) + len(value) for name, value in event.headers)
                        > _HEAD_LIMIT
                    ):
                        raise RefusedError(431, "the request's headers are too long")
                elif isinstance(event, h11.Data):
                    body += bytes(event.data)
                    if len(body) > _BODY_LIMIT:
                        raise RefusedError(413, "the request's body is too long")
                elif isinstance(event, h11.EndOfMessage) and head is not None:
                    return _request(head, body)
                else:
                    return None
        except h11.RemoteProtocolError as error:
            raise RefusedError(error.error_status_hint, "the request is malformed") from None

    def _receive(self, end: float) -> bool:
        """:returns: False: the client has gone, or nothing came in time."""
        left = end - time.monotonic()
        if left <= 0:
            return False
        self._socket.settimeout(left)
        try:
            data = self._socket.recv(_PIECE)
        except OSError:
            return False
        self._http.receive_data(data)
        return True

    # -- answers --

    def answer(
        self, status: int, body: bytes, content_type: str, headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        """:raises Gone: the client has gone, or does not read."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            raise Gone
        fields = [("Content-Type", content_type), ("Content-Length", str(len(body))), *SECURITY, *headers]
        if self._http.their_state is not h11.DONE:
            fields.append(("Connection", "close"))  # a part of the request is unread
        self._send(
            self._http.send(h11.Response(status_code=status, headers=fields)),
            self._http.send(h11.Data(data=body)),
            self._http.send(h11.EndOfMessage()),
        )

    def drain(self) -> None:
        """Reads for a moment what the client still sends: an early close would take the answer from it."""
        end = time.monotonic() + _DRAIN
        try:
            self._socket.shutdown(socket.SHUT_WR)
            while (left := end - time.monotonic()) > 0:
                self._socket.settimeout(left)
                if not self._socket.recv(_PIECE):
                    return
        except OSError:
            return

    def answer_json(self, status: int, value: Json) -> None:
        self.answer(status, json.dumps(value).encode(), "application/json")

    def begin_events(self) -> None:
        """Begins a stream of server-sent events, which the end of the connection ends."""
        fields = [("Content-Type", "text/event-stream"), ("Connection", "close"), *SECURITY]
        self._send(self._http.send(h11.Response(status_code=200, headers=fields)))

    def event(self, kind: str, value: Json) -> None:
        """Sends an event. :raises Gone: the client has gone, or does not read."""
        self._send(self._http.send(h11.Data(data=f"event: {kind}\ndata: {json.dumps(value)}\n\n".encode())))

    @property
    def broken(self) -> bool:
        """The request was refused before it was wholly read: the connection must be closed."""
        return self._http.their_state not in (h11.DONE, h11.IDLE)

    def end_events(self) -> None:
        """Ends the stream. :raises Gone: as :meth:`event`."""
        self._send(self._http.send(h11.EndOfMessage()))

    def keep_alive(self) -> None:
        """Sends a comment, so that a connection without events is not taken for a dead one."""
        self._send(self._http.send(h11.Data(data=b":\n\n")))

    def check(self) -> None:
        """:raises Gone: the client has disconnected."""
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        if poll.poll(0):
            raise Gone

    def _send(self, *parts: bytes | None) -> None:
        self._socket.settimeout(_ANSWER)  # of the whole
        try:
            self._socket.sendall(b"".join(part for part in parts if part))
        except OSError:
            raise Gone from None


def _request(head: h11.Request, body: bytes) -> Request:
    target = head.target.decode("ascii", "replace")
    if not target.startswith("/"):
        raise RefusedError(400, "the request's target must be a path")
    url = urlsplit(target.lstrip("/"), allow_fragments=False) if target.startswith("//") else urlsplit(target)
    headers: dict[str, str] = {}
    for name, value in head.headers:
        key = name.decode("ascii")
        if key in headers and key in ("host", "origin", "cookie"):
            raise RefusedError(400, "a header stands twice in the request")
        headers[key] = value.decode("latin-1")
    if "host" not in headers:
        raise RefusedError(400, "the request names no host")
    try:
        query = dict(parse_qsl(url.query, max_num_fields=20))
    except ValueError:
        raise RefusedError(400, "the request has too many parameters") from None
    path = tuple(unquote(part) for part in url.path.split("/")[1:])
    return Request(head.method.decode("ascii"), path, query, headers, body)
