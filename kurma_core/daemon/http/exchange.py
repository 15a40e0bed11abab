"""One request and its answer, as a handler sees them. The grammar of HTTP is h11's."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from socket import socket as Socket
from typing import Any
from urllib.parse import parse_qsl, unquote

import h11

from kurma_core.errors import KurmaError, UsageError
from kurma_core.version import VERSION

Json = Any
#: Bytes of a request's line and headers, and of a body that is JSON.
HEAD_LIMIT, BODY_LIMIT = 16384, 4 << 20
#: Seconds in which a request's head, or a body that is JSON, must have come; between requests of a connection.
REQUEST_PATIENCE, IDLE_PATIENCE = 15.0, 120.0
#: Seconds until more of a body that is no JSON must have come, and until more of an answer must have been taken.
PIECE_PATIENCE = 60.0
_PIECE = 65536
NDJSON = "application/x-ndjson"


class Said(bytes):
    """A value as JSON already, without what who asks may not see."""


class Gone(Exception):
    """Who asked is not there any more, or is not worth waiting for."""


class LateError(KurmaError):
    """A request did not come in time."""


class TooLargeError(KurmaError):
    """A request's body is longer than it may be."""


class Peer:
    """Who is at the other end.

    :param uid: of the process that connected.
    :param rights: ``full`` or ``read``.
    :param pod: UUID of the pod whose own socket it came by, and ``app`` its app; None: it came by the host's.
    """

    def __init__(self, uid: int, pid: int, rights: str, pod: str | None = None, app: str | None = None) -> None:
        self.uid = uid
        self.pid = pid
        self.rights = rights
        self.pod = pod
        self.app = app

    def __str__(self) -> str:
        whose = "" if self.pod is None else f"pod {self.pod}, app {self.app}, "
        return f"{whose}user {self.uid}, process {self.pid}"


