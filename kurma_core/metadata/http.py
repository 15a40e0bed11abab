"""The HTTP of the metadata service: parses requests, formats responses, serves a connection without blocking.

Implements as much of RFC 9112 as the service needs. It is our own parser, because every process that serves pods
imports it, and libraries take long to import. It accepts no more than the grammar, and has a status for every
refusal.
"""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable


#: Bytes of a request's line and headers together, of its body, and how many headers it may have.
HEAD_LIMIT, BODY_LIMIT, HEADER_LIMIT = 8192, 65536, 64
_METHODS = frozenset((b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"TRACE", b"CONNECT"))
_WITH_BODY = frozenset((b"POST", b"PUT", b"PATCH"))
_TOKEN = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_VISIBLE = frozenset(range(0x21, 0x7F))
_NO_TEXT = frozenset((*range(0x09), *range(0x0A, 0x20), 0x7F))
#: Headers that determine how a request is read: a second one of the name would be ambiguous.
_ONCE = (b"host", b"content-length", b"transfer-encoding", b"content-type", b"metadata-flavor", b"expect")

REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    411: "Length Required",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    417: "Expectation Failed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    505: "HTTP Version Not Supported",
}
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
ASCII = "text/plain; charset=us-ascii"


class HttpError(Exception):
    """An error answer to a request. :param message: text for people; :param headers: headers of the answer."""

    def __init__(self, status: int, message: str, *headers: tuple[str, str]) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers

    def response(self) -> Response:
        return Response(self.status, f"{self.message}\n".encode("ascii", "replace"), ASCII, *self.headers)


class Request:
    """One request.

    :param path: undecoded, with its leading slash and without the query.
    :param headers: by name in lower case.
    :param keep_alive: more requests may follow.
    """

    __slots__ = ("body", "headers", "keep_alive", "method", "path")

    def __init__(self, method: bytes, path: bytes, headers: dict[bytes, bytes], keep_alive: bool) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.keep_alive = keep_alive
        self.body = b""


class Response:
    __slots__ = ("body", "content_type", "headers", "status")

    def __init__(self, status: int, body: bytes, content_type: str, *headers: tuple[str, str]) -> None:
        self.status = status
        self.body = body
        self.content_type = content_type
        self.headers = headers

    def head(self, *, keep_alive: bool) -> bytes:
        """Formats status line and headers, with the empty line after them."""
        lines = [
            f"HTTP/1.1 {self.status} {REASONS[self.status]}",
            f"Date: {_date(int(time.time()))}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
            "Cache-Control: no-store",
            f"Connection: {'keep-alive' if keep_alive else 'close'}",
            *[f"{name}: {value}" for name, value in self.headers],
        ]
        return "\r\n".join([*lines, "", ""]).encode("ascii")


def _date(seconds: int) -> str:
    at = time.gmtime(seconds)
    day, month = _DAYS[at.tm_wday], _MONTHS[at.tm_mon - 1]
    return f"{day}, {at.tm_mday:02} {month} {at.tm_year} {at.tm_hour:02}:{at.tm_min:02}:{at.tm_sec:02} GMT"


