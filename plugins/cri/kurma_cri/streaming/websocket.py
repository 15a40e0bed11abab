"""WebSocket connections: whole messages as bytes, and channels, whose number begins each message.

The library ``wsproto`` does the protocol.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Event, Ping, Request, TextMessage
from wsproto.extensions import Extension
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from kurma_cri.streaming.wire import GoneError

if TYPE_CHECKING:
    from kurma_cri.streaming.streams import Sink
    from kurma_cri.streaming.wire import Wire

NORMAL, MALFORMED = 1000, 1002
#: The channel by which a client of version 5 closes another one.
_CLOSE = 255
_PIECE = 32 << 10


class HandshakeError(Exception):
    """The request asks for no WebSocket connection."""


class Handshake:
    """The server's side of a handshake.

    :param headers: of the request. :param target: of it.
    :raises HandshakeError: it is malformed.
    """

    def __init__(self, headers: list[tuple[bytes, bytes]], target: str) -> None:
        self._connection = WSConnection(ConnectionType.SERVER)
        try:
            self._connection.initiate_upgrade_connection(headers, target)
            (request,) = self._connection.events()
        except RemoteProtocolError as error:
            raise HandshakeError(str(error)) from None
        assert isinstance(request, Request)
        #: The subprotocols that the client offers, the preferred one first.
        self.offered = tuple(request.subprotocols)

    def accept(self, subprotocol: str | None) -> tuple[bytes, WSConnection]:
        """:returns: the answer to send, and the connection."""
        extensions: list[Extension] = []
        answer = self._connection.send(AcceptConnection(subprotocol=subprotocol, extensions=extensions))
        return answer, self._connection


class WebSocket:
    """A connection after its handshake. One thread reads messages, any thread sends."""

    def __init__(self, wire: Wire, connection: WSConnection) -> None:
        self._wire = wire
        self._connection = connection
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def messages(self) -> Iterator[tuple[bytes, bool]]:
        """Yields messages in pieces, and whether the piece is a message's last, until the client has gone. Answers
        pings."""
        try:
            while data := self._wire.receive():
                try:
                    with self._lock:
                        self._connection.receive_data(data)
                        events = list(self._connection.events())
                except RemoteProtocolError as error:
                    self._reply(error.event_hint or CloseConnection(MALFORMED))
                    return
                for event in events:
                    if isinstance(event, Ping):
                        self._reply(event.response())
                    elif isinstance(event, BytesMessage):
                        yield bytes(event.data), event.message_finished
                    elif isinstance(event, TextMessage):
                        yield event.data.encode(), event.message_finished
                    elif isinstance(event, CloseConnection):
                        self._reply(event.response())
                        return
        except GoneError:
            pass
        finally:
            self._ended.set()

    def send(self, data: bytes, *, text: bool = False) -> None:
        """Sends a message. :raises GoneError: the client has gone, or closes the connection."""
        self._send(TextMessage(data.decode("latin-1")) if text else BytesMessage(data))

    def close(self, code: int = NORMAL) -> None:
        """Begins to close the connection. Repeatable."""
        self._reply(CloseConnection(code))

    def leave(self, seconds: float) -> None:
        """Disconnects the client, in another thread than :meth:`messages`, once it has disconnected itself or the
        time is over."""
        if not self._ended.wait(seconds):
            self._wire.hang_up()

    def is_gone(self) -> bool:
        return self._wire.is_gone()

    def hang_up(self) -> None:
        self._wire.hang_up()

    def _reply(self, event: Event) -> None:
        with contextlib.suppress(GoneError):
            self._send(event)

    def _send(self, event: Event) -> None:
        try:
            with self._lock:
                data = self._connection.send(event)
        except LocalProtocolError:
            raise GoneError from None
        self._wire.send(data)


class MessageWire:
    """A :class:`.wire.Wire` whose bytes are the content of binary messages."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._messages = websocket.messages()

    def receive(self) -> bytes:
        for data, _ in self._messages:
            if data:
                return data
        return b""

    def send(self, data: bytes) -> None:
        self._websocket.send(data)

    def is_gone(self) -> bool:
        return self._websocket.is_gone()

    def hang_up(self) -> None:
        self._websocket.hang_up()


class Channels:
    """The channels of a connection.

    :param encoded: messages are a digit and base64; otherwise a byte and the data.
    :param closes: the client may close a channel (version 5).
    """

    def __init__(self, websocket: WebSocket, *, encoded: bool = False, closes: bool = False) -> None:
        self._websocket = websocket
        self._encoded = encoded
        self._closes = closes

    def output(self, number: int) -> ChannelOutput:
        return ChannelOutput(self, number)

    def send(self, number: int, data: bytes) -> None:
        """Sends one message. :raises GoneError: the client has gone."""
        if self._encoded:
            self._websocket.send(b"%d" % number + base64.b64encode(data), text=True)
        else:
            self._websocket.send(bytes((number,)) + data)

    def run(self, sinks: Mapping[int, Sink]) -> None:
        """Receives until the client has gone, and aborts the sinks then. Drops what comes on other channels.

        :param sinks: by channel.
        """
        message = _Message(self._encoded)
        try:
            for piece, last in self._websocket.messages():
                try:
                    data = message.add(piece, last)
                except ValueError:
                    self._websocket.close(MALFORMED)
                    return
                sink = sinks.get(message.channel)
                if sink is not None and data:
                    sink.put(data)
                if last and self._closes and message.channel == _CLOSE and len(data) == 1 and data[0] in sinks:
                    sinks[data[0]].end()
                if last:
                    message = _Message(self._encoded)
        except GoneError:
            pass
        finally:
            for sink in sinks.values():
                sink.abort()

    def leave(self, seconds: float) -> None:
        """Closes the connection, in another thread than :meth:`run`."""
        self._websocket.close()
        self._websocket.leave(seconds)


class _Message:
    """A message that comes in pieces. :ivar channel: -1: not known yet."""

    def __init__(self, encoded: bool) -> None:
        self._encoded = encoded
        self._rest = b""
        self.channel = -1

    def add(self, piece: bytes, last: bool) -> bytes:
        """:returns: the data of that piece. :raises ValueError: it is malformed."""
        if self.channel < 0 and piece:
            self.channel = int(piece[:1].decode("ascii")) if self._encoded else piece[0]
            piece = piece[1:]
        if not self._encoded:
            return piece
        self._rest += piece
        count = len(self._rest) if last else len(self._rest) // 4 * 4
        text, self._rest = self._rest[:count], self._rest[count:]
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error:
            raise ValueError("it is not base64") from None


class ChannelOutput:
    """A channel as :class:`.streams.Output`."""

    def __init__(self, channels: Channels, number: int) -> None:
        self._channels = channels
        self._number = number

    def write(self, data: bytes) -> None:
        for at in range(0, len(data), _PIECE):
            self._send(data[at : at + _PIECE])

    def write_empty(self) -> None:
        """Sends an empty message, as old clients wait for one. :raises BrokenPipeError: the client has gone."""
        self._send(b"")

    def _send(self, data: bytes) -> None:
        try:
            self._channels.send(self._number, data)
        except GoneError:
            raise BrokenPipeError from None

    def close(self) -> None:
        """The server closes no channel: it closes the connection at the end."""