class Exchange:
    """:param method: ``GET``. :param path: decoded; :param query: (name, value) as they came."""

    def __init__(self, line: Connection, request: h11.Request) -> None:
        self._line = line
        self.method = request.method.decode("ascii")
        target = request.target.decode("ascii")
        if target.lower().startswith("http://"):
            target = "/" + target[7:].partition("/")[2]
        #: As it came: in its parts, a slash may stand encoded.
        self.raw_path, _, query = target.partition("?")
        self.path = unquote(self.raw_path)
        self.query = parse_qsl(query, keep_blank_values=True)
        self.headers = {name.decode("ascii"): value.decode("latin-1") for name, value in request.headers}
        self.answered = False
        #: of the answer; 0: there was none yet
        self.status = 0
        self._whole = False

    @property
    def peer(self) -> Peer:
        return self._line.peer

    @property
    def socket(self) -> Socket:
        return self._line.socket

    @property
    def line(self) -> Connection:
        return self._line

    # -- what was asked --

    def body(self) -> bytes:
        """The whole body. :raises TooLargeError: it is longer than :data:`BODY_LIMIT`."""
        found = bytearray()
        if self.headers.get("content-length", "0").zfill(20) > str(BODY_LIMIT).zfill(20):
            raise TooLargeError(f"the request's body is longer than {BODY_LIMIT} bytes")
        deadline = time.monotonic() + REQUEST_PATIENCE
        for piece in self.pieces(deadline):
            found += piece
            if len(found) > BODY_LIMIT:
                raise TooLargeError(f"the request's body is longer than {BODY_LIMIT} bytes")
        return bytes(found)

    def pieces(self, deadline: float | None = None) -> Iterator[bytes]:
        """The body as it comes. :raises LateError: not by then. :raises Gone: it does not come.

        :raises UsageError: what comes is no body.
        """
        if self._line.http.they_are_waiting_for_100_continue:
            self._line.send(h11.InformationalResponse(status_code=100, headers=[]))
        while not self._whole:
            try:
                event = self._line.next(deadline)
            except h11.RemoteProtocolError as error:
                if self._line.http.trailing_data[1]:  # it ended in the middle
                    raise Gone from None
                raise UsageError(f"the request's body is malformed: {in_words(error)}") from None
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                self._whole = True
            else:
                raise Gone

    def json(self) -> Json:
        """The body; None: there is none. :raises UsageError: it is no JSON, or has a key twice."""
        data = self.body()
        if not data:
            return None
        from kurma_core.daemon.bodies import parse

        try:
            return parse(data)
        except ValueError as error:
            raise UsageError(f"the request's body is no JSON: {error}") from None

    def has_body(self) -> bool:
        """Whether there is one that says anything: more than blanks, or an empty object. No more of it is read."""
        found = b""
        for piece in self.pieces(time.monotonic() + REQUEST_PATIENCE):
            found = (found + piece).strip()
            if len(found) > len(b"{}"):
                return True
        return found not in (b"", b"{}")

    # -- the answer --

    def respond(
        self, status: int, body: bytes, content_type: str, headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        """A whole answer."""
        self.answered = True
        self.status = status
        fields = [("Content-Type", content_type), ("Content-Length", str(len(body))), *headers]
        data = self._line.head(status, fields)
        if self.method != "HEAD":
            data += self._line.encoded(h11.Data(data=body))
        self._line.write(data + self._line.encoded(h11.EndOfMessage()))

    def respond_json(self, status: int, value: Json, headers: tuple[tuple[str, str], ...] = ()) -> None:
        self.respond(status, json_line(value), "application/json", headers)

    def begin(self, content_type: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        """An answer that comes in pieces, by :meth:`piece`, until :meth:`end`."""
        self.answered = True
        self.status = 200
        self._line.write(self._line.head(200, [("Content-Type", content_type), *headers]))

    def piece(self, data: bytes) -> None:
        """:raises Gone: nobody reads it; or nobody wants it: HEAD asks for no more than how it begins."""
        if self.method == "HEAD":
            raise Gone
        self._line.write(self._line.encoded(h11.Data(data=data)))

    def message(self, value: Json) -> None:
        """A line of an answer that is :data:`NDJSON`, which begins with the first."""
        if not self.answered:
            self.begin(NDJSON)
        self.piece(json_line(value))

    def end(self, notes: Sequence[str] = ()) -> None:
        """:param notes: for who knows trailers."""
        trailers = [("Kurma-Notes", json.dumps(notes))] if notes and self._knows_trailers() else []
        self._line.write(self._line.encoded(h11.EndOfMessage(headers=trailers)))

    def _knows_trailers(self) -> bool:
        return "trailers" in self.headers.get("te", "")

    def fail(self, error: Json) -> None:
        """Ends an answer that came in pieces, and that is wrong. Whoever knows trailers is told why.

        :raises Gone: they do not: the connection is broken off.
        """
        if self._line.http.our_state is not h11.SEND_BODY or not self._knows_trailers():
            raise Gone
        trailers = [("Kurma-Error", json.dumps(error))]
        self._line.write(self._line.encoded(h11.EndOfMessage(headers=trailers)))

    def upgrade(self, protocol: str) -> tuple[Socket, bytes]:
        """The connection is the caller's from here on, until the exchange is over.

        :returns: the socket, and what came on it already.
        """
        for _ in self.pieces(time.monotonic() + REQUEST_PATIENCE):
            continue  # what of the body nobody has read
        self.answered = True
        self.status = 101
        fields = [("Upgrade", protocol), ("Connection", "Upgrade"), ("Kurma-Version", VERSION)]
        self._line.send(h11.InformationalResponse(status_code=101, headers=fields))
        self._line.upgraded = True
        return self._line.socket, self._line.http.trailing_data[0]


class Connection:
    """A connection, as the exchanges on it use it."""

    def __init__(self, connected: Socket, peer: Peer) -> None:
        self.socket = connected
        self.peer = peer
        self.http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_LIMIT)
        self.upgraded = False
        #: It may take as long as it likes to read what it is told.
        self.lasting = False

    def exchange(self) -> Exchange | None:
        """The next request; None: there will be none. :raises h11.RemoteProtocolError: what came is no request."""
        deadline = time.monotonic() + IDLE_PATIENCE
        try:
            event = self.next(deadline, first=True)
        except Gone:
            return None
        except LateError:
            if self.http.trailing_data[0]:  # else nobody has asked for anything
                raise
            return None
        if not isinstance(event, h11.Request):
            return None
        if event.http_version not in (b"1.0", b"1.1"):
            raise h11.RemoteProtocolError("HTTP/1.1 is spoken here", error_status_hint=505)
        # What comes in one piece is not held against h11's own limit.
        if len(event.target) + sum(len(name) + len(value) for name, value in event.headers) > HEAD_LIMIT:
            raise h11.RemoteProtocolError("its line and headers are too long", error_status_hint=431)
        names = [name for name, _ in event.headers]
        if b"content-length" in names and b"transfer-encoding" in names:
            raise h11.RemoteProtocolError("a body's length is said twice, in two ways")
        return Exchange(self, event)

    def finish(self, exchange: Exchange) -> bool:
        """After the answer. :returns: whether another request may come."""
        if not self.upgraded and self.http.their_state is h11.SEND_BODY:
            self.http.next_event()  # the end of a request that has no body
        # Else it was broken off, or is to be closed; or there is a body that nobody wanted.
        if self.upgraded or (self.http.our_state, self.http.their_state) != (h11.DONE, h11.DONE):
            return False
        self.http.start_next_cycle()
        return True

    def next(self, deadline: float | None, *, first: bool = False) -> object:
        """The next event. :raises Gone: none comes. :raises LateError: not in time.

        :param first: of a request: once something of it has come, it has :data:`REQUEST_PATIENCE`.
        """
        begun = False
        while True:
            event = self.http.next_event()
            if event is not h11.NEED_DATA:
                return event
            if first and not begun and self.http.trailing_data[0]:
                begun = True
                deadline = time.monotonic() + REQUEST_PATIENCE
            self.http.receive_data(self._receive(deadline))
            if first and not begun:
                begun = True
                deadline = time.monotonic() + REQUEST_PATIENCE

    def _receive(self, deadline: float | None) -> bytes:
        left = PIECE_PATIENCE if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise LateError("the request did not come in time")
        self.socket.settimeout(left)
        try:
            data = self.socket.recv(_PIECE)
        except TimeoutError:
            raise LateError("the request did not come in time") from None
        except OSError:
            raise Gone from None
        return data

    def head(self, status: int, fields: list[tuple[str, str]]) -> bytes:
        always = [("Cache-Control", "no-store"), ("Kurma-Version", VERSION)]
        return self.encoded(h11.Response(status_code=status, headers=[*always, *fields]))

    def encoded(self, event: h11.Event) -> bytes:
        return self.http.send(event) or b""

    def send(self, event: h11.Event) -> None:
        self.write(self.encoded(event))

    def write(self, data: bytes) -> None:
        """:raises Gone: nobody is there to read, or takes it."""
        self.socket.settimeout(None if self.lasting else PIECE_PATIENCE)
        try:
            for at in range(0, len(data), _PIECE):
                self.socket.sendall(data[at : at + _PIECE])
        except OSError:  # TimeoutError is one
            raise Gone from None


def in_words(error: h11.RemoteProtocolError) -> str:
    """What h11 says, without how Python would write what it has found."""
    return re.split(r""": (?:bytearray\()?b['"]""", str(error))[0]


def json_line(value: Json) -> bytes:
    """A value as JSON, in one line with its end.

    :param value: may be :class:`Said`, or a message whose ``value`` is.
    """
    if isinstance(value, Said):
        return value + b"\n"
    if isinstance(value, dict) and isinstance(value.get("value"), Said):
        said: bytes = value["value"]
        rest = {key: one for key, one in value.items() if key != "value"}
        return json_line(rest)[:-2] + b', "value": ' + said + b"}\n"
    try:
        return json.dumps(value, ensure_ascii=False, default=_mapping).encode() + b"\n"
    except UnicodeEncodeError:
        # Half a surrogate pair, as stands for a byte that is no UTF-8.
        return json.dumps(value, default=_mapping).encode() + b"\n"


def _mapping(value: Any) -> Any:
    """Read-only views are mappings, too."""
    if hasattr(value, "keys"):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is nothing that JSON can say")


__all__ = [
    "NDJSON",
    "Connection",
    "Exchange",
    "Gone",
    "LateError",
    "Peer",
    "Said",
    "TooLargeError",
    "in_words",
    "json_line",
]