class RequestReader:
    """Parses the requests of one connection from its bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head: tuple[Request, int] | None = None
        #: The client waits for "100 Continue" before it sends the body.
        self.continue_wanted = False

    def feed(self, data: bytes) -> None:
        self._buffer += data

    @property
    def started(self) -> bool:
        """Whether a part of the next request has come."""
        return bool(self._buffer) or self._head is not None

    def next(self) -> Request | None:
        """Returns the next whole request; None: more bytes must come.

        :raises HttpError: it is malformed, so that the connection cannot go on.
        """
        if self._head is None:
            head = self._take_head()
            if head is None:
                return None
            self._head = parse_head(head)
            self.continue_wanted = b"expect" in self._head[0].headers
        request, length = self._head
        if len(self._buffer) < length:
            return None
        request.body = bytes(self._buffer[:length])
        del self._buffer[:length]
        self._head = None
        self.continue_wanted = False
        return request

    def _take_head(self) -> bytes | None:
        if self._buffer.startswith((b"\r", b"\n")):
            # Empty lines before a request must be ignored (RFC 9112, 2.2).
            del self._buffer[: len(self._buffer) - len(self._buffer.lstrip(b"\r\n"))]
        end = self._buffer.find(b"\r\n\r\n", 0, HEAD_LIMIT)
        if end < 0:
            if len(self._buffer) >= HEAD_LIMIT:
                raise HttpError(431, f"the request's headers are longer than {HEAD_LIMIT} bytes")
            if b"\n\n" in self._buffer or b"\n\r\n" in self._buffer:
                raise HttpError(400, "lines end with CR and LF")
            return None
        head = bytes(self._buffer[:end])
        del self._buffer[: end + 4]
        return head


def parse_head(head: bytes) -> tuple[Request, int]:
    """Parses the head of a request.

    :param head: up to, and without, the empty line.
    :returns: the request without its body, and the body's length.
    :raises HttpError: it is malformed or not supported.
    """
    first, *lines = head.split(b"\r\n")
    words = first.split(b" ")
    if len(words) != 3 or not words[0] or not _TOKEN.issuperset(words[0]):
        raise HttpError(400, "the first line is not a request's")
    method, target, version = words
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        numbered = len(version) == 8 and version.startswith(b"HTTP/") and version[6:7] == b"."
        raise HttpError(505 if numbered else 400, "the protocol is HTTP/1.0 or HTTP/1.1")
    if method not in _METHODS:
        raise HttpError(501, "there is no such method")
    headers = _headers(lines)
    if version == b"HTTP/1.1" and b"host" not in headers:
        raise HttpError(400, "the request has no Host header")
    length = _length(method, version, headers)
    if headers.get(b"expect", b"100-continue").lower() != b"100-continue":
        raise HttpError(417, "nothing but 100-continue can be expected")
    asked = {word.strip().lower() for word in headers.get(b"connection", b"").split(b",")}
    keep_alive = b"close" not in asked and (version == b"HTTP/1.1" or b"keep-alive" in asked)
    return Request(method, _path(target), headers, keep_alive), length


def _headers(lines: list[bytes]) -> dict[bytes, bytes]:
    if len(lines) > HEADER_LIMIT:
        raise HttpError(431, f"the request has more than {HEADER_LIMIT} headers")
    headers: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        name, value = name.lower(), value.strip(b" \t")
        # This also refuses a line that continues in the next, or has a space before its colon.
        if not colon or not name or not _TOKEN.issuperset(name) or not _NO_TEXT.isdisjoint(value):
            raise HttpError(400, "a header's line is malformed")
        if name in headers:
            if name in _ONCE:
                raise HttpError(400, f"the header {name.decode()} is there twice")
            value = headers[name] + b", " + value
        headers[name] = value
    return headers


def _length(method: bytes, version: bytes, headers: dict[bytes, bytes]) -> int:
    if b"transfer-encoding" in headers:
        if b"content-length" in headers or version == b"HTTP/1.0":
            raise HttpError(400, "the body's length is said in two ways")
        if headers[b"transfer-encoding"].lower() != b"chunked":
            raise HttpError(501, "there is no such transfer coding")
        raise HttpError(411, "a body in chunks is not taken; say its length")
    text = headers.get(b"content-length")
    if text is None:
        if method in _WITH_BODY:
            raise HttpError(411, "the body's length is not said")
        return 0
    # isdigit of bytes accepts only the ten ASCII digits.
    if not text.isdigit():
        raise HttpError(400, "the body's length is not a number")
    if len(text) > 18 or int(text) > BODY_LIMIT:
        raise HttpError(413, f"the body is longer than {BODY_LIMIT} bytes")
    return int(text)


def _path(target: bytes) -> bytes:
    if not _VISIBLE.issuperset(target):
        raise HttpError(400, "the request's target has bytes that no target has")
    if target[:7].lower() == b"http://":
        _, slash, rest = target[7:].partition(b"/")
        target = slash + rest
    path = target.partition(b"?")[0]
    if not path.startswith(b"/"):
        raise HttpError(400, "the request's target is not a path")
    return path


#: Seconds for a whole request to arrive; for the next one to begin; for the client to read an answer; and after a
#: refusal, for discarding what the client still sends: closing at once would reset the connection before the
#: client has read the reason.
REQUEST_TIME, IDLE_TIME, ANSWER_TIME, FAREWELL_TIME = 10.0, 15.0, 20.0, 2.0
_READ_SIZE = 16384
_FAREWELL_SIZE = 1 << 20
#: MSG_NOSIGNAL: writing to a client that has gone is an error, and sends no SIGPIPE.
_NO_SIGNAL = 0x4000


class Connection:
    """One connection.

    :param answer: returns the answer to a request; other exceptions than :class:`HttpError` are answered by 500.
    :param now: seconds of the monotonic clock, here and in all methods.
    """

    def __init__(self, sock: socket.socket, answer: Callable[[Request], Response], now: float) -> None:
        self._socket = sock
        self._answer = answer
        self._reader = RequestReader()
        self._out: list[memoryview] = []
        self._ending = False
        self._used = False
        self._farewell = 0
        self.fd = sock.fileno()
        self.closed = False
        self.begun = now
        #: The client has sent the token, or is in the pod's network namespace.
        self.trusted = False
        self.deadline = now + REQUEST_TIME
        #: Events that the connection waits for, and events that epoll watches for.
        self.interest = self.watched = select.EPOLLIN

    @property
    def idle(self) -> bool:
        """Whether the connection is between two requests: one was answered, and no byte of the next has come."""
        return self._used and not (self._reader.started or self._out or self._ending)

    def advance(self, now: float) -> bool:
        """Does the work that is possible without blocking, up to one request.

        :returns: whether more work is possible already.
        """
        try:
            return self._advance(now)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            self.closed = True
            return False

    def _advance(self, now: float) -> bool:
        if self._out:
            self._flush(now)
            return self._reader.started and not (self._out or self._ending)
        if self._ending:
            data = self._socket.recv(_READ_SIZE)
            self._farewell += len(data)
            self.closed = not data or self._farewell > _FAREWELL_SIZE
            return False
        try:
            request = self._reader.next()
            if request is None:
                request = self._read(now)
        except HttpError as error:
            self._say(error.response(), now, keep_alive=False)
            return False
        if request is None:
            if self._reader.continue_wanted:
                self._reader.continue_wanted = False
                self._out.append(memoryview(b"HTTP/1.1 100 Continue\r\n\r\n"))
                self._flush(now, self.deadline)
            return False
        response = self._answered(request)
        self.trusted = self.trusted or response.status != 401
        self._say(response, now, keep_alive=request.keep_alive, body=request.method != b"HEAD")
        return self._reader.started and not (self._out or self._ending)

    def _read(self, now: float) -> Request | None:
        data = self._socket.recv(_READ_SIZE)
        if not data:
            self.closed = True
            return None
        idle = self.idle
        self._reader.feed(data)
        request = self._reader.next()
        if idle and self._reader.started:
            # Empty lines before a request do not start it, so they do not extend the deadline.
            self.deadline = now + REQUEST_TIME
        return request

    def _answered(self, request: Request) -> Response:
        try:
            return self._answer(request)
        except HttpError as error:
            return error.response()
        except Exception:  # noqa: BLE001 - a request, or a record on disk, must not end the service of all pods
            return HttpError(500, "the pod's records cannot be read").response()

    def _say(self, response: Response, now: float, *, keep_alive: bool, body: bool = True) -> None:
        self._ending = not keep_alive
        self._used = True
        head = response.head(keep_alive=keep_alive)
        # A small answer is sent in one piece; a large body is not copied, since connections share it.
        if len(response.body) <= _READ_SIZE:
            self._out.append(memoryview(head + response.body if body else head))
        else:
            self._out += [memoryview(head), memoryview(response.body)] if body else [memoryview(head)]
        self.deadline = now + ANSWER_TIME
        self._flush(now)

    def _flush(self, now: float, deadline: float | None = None) -> None:
        """Sends the queued bytes. :param deadline: the deadline afterwards; None: the one for the next request."""
        self.interest = select.EPOLLOUT
        while self._out:
            sent = self._socket.send(self._out[0], _NO_SIGNAL)
            self._out[0] = self._out[0][sent:]
            if not self._out[0]:
                del self._out[0]
        self.interest = select.EPOLLIN
        if self._ending:
            self._socket.shutdown(1)  # no further answer follows
            self.deadline = now + FAREWELL_TIME
        else:
            self.deadline = now + (REQUEST_TIME if self._reader.started else IDLE_TIME)
        if deadline is not None:
            self.deadline = deadline

    def expire(self, now: float) -> None:
        """Ends the connection at its deadline. An incomplete request is answered by 408."""
        if not self._reader.started or self._out or self._ending:
            self.closed = True
            return
        try:
            late = HttpError(408, f"the request did not come within {REQUEST_TIME:g} s")
            self._say(late.response(), now, keep_alive=False)
        except OSError:
            self.closed = True

    def close(self) -> None:
        """May be repeated."""
        self.closed = True
        self._socket.close()
