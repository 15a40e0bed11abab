"""A small HTTP client for kurmad's unix socket (RFC 9112): writes requests, reads answers.

Not ``http.client``: importing that (with its parser of e-mails) takes longer than a whole request. This client
speaks only to kurmad, whose answers are trusted, and refuses what it does not understand.
"""

from __future__ import annotations

import _socket
import os

from kurma_core.errors import DaemonGoneError, HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Bytes of an answer's status line and headers.
_HEAD_LIMIT = 65536
_PIECE = 65536
_NOBODY = (FileNotFoundError, ConnectionRefusedError, NotADirectoryError)


class Refused(HostError):
    """The daemon's socket is not for us."""


class Body:
    """A request's body that is produced while it is sent. :param size: bytes."""

    def __init__(self, size: int, pieces: Iterator[bytes]) -> None:
        self.size = size
        self.pieces = pieces


class Response:
    """An answer whose body is read as it arrives.

    :param headers: by name in lower case.
    :param trailers: likewise; known once the body was read.
    """

    def __init__(self, connection: Connection, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        self.headers = headers
        self._connection = connection
        self._chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        length = headers.get("content-length")
        self._left = int(length) if length is not None else 0
        self.trailers: dict[str, str] = {}

    def read(self) -> bytes:
        """The rest of the body."""
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        """The body, in pieces as they arrive.

        :raises DaemonGoneError: kurmad died before the end of the body.
        """
        if self._chunked:
            yield from self._chunks()
            return
        while self._left:
            piece = self._connection.take(self._left)
            self._left -= len(piece)
            yield piece

    def _chunks(self) -> Iterator[bytes]:
        while True:
            size = int(self._connection.line().partition(b";")[0], 16)
            if size == 0:
                self.trailers = self._connection.fields()
                self._chunked = False
                return
            while size:
                piece = self._connection.take(size)
                size -= len(piece)
                yield piece
            self._connection.line()


class Connection:
    """A connection to the daemon, for one request at a time. Not for several threads."""

    def __init__(self, socket: _socket.socket, path: str) -> None:
        self.path = path
        #: The daemon's; known once it has answered.
        self.version: str | None = None
        #: Of the daemon's configuration; None: the client is not of the host.
        self.checksum: str | None = None
        self._socket = socket
        self._buffer = bytearray()

    @classmethod
    def open(cls, path: str) -> Connection:
        """Connects to the daemon.

        :raises DaemonGoneError: no daemon listens there.
        :raises Refused: this process may not use the socket.
        :raises HostError: as the kernel says.
        """
        socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
        try:
            _connect(socket, path)
        except OSError as error:
            socket.close()
            raise _kind(error)(
                f"cannot reach the daemon at {path}: {(error.strerror or str(error)).lower()}",
                hint=_hint(error),
                errno=error.errno,
                path=path,
            ) from None
        return cls(socket, path)

    @classmethod
    def find(cls, path: str) -> Connection | None:
        """As :meth:`open`; None: nothing listens there."""
        try:
            return cls.open(path)
        except DaemonGoneError:
            return None

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def closed(self) -> bool:
        """Whether the daemon has closed it: without a request, it sends only its reason for closing."""
        try:
            self._socket.recv(1, _socket.MSG_PEEK | _socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def request(
        self, method: str, target: str, body: bytes | Body | None = None, headers: Mapping[str, str] | None = None
    ) -> Response:
        """Sends a request. :returns: the answer's head; the previous answer must have been read.

        :param target: path and query, encoded.
        :raises DaemonGoneError: the daemon has ended.
        """
        lines = [f"{method} {target} HTTP/1.1", "Host: kurmad"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        if body is not None:
            lines.append(f"Content-Length: {body.size if isinstance(body, Body) else len(body)}")
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        try:
            if isinstance(body, Body):
                self.send(head)
                for piece in body.pieces:
                    self.send(piece)
            else:
                self.send(head + (body or b""))
        except DaemonGoneError as gone:
            try:
                return self._answer()  # the daemon may have sent the reason for closing the connection
            except DaemonGoneError:
                raise gone from None
        return self._answer()

    def send(self, data: bytes) -> None:
        """:raises DaemonGoneError: the daemon has ended."""
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise self._gone(error.strerror) from None

    def _answer(self) -> Response:
        words = self.line().split(b" ", 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
            raise self._stranger()
        headers = self.fields()
        status = int(words[1])
        if 100 <= status < 200 and status != 101:
            return self._answer()
        self.version = headers.get("kurma-version")
        if self.version is None:
            raise self._stranger()
        self.checksum = headers.get("kurma-config")
        return Response(self, status, headers)

    def fields(self) -> dict[str, str]:
        """Header or trailer fields, to the empty line, by name in small letters."""
        found: dict[str, str] = {}
        while line := self.line():
            name, _, value = line.decode("latin-1").partition(":")
            found[name.lower()] = value.strip()
        return found

    def _stranger(self) -> HostError:
        return HostError(
            f"the server at {self.path} is not kurmad", hint="--host local works without one", path=self.path
        )

    def line(self) -> bytes:
        """One line, without its end."""
        while True:
            end = self._buffer.find(b"\n")
            if end >= 0:
                found = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                return found.removesuffix(b"\r")
            if len(self._buffer) > _HEAD_LIMIT:
                raise self._stranger()
            self._buffer += self._receive()

    def take(self, most: int) -> bytes:
        """Between one and so many bytes."""
        if not self._buffer:
            self._buffer += self._receive()
        found = bytes(self._buffer[:most])
        del self._buffer[:most]
        return found

    def waiting(self) -> bool:
        """Whether received bytes are not taken yet."""
        return bool(self._buffer)

    def _receive(self) -> bytes:
        try:
            data = self._socket.recv(_PIECE)
        except ConnectionResetError:
            data = b""
        if not data:
            raise self._gone("it closed the connection")
        return data

    def _gone(self, why: str | None) -> DaemonGoneError:
        return DaemonGoneError(
            f"the daemon at {self.path} has gone: {why}",
            hint="pods run on without it; see: kurma list",
            path=self.path,
        )


def lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The lines of a body, without their ends."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole
    if rest:
        yield rest


def _kind(error: OSError) -> type[HostError]:
    if isinstance(error, PermissionError):
        return Refused
    return DaemonGoneError if isinstance(error, _NOBODY) else HostError


def _hint(error: OSError) -> str | None:
    if isinstance(error, _NOBODY):
        return "is kurmad running? --host local works without"
    if isinstance(error, PermissionError):
        return "root may, and members of the group that the socket belongs to (kurma)"
    return None


def _connect(socket: _socket.socket, path: str) -> None:
    """By way of the directory's descriptor: the kernel takes no paths of more than 107 bytes."""
    if len(os.fsencode(path)) < 100:
        socket.connect(path)
        return
    directory, name = os.path.split(path)
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        socket.connect(f"/proc/self/fd/{fd}/{name}")
    finally:
        os.close(fd)
