"""Frames of SPDY/3.1, as bytes: parses what a peer has sent, and writes frames.

It does no I/O. Names of headers are lower case; a header's values are joined by NUL, as on the wire.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping

from kurma_core.value import field, frozen

VERSION = 3
SYN_STREAM, SYN_REPLY, RST_STREAM, SETTINGS, PING, GOAWAY, HEADERS, WINDOW_UPDATE = 1, 2, 3, 4, 6, 7, 8, 9
FIN, UNIDIRECTIONAL = 0x01, 0x02
#: Status codes of RST_STREAM.
PROTOCOL_ERROR, INVALID_STREAM, REFUSED_STREAM, CANCEL, INTERNAL_ERROR = 1, 2, 3, 5, 6
STREAM_IN_USE, STREAM_CLOSED = 8, 9
#: The identifier of a setting: the window that new streams begin with.
INITIAL_WINDOW_SIZE = 7
#: Bytes that a peer may send on a stream, and on all together, before it gets a WINDOW_UPDATE.
WINDOW = 64 << 10
#: Most bytes of a control frame, of a header block without compression, and of a data frame that is written.
_LARGEST_FRAME, _LARGEST_HEADERS, PIECE = 64 << 10, 256 << 10, 16 << 10
_STREAM_ID = 0x7FFFFFFF

_WORDS = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age "
    "allow authorization cache-control connection content-base content-encoding content-language content-length "
    "content-location content-md5 content-range content-type date etag expect expires from host if-match "
    "if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma "
    "proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade "
    "user-agent vary via warning www-authenticate method get status"
)
_WORDS_WITH_SPACES = ("200 OK", "version", "HTTP/1.1", "url", "public", "set-cookie", "keep-alive", "origin")
_TEXT = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 Non-Au"
    "thoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidd"
    "en404 Not Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr Ma"
    "y Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,imag"
    "e/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,publicpri"
    "vatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)
#: The dictionary that header blocks are compressed with (SPDY/3, 2.6.10.1): words after their length, and text.
DICTIONARY = (
    b"".join(struct.pack(">I", len(word)) + word.encode() for word in (*_WORDS.split(), *_WORDS_WITH_SPACES))
    + _TEXT.encode()
)


class SpdyError(Exception):
    """The peer has sent bytes that are not SPDY/3.1. The connection cannot be used any more."""


@frozen
class SynStream:
    """:param fin: the peer will send no data. :param unidirectional: the peer reads no data."""

    stream: int
    headers: Mapping[str, str]
    fin: bool = False
    unidirectional: bool = False


@frozen
class Data:
    """:param fin: the peer will send no more. A long frame comes in pieces, of which the last has it."""

    stream: int
    data: bytes
    fin: bool = False


@frozen
class Headers:
    stream: int
    headers: Mapping[str, str]
    fin: bool = False


@frozen
class Reset:
    stream: int
    status: int


@frozen
class Settings:
    values: Mapping[int, int] = field(default_factory=dict)


@frozen
class Ping:
    number: int


@frozen
class GoAway:
    last: int


@frozen
class WindowUpdate:
    """:param stream: 0: of the whole connection."""

    stream: int
    size: int


Frame = SynStream | Data | Headers | Reset | Settings | Ping | GoAway | WindowUpdate


class FrameReader:
    """Parses the frames of one peer, from pieces of any size."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)
        #: The data frame that is being read: stream, bytes left, whether it ends the stream.
        self._stream, self._left, self._fin = 0, 0, False

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yields the frames that are complete now. :raises SpdyError: the bytes are malformed."""
        self._held += data
        while True:
            if self._left:
                if not self._held:
                    return
                piece = bytes(self._held[: self._left])
                del self._held[: len(piece)]
                self._left -= len(piece)
                yield Data(self._stream, piece, self._fin and not self._left)
                continue
            if len(self._held) < 8:
                return
            first, length = struct.unpack_from(">II", self._held)
            flags, length = length >> 24, length & 0xFFFFFF
            if not first >> 31:
                del self._held[:8]
                self._stream, self._left, self._fin = first, length, bool(flags & FIN)
                if not length:
                    yield Data(first, b"", self._fin)
                continue
            if first >> 16 & 0x7FFF != VERSION:
                raise SpdyError(f"a frame of version {first >> 16 & 0x7FFF}")
            if length > _LARGEST_FRAME:
                raise SpdyError(f"a control frame of {length} bytes")
            if len(self._held) < 8 + length:
                return
            body = bytes(self._held[8 : 8 + length])
            del self._held[: 8 + length]
            frame = self._control(first & 0xFFFF, flags, body)
            if frame is not None:
                yield frame

    def _control(self, kind: int, flags: int, body: bytes) -> Frame | None:
        """:returns: None: a frame of a kind that has no meaning here."""
        try:
            if kind == SYN_STREAM:
                (stream,) = struct.unpack_from(">I", body)
                headers = self._headers(body[_at(body, 10) :])
                return SynStream(stream & _STREAM_ID, headers, bool(flags & FIN), bool(flags & UNIDIRECTIONAL))
            if kind in (SYN_REPLY, HEADERS):
                (stream,) = struct.unpack_from(">I", body)
                # A reply, too, must be inflated: all blocks share one state.
                return Headers(stream & _STREAM_ID, self._headers(body[4:]), bool(flags & FIN))
            if kind == SETTINGS:
                (count,) = struct.unpack_from(">I", body)
                entries = struct.iter_unpack(">II", body[4:])
                values = {identifier & 0xFFFFFF: value for identifier, value in entries}
                if len(body) != 4 + 8 * count:
                    raise SpdyError("a SETTINGS frame of the wrong length")
                return Settings(values)
            if kind == PING:
                return Ping(*struct.unpack(">I", body))
            if kind == RST_STREAM:
                stream, status = struct.unpack(">II", body)
                return Reset(stream & _STREAM_ID, status)
            if kind == GOAWAY:
                stream, _ = struct.unpack(">II", body)
                return GoAway(stream & _STREAM_ID)
            if kind == WINDOW_UPDATE:
                stream, size = struct.unpack(">II", body)
                return WindowUpdate(stream & _STREAM_ID, size & _STREAM_ID)
        except struct.error:
            raise SpdyError(f"a control frame of type {kind} of the wrong length") from None
        return None

    def _headers(self, block: bytes) -> dict[str, str]:
        try:
            text = self._inflate.decompress(block, _LARGEST_HEADERS + 1)
        except zlib.error as error:
            raise SpdyError(f"a header block that cannot be inflated: {error}") from None
        if len(text) > _LARGEST_HEADERS or self._inflate.unconsumed_tail:
            raise SpdyError(f"a header block of more than {_LARGEST_HEADERS} bytes")
        if self._inflate.eof:
            raise SpdyError("a header block that ends the compressed stream")
        return _parsed(text)


def _at(body: bytes, place: int) -> int:
    if len(body) < place:
        raise SpdyError("a SYN_STREAM frame of the wrong length")
    return place


def _parsed(text: bytes) -> dict[str, str]:
    """Headers by lower-case name. :raises SpdyError: the block is malformed."""
    headers = {}
    (count,) = struct.unpack_from(">I", text)
    at = 4
    for _ in range(count):
        words = []
        for _ in range(2):
            (length,) = struct.unpack_from(">I", text, at)
            at += 4
            if length > len(text) - at:
                raise SpdyError("a header that is longer than its block")
            words.append(text[at : at + length].decode("latin-1"))
            at += length
        name = words[0].lower()
        if not name or name in headers:
            raise SpdyError("a header without a name, or with the name of another")
        headers[name] = words[1]
    if at != len(text):
        raise SpdyError("bytes after the last header")
    return headers


class FrameWriter:
    """Writes frames to one peer. Header blocks share one state: frames are sent in the order of their making."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(zdict=DICTIONARY)

    def syn_reply(self, stream: int, headers: Mapping[str, str]) -> bytes:
        return _control(SYN_REPLY, struct.pack(">I", stream) + self._block(headers))

    def _block(self, headers: Mapping[str, str]) -> bytes:
        text = struct.pack(">I", len(headers))
        for name, value in headers.items():
            for word in (name.encode("latin-1"), value.encode("latin-1")):
                text += struct.pack(">I", len(word)) + word
        return self._deflate.compress(text) + self._deflate.flush(zlib.Z_SYNC_FLUSH)


def data(stream: int, content: bytes, *, fin: bool = False) -> bytes:
    """:param content: less than 16 MiB."""
    return struct.pack(">II", stream, (FIN << 24 if fin else 0) | len(content)) + content


def reset(stream: int, status: int) -> bytes:
    return _control(RST_STREAM, struct.pack(">II", stream, status))


def ping(number: int) -> bytes:
    return _control(PING, struct.pack(">I", number))


def goaway(last: int, status: int) -> bytes:
    return _control(GOAWAY, struct.pack(">II", last, status))


def window_update(stream: int, size: int) -> bytes:
    return _control(WINDOW_UPDATE, struct.pack(">II", stream, size))


def _control(kind: int, body: bytes, flags: int = 0) -> bytes:
    return struct.pack(">HHI", 0x8000 | VERSION, kind, flags << 24 | len(body)) + body
