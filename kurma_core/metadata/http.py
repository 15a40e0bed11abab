"""Parses HTTP/1.0 and 1.1 requests and formats responses, as far as the metadata service needs them (RFC 9112).

It is our own parser, because every process that serves pods imports it, and libraries take long to import. It
accepts no more than the grammar, does no I/O, and has a status for every refusal.
"""

from __future__ import annotations

import time

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
        raise HttpError(400, "the first line is no request's")
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
            raise HttpError(400, "a header's line is none")
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
        raise HttpError(400, "the body's length is no number")
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
        raise HttpError(400, "the request's target is no path")
    return path
