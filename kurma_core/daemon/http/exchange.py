"""HTTP connections of kurmad: reads requests and sends answers. h11 parses and writes HTTP."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

import h11

from kurma_core import VERSION
from kurma_core.api.operations import BODY_LIMIT, NDJSON
from kurma_core.daemon.http.error_status import Gone, LateError, TooLargeError
from kurma_core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from socket import socket as Socket

    from kurma_core.daemon.http.caller_rights import Peer

Json = Any
#: Limit in bytes of a request's line and headers.
HEAD_LIMIT = 16384
#: Limits in seconds: for a request's head or JSON body to arrive; between requests of a connection.
REQUEST_PATIENCE, IDLE_PATIENCE = 15.0, 120.0
#: Limit in seconds for the next piece of any other body to arrive, and for the client to read an answer.
PIECE_PATIENCE = 60.0
_PIECE = 65536


class Said(bytes):
    """A value that is encoded as JSON already, without the parts that are hidden from the client."""


class Exchange:
    """One request and its answer."""

    def __init__(self, connection: Connection, request: h11.Request) -> None:
        self.connection = connection
        self.method = request.method.decode("ascii")
        target = request.target.decode("ascii")
        if target.lower().startswith("http://"):
            target = "/" + target[7:].partition("/")[2]
        #: As it arrived: a slash within a part of the path is encoded.
        self.raw_path, _, query = target.partition("?")
        self.path = unquote(self.raw_path)
        self.query = parse_qsl(query, keep_blank_values=True)
        self.headers = {name.decode("ascii"): value.decode("latin-1") for name, value in request.headers}
        self.answered = False
        #: status of the answer; 0: none is sent yet
        self.status = 0
        self._whole = False

    @property
    def peer(self) -> Peer:
        return self.connection.peer

    @property
    def socket(self) -> Socket:
        return self.connection.socket

    # -- the request --

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
        """The body as it arrives.

        :raises LateError: it has not arrived by the deadline.
        :raises Gone: the client has disconnected.
        :raises UsageError: it is malformed.
        """
        if self.connection.http.they_are_waiting_for_100_continue:
            self.connection.send(h11.InformationalResponse(status_code=100, headers=[]))
        while not self._whole:
            try:
                event = self.connection.next(deadline)
            except h11.RemoteProtocolError as error:
                if self.connection.http.trailing_data[1]:  # it ended in the middle
                    raise Gone from None
                raise UsageError(f"the request's body is malformed: {in_words(error)}") from None
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                self._whole = True
            else:
                raise Gone

    def json(self) -> Json:
        """The body; None: it is empty. :raises UsageError: it is not JSON, or has a key twice."""
        data = self.body()
        if not data:
            return None
        from kurma_core.json_text import loads

        try:
            return loads(data, own=True)
        except ValueError as error:
            raise UsageError(f"the request's body: {error}") from None

    def has_body(self) -> bool:
        """Whether the body is more than blanks or an empty object. Reads only as much as that needs."""
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
        """Sends a whole answer."""
        self.answered = True
        self.status = status
        fields = [("Content-Type", content_type), ("Content-Length", str(len(body))), *headers]
        data = self.connection.head(status, fields)
        if self.method != "HEAD":
            data += self.connection.encoded(h11.Data(data=body))
        self.connection.write(data + self.connection.encoded(h11.EndOfMessage()))

    def respond_json(self, status: int, value: Json, headers: tuple[tuple[str, str], ...] = ()) -> None:
        self.respond(status, json_line(value), "application/json", headers)

    def begin(self, content_type: str) -> None:
        """Begins an answer that is sent by :meth:`piece`, until :meth:`end`."""
        self.answered = True
        self.status = 200
        self.connection.write(self.connection.head(200, [("Content-Type", content_type)]))

    def piece(self, data: bytes) -> None:
        """:raises Gone: the client has disconnected; or its request was HEAD, whose answer has no body."""
        if self.method == "HEAD":
            raise Gone
        self.connection.write(self.connection.encoded(h11.Data(data=data)))

    def message(self, value: Json) -> None:
        """Sends a line of an :data:`NDJSON` answer, and begins the answer before the first."""
        if not self.answered:
            self.begin(NDJSON)
        self.piece(json_line(value))

    def end(self, notes: Sequence[str] = ()) -> None:
        """:param notes: sent in a trailer, if the client accepts trailers."""
        trailers = [("Kurma-Notes", json.dumps(notes))] if notes and self._knows_trailers() else []
        self.connection.write(self.connection.encoded(h11.EndOfMessage(headers=trailers)))

    def _knows_trailers(self) -> bool:
        return "trailers" in self.headers.get("te", "")

    def fail(self, error: Json) -> None:
        """Ends an answer in pieces after an error, which is sent in a trailer.

        :raises Gone: the client does not accept trailers, so the connection must be closed.
        """
        if self.connection.http.our_state is not h11.SEND_BODY or not self._knows_trailers():
            raise Gone
        trailers = [("Kurma-Error", json.dumps(error))]
        self.connection.write(self.connection.encoded(h11.EndOfMessage(headers=trailers)))

    def upgrade(self, protocol: str) -> tuple[Socket, bytes]:
        """Hands the connection over to the caller, until the exchange is over.

        :returns: the socket, and the bytes that were already read from it.
        """
        for _ in self.pieces(time.monotonic() + REQUEST_PATIENCE):
            continue  # the rest of the body
        self.answered = True
        self.status = 101
        fields = [("Upgrade", protocol), ("Connection", "Upgrade"), *self.connection.always()]
        self.connection.send(h11.InformationalResponse(status_code=101, headers=fields))
        self.connection.upgraded = True
        return self.connection.socket, self.connection.http.trailing_data[0]


class Connection:
    """A client's connection. Exchanges follow each other on it.

    :param checksum: that of the configuration in force (:meth:`kurma_core.config.Config.checksum`).
    """

    def __init__(self, connected: Socket, peer: Peer, checksum: Callable[[], str] = str) -> None:
        self.socket = connected
        self.peer = peer
        self._checksum = checksum
        self.http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_LIMIT)
        self.upgraded = False
        #: The client may take any time to read.
        self.lasting = False

    def exchange(self) -> Exchange | None:
        """The next request; None: there is none. :raises h11.RemoteProtocolError: it is malformed."""
        deadline = time.monotonic() + IDLE_PATIENCE
        try:
            event = self.next(deadline, first=True)
        except Gone:
            return None
        except LateError:
            if self.http.trailing_data[0]:  # a part of a request has arrived
                raise
            return None
        if not isinstance(event, h11.Request):
            return None
        if event.http_version not in (b"1.0", b"1.1"):
            raise h11.RemoteProtocolError("only HTTP/1.1 is supported", error_status_hint=505)
        # h11 does not apply its limit to a head that arrives in one piece.
        if len(event.target) + sum(len(name) + len(value) for name, value in event.headers) > HEAD_LIMIT:
            raise h11.RemoteProtocolError("its line and headers are too long", error_status_hint=431)
        names = [name for name, _ in event.headers]
        if b"content-length" in names and b"transfer-encoding" in names:
            raise h11.RemoteProtocolError("Content-Length and Transfer-Encoding exclude each other")
        return Exchange(self, event)

    def finish(self, exchange: Exchange) -> bool:
        """Ends an exchange. :returns: whether another request may follow."""
        if not self.upgraded and self.http.their_state is h11.SEND_BODY:
            self.http.next_event()  # the end of a request without a body
        # Any other state: the connection is broken off or to be closed, or an unread body follows.
        if self.upgraded or (self.http.our_state, self.http.their_state) != (h11.DONE, h11.DONE):
            return False
        self.http.start_next_cycle()
        return True

    def next(self, deadline: float | None, *, first: bool = False) -> object:
        """The next event of h11. :raises Gone: the client has disconnected. :raises LateError: it is late.

        :param first: it is a request: after its first byte, :data:`REQUEST_PATIENCE` holds.
        """
        while True:
            event = self.http.next_event()
            if event is not h11.NEED_DATA:
                return event
            if first and self.http.trailing_data[0]:
                first = False
                deadline = time.monotonic() + REQUEST_PATIENCE
            self.http.receive_data(self._receive(deadline))

    def _receive(self, deadline: float | None) -> bytes:
        left = PIECE_PATIENCE if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise LateError("the request did not come in time")
        self.socket.settimeout(left)
        try:
            return self.socket.recv(_PIECE)
        except TimeoutError:
            raise LateError("the request did not come in time") from None
        except OSError:
            raise Gone from None

    def always(self) -> list[tuple[str, str]]:
        """Headers of each answer. An app in a pod has another configuration than the host, if it has any."""
        found = [("Kurma-Version", VERSION)]
        if self.peer.pod is None:
            found.append(("Kurma-Config", self._checksum()))
        return found

    def head(self, status: int, fields: list[tuple[str, str]]) -> bytes:
        headers = [("Cache-Control", "no-store"), *self.always(), *fields]
        return self.encoded(h11.Response(status_code=status, headers=headers))

    def encoded(self, event: h11.Event) -> bytes:
        return self.http.send(event) or b""

    def send(self, event: h11.Event) -> None:
        self.write(self.encoded(event))

    def write(self, data: bytes) -> None:
        """:raises Gone: the client has disconnected, or does not read in time."""
        self.socket.settimeout(None if self.lasting else PIECE_PATIENCE)
        try:
            for at in range(0, len(data), _PIECE):
                self.socket.sendall(data[at : at + _PIECE])
        except OSError:  # TimeoutError is one
            raise Gone from None


def in_words(error: h11.RemoteProtocolError) -> str:
    """h11's message without the bytes that it quotes in Python's notation."""
    return re.split(r""": (?:bytearray\()?b['"]""", str(error))[0]


def json_line(value: Json) -> bytes:
    """Encodes a value as a line of JSON.

    :param value: may be :class:`Said`, or a message whose ``value`` is one.
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
        # A lone surrogate, which represents a byte that is not UTF-8.
        return json.dumps(value, default=_mapping).encode() + b"\n"


def _mapping(value: Any) -> Any:
    """Encodes read-only views of mappings."""
    if hasattr(value, "keys"):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be encoded as JSON")
