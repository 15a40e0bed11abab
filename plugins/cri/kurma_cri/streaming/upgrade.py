"""The HTTP request that begins each connection: reads it, refuses it, or upgrades it."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

import h11

from kurma_core.value import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_PIECE = 16 << 10
_VERSION = "X-Stream-Protocol-Version"
_ACCEPTED = "X-Accepted-Stream-Protocol-Versions"


class RefusedRequestError(Exception):
    """:param status: of the answer. :param reason: a line for the client. :param headers: further ones."""

    def __init__(self, status: int, reason: str, headers: Iterable[tuple[str, str]] = ()) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = tuple(headers)


@frozen
class Head:
    """A request.

    :param target: its path, with its query. :param headers: names in lower case.
    """

    method: str
    target: str
    headers: tuple[tuple[bytes, bytes], ...]

    def values(self, name: str) -> list[str]:
        """The values of a header, which may be repeated, and separated by commas."""
        found = [value.decode("latin-1") for key, value in self.headers if key == name.lower().encode()]
        return [word.strip() for value in found for word in value.split(",") if word.strip()]

    def upgrades_to(self) -> str:
        """The protocol of the upgrade in lower case; empty: the request asks for no upgrade."""
        if "upgrade" not in [word.lower() for word in self.values("connection")]:
            return ""
        return next((word.lower() for word in self.values("upgrade")), "")


class Exchange:
    """Reads one request from a connection and answers it.

    :param connected: blocking. :param seconds: until the request must have arrived.
    """

    def __init__(self, connected: socket.socket, seconds: float) -> None:
        self._socket = connected
        self._end = time.monotonic() + seconds
        self._http = h11.Connection(h11.SERVER)

    def read(self) -> Head | None:
        """:returns: None: the client has gone, or has sent no request in time.

        :raises RefusedRequestError: it is not a request.
        """
        head = None
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                raise RefusedRequestError(error.error_status_hint, str(error)) from None
            if event is h11.NEED_DATA:
                if not self._receive():
                    return None
            elif isinstance(event, h11.Request):
                method, target = event.method.decode("ascii"), event.target.decode("ascii")
                head = Head(method, target, tuple((name, value) for name, value in event.headers))
                if head.values("transfer-encoding") or head.values("content-length") not in ([], ["0"]):
                    raise RefusedRequestError(413, "the request has a body")
            elif isinstance(event, h11.EndOfMessage):
                return head
            else:
                return None

    def _receive(self) -> bool:
        left = self._end - time.monotonic()
        if left <= 0:
            return False
        self._socket.settimeout(left)
        try:
            data = self._socket.recv(_PIECE)
        except OSError:
            return False
        finally:
            self._socket.settimeout(None)
        self._http.receive_data(data)
        return True

    def refuse(self, error: RefusedRequestError) -> None:
        """Answers with an error. :raises OSError: the client has gone."""
        text = f"{error.reason}\n".encode(errors="replace")
        headers = [
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", str(len(text))),
            ("Connection", "close"),
            *error.headers,
        ]
        try:
            parts = (
                self._http.send(h11.Response(status_code=error.status, headers=headers)),
                self._http.send(h11.Data(data=text)),
                self._http.send(h11.EndOfMessage()),
            )
        except h11.LocalProtocolError:
            return  # it was answered before
        self._socket.settimeout(max(0.1, self._end - time.monotonic()))
        self._socket.sendall(b"".join(part for part in parts if part))
        self._socket.shutdown(socket.SHUT_WR)

    def upgrade(self, version: str) -> bytes:
        """Switches to SPDY, with that version of the streams. :returns: bytes that the client has sent already.

        :raises OSError: the client has gone.
        """
        headers = [("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1"), (_VERSION, version)]
        answer = self._http.send(h11.InformationalResponse(status_code=101, headers=headers))
        assert answer is not None
        self._socket.sendall(answer)
        return self.rest()

    def rest(self) -> bytes:
        """Bytes that the client has sent after its request."""
        return bytes(self._http.trailing_data[0])


def choose_version(head: Head, supported: Sequence[str]) -> str:
    """The first of the client's versions of the streams that the server supports.

    :raises RefusedRequestError: there is none.
    """
    offered = head.values(_VERSION)
    if not offered:
        raise RefusedRequestError(400, f"the header {_VERSION} is missing")
    for version in offered:
        if version in supported:
            return version
    raise RefusedRequestError(
        403,
        f"none of these versions is supported: {', '.join(offered)}; supported: {', '.join(supported)}",
        [(_ACCEPTED, version) for version in supported],
    )
