"""A SPDY/3.1 client, written from the protocol's draft (draft-mbelshe-httpbis-spdy-00, and 3.1's windows)."""

import base64
import contextlib
import os
import socket
import struct
import threading
import zlib
from urllib.parse import urlsplit

from tests.kit.waiting import PATIENCE

#: 2.6.10.1. Its Adler-32 checksum is known: it is in the first header block of each connection.
DICTIONARY = (
    b"\x00\x00\x00\x07options\x00\x00\x00\x04head\x00\x00\x00\x04post\x00\x00\x00\x03put\x00\x00\x00"
    b"\x06delete\x00\x00\x00\x05trace\x00\x00\x00\x06accept\x00\x00\x00\x0eaccept-charset\x00\x00\x00"
    b"\x0faccept-encoding\x00\x00\x00\x0faccept-language\x00\x00\x00\raccept-ranges\x00\x00\x00\x03age"
    b"\x00\x00\x00\x05allow\x00\x00\x00\rauthorization\x00\x00\x00\rcache-control\x00\x00\x00\nconnecti"
    b"on\x00\x00\x00\x0ccontent-base\x00\x00\x00\x10content-encoding\x00\x00\x00\x10content-language"
    b"\x00\x00\x00\x0econtent-length\x00\x00\x00\x10content-location\x00\x00\x00\x0bcontent-md5\x00\x00"
    b"\x00\rcontent-range\x00\x00\x00\x0ccontent-type\x00\x00\x00\x04date\x00\x00\x00\x04etag\x00\x00"
    b"\x00\x06expect\x00\x00\x00\x07expires\x00\x00\x00\x04from\x00\x00\x00\x04host\x00\x00\x00\x08if-m"
    b"atch\x00\x00\x00\x11if-modified-since\x00\x00\x00\rif-none-match\x00\x00\x00\x08if-range\x00\x00"
    b"\x00\x13if-unmodified-since\x00\x00\x00\rlast-modified\x00\x00\x00\x08location\x00\x00\x00\x0cmax"
    b"-forwards\x00\x00\x00\x06pragma\x00\x00\x00\x12proxy-authenticate\x00\x00\x00\x13proxy-authorizat"
    b"ion\x00\x00\x00\x05range\x00\x00\x00\x07referer\x00\x00\x00\x0bretry-after\x00\x00\x00\x06server"
    b"\x00\x00\x00\x02te\x00\x00\x00\x07trailer\x00\x00\x00\x11transfer-encoding\x00\x00\x00\x07upgrade"
    b"\x00\x00\x00\nuser-agent\x00\x00\x00\x04vary\x00\x00\x00\x03via\x00\x00\x00\x07warning\x00\x00"
    b"\x00\x10www-authenticate\x00\x00\x00\x06method\x00\x00\x00\x03get\x00\x00\x00\x06status\x00\x00"
    b"\x00\x06200 OK\x00\x00\x00\x07version\x00\x00\x00\x08HTTP/1.1\x00\x00\x00\x03url\x00\x00\x00\x06p"
    b"ublic\x00\x00\x00\nset-cookie\x00\x00\x00\nkeep-alive\x00\x00\x00\x06origin1001012012022052063003"
    b"02303304305306307402405406407408409410411412413414415416417502504505203 Non-Authoritative Informa"
    b"tion204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 Not Found5"
    b"00 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug"
    b" Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,imag"
    b"e/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax"
    b"-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)
assert zlib.adler32(DICTIONARY) == 0xE3C6A7C2
FIRST_WINDOW = 65536


class Refused(Exception):
    """The server does not upgrade the connection."""

    def __init__(self, status, headers, body):
        super().__init__(status, body)
        self.status, self.headers, self.body = status, headers, body


def upgrade(url, headers, method="POST"):
    """Sends a request that asks for an upgrade.

    :returns: the connected socket, the headers of the answer, and the bytes after it.
    """
    parts = urlsplit(url)
    sock = socket.create_connection((parts.hostname, parts.port), PATIENCE)
    lines = [
        f"{method} {parts.path} HTTP/1.1",
        f"Host: {parts.netloc}",
        *(f"{key}: {text}" for key, text in headers),
    ]
    sock.sendall("".join(f"{line}\r\n" for line in [*lines, ""]).encode())
    data = b""
    while b"\r\n\r\n" not in data:
        more = sock.recv(65536)
        if not more:
            sock.close()
            raise Refused(0, [], data)
        data += more
    head, _, rest = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    answer = [(line.partition(":")[0].lower(), line.partition(":")[2].strip()) for line in lines]
    status = int(first.split()[1])
    if status != 101:
        while more := sock.recv(65536):
            rest += more
        sock.close()
        raise Refused(status, answer, rest.decode())
    return sock, answer, rest


class Stream:
    """One stream. ``data``: what came; ``ended``: the server has half-closed it; ``status``: of its reset."""

    def __init__(self, client, number):
        self.client, self.number = client, number
        self.data = bytearray()
        self.accepted = self.ended = False
        self.status = None
        self.window, self.received, self.unreported = FIRST_WINDOW, 0, 0

    def send(self, data, fin=False):
        """Sends data; within the windows of the server if the client uses windows."""
        view = memoryview(data)
        while len(view) > 16384:
            self._send(view[:16384], 0)
            view = view[16384:]
        self._send(view, 1 if fin else 0)

    def _send(self, piece, flags):
        if self.client.windows:
            with self.client.changed:
                self.client.wait(lambda: min(self.window, self.client.window) >= len(piece))
                self.window -= len(piece)
                self.client.window -= len(piece)
        self.client.write(struct.pack(">II", self.number, flags << 24 | len(piece)) + piece)

    def close(self):
        self.send(b"", fin=True)

    def reset(self, status=5):
        self.client.control(3, struct.pack(">II", self.number, status))

    def wait(self, state):
        """Waits until ``state(self)``."""
        with self.client.changed:
            self.client.wait(lambda: state(self))

    def read(self, count):
        """Waits for so many bytes of output in all."""
        self.wait(lambda stream: len(stream.data) >= count or stream.ended or stream.status is not None)
        return bytes(self.data)

    def read_all(self):
        """Waits for the end of the stream."""
        self.wait(lambda stream: stream.ended)
        return bytes(self.data)


class SpdyClient:
    """:param versions: values of X-Stream-Protocol-Version, a header each.
    :param windows: it keeps to windows, and reports what it has read; clients of Kubernetes do not.
    :param connected: a connection that speaks SPDY already: a socket, or what has its methods.
    """

    def __init__(self, url, *, versions=("v4.channel.k8s.io",), windows=False, method="POST", connected=None):
        self.headers = []
        rest = b""
        if connected is None:
            wanted = [("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1")]
            wanted += [("X-Stream-Protocol-Version", version) for version in versions]
            connected, self.headers, rest = upgrade(url, wanted, method)
        self.windows = windows
        self.changed = threading.Condition()
        self.streams = {}
        self.pongs, self.gone_away = [], None
        self.over = False
        self.window, self._received, self._unreported = FIRST_WINDOW, 0, 0
        #: Cleared: the client does not read.
        self.reads = threading.Event()
        self.reads.set()
        self._socket = connected
        self._rest = rest
        self._next = 1
        self._deflate = zlib.compressobj(zdict=DICTIONARY)
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)
        self._writing = threading.Lock()
        self.error = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def version(self):
        return dict(self.headers)["x-stream-protocol-version"]

    # -- sending --

    def write(self, data):
        with self._writing:
            self._socket.sendall(bytes(data))

    def control(self, kind, body, flags=0):
        self.write(struct.pack(">HHI", 0x8003, kind, flags << 24 | len(body)) + body)

    def open(self, kind=None, flags=0, wait=True, **headers):
        """Opens a stream, and waits until it is accepted or reset. :param kind: its streamType."""
        if kind is not None:
            headers["streamtype"] = kind
        block = struct.pack(">I", len(headers))
        for key, text in headers.items():
            block += struct.pack(">I", len(key)) + key.encode() + struct.pack(">I", len(text)) + text.encode()
        number, self._next = self._next, self._next + 2
        stream = self.streams[number] = Stream(self, number)
        body = struct.pack(">IIH", number, 0, 0) + self._deflate.compress(block)
        self.control(1, body + self._deflate.flush(zlib.Z_SYNC_FLUSH), flags)
        if wait:
            stream.wait(lambda stream: stream.accepted or stream.status is not None)
        return stream

    def ping(self, number):
        self.control(6, struct.pack(">I", number))

    def wait(self, state):
        """Waits, with ``changed`` held, until ``state()``."""
        assert self.changed.wait_for(lambda: state() or self.over, PATIENCE), "the server does not answer"
        assert state(), f"the server has disconnected: {self.error}"

    def wait_over(self):
        """Waits until the server has disconnected."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.over, PATIENCE)

    def close(self):
        """Disconnects. :raises AssertionError: the server has violated the protocol."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self.reads.set()
        self._thread.join(PATIENCE)
        self._socket.close()
        assert self.error is None, self.error

    # -- receiving --

    def _run(self):
        data = bytearray(self._rest)
        try:
            while True:
                while len(data) >= 8:
                    length = int.from_bytes(data[5:8])
                    if len(data) < 8 + length:
                        break
                    frame = bytes(data[: 8 + length])
                    del data[: 8 + length]
                    with self.changed:
                        self._take(frame)
                        self.changed.notify_all()
                self.reads.wait()
                more = self._socket.recv(65536)
                if not more:
                    break
                data += more
        except OSError:
            pass
        except Exception as error:  # noqa: BLE001 (close raises it)
            self.error = error
        finally:
            with self.changed:
                self.over = True
                self.changed.notify_all()

    def _take(self, frame):
        first, second = struct.unpack(">II", frame[:8])
        flags, body = second >> 24, frame[8:]
        if not first >> 31:
            self._take_data(self.streams[first], body, flags)
            return
        assert first >> 16 == 0x8003, f"version {first >> 16:x}"
        kind = first & 0xFFFF
        number = struct.unpack(">I", body[:4])[0]
        if kind == 2:
            self.streams[number].accepted = True
            block = self._inflate.decompress(body[4:])
            assert block == bytes(4), block
        elif kind == 3:
            self.streams[number].status = struct.unpack(">II", body)[1]
        elif kind == 6:
            self.pongs.append(number)
        elif kind == 7:
            self.gone_away = struct.unpack(">II", body)
        elif kind == 9:
            size = struct.unpack(">II", body)[1]
            if number:
                self.streams[number].window += size
            else:
                self.window += size
        else:
            raise AssertionError(f"a frame of type {kind}")

    def _take_data(self, stream, body, flags):
        assert stream.accepted, "data before SYN_REPLY"
        assert not stream.ended, "data after the end"
        stream.data += body
        stream.ended = bool(flags & 1)
        if not self.windows:
            return
        stream.received += len(body)
        stream.unreported += len(body)
        self._received += len(body)
        self._unreported += len(body)
        assert stream.unreported <= FIRST_WINDOW, "more than the window"
        assert self._unreported <= FIRST_WINDOW, "more than the window of the connection"
        if stream.unreported >= FIRST_WINDOW // 2:
            self._report(stream.number, stream.unreported)
            stream.unreported = 0
        if self._unreported >= FIRST_WINDOW // 2:
            self._report(0, self._unreported)
            self._unreported = 0

    def _report(self, number, count):
        with contextlib.suppress(OSError):
            self.control(9, struct.pack(">II", number, count))


class Tunnel:
    """The methods of a socket, whose bytes are binary messages of a WebSocket (RFC 6455). Libraries do not offer
    Kubernetes's subprotocol, since its name has a slash.
    """

    SUBPROTOCOL = "SPDY/3.1+portforward.k8s.io"

    def __init__(self, url):
        key = base64.b64encode(os.urandom(16)).decode()
        headers = [
            ("Connection", "Upgrade"),
            ("Upgrade", "websocket"),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Key", key),
            ("Sec-WebSocket-Protocol", self.SUBPROTOCOL),
        ]
        self._socket, answer, self._data = upgrade(url, headers, "GET")
        assert dict(answer)["sec-websocket-protocol"] == self.SUBPROTOCOL

    def sendall(self, data):
        for at in range(0, len(data), 50_000):
            piece = data[at : at + 50_000]
            length = bytes((len(piece),)) if len(piece) < 126 else b"\x7e" + struct.pack(">H", len(piece))
            # The mask is zero.
            self._socket.sendall(bytes((0x82, length[0] | 0x80)) + length[1:] + bytes(4) + piece)

    def recv(self, _count):
        first, second = self._exactly(2)
        if first == 0x88:
            return b""
        assert first == 0x82, f"a frame of type {first:x}"
        if second == 126:
            second = int.from_bytes(self._exactly(2))
        elif second == 127:
            second = int.from_bytes(self._exactly(8))
        return self._exactly(second)

    def _exactly(self, count):
        while len(self._data) < count:
            more = self._socket.recv(65536)
            if not more:
                raise ConnectionResetError
            self._data += more
        found, self._data = self._data[:count], self._data[count:]
        return found

    def shutdown(self, how):
        self._socket.shutdown(how)

    def close(self):
        self._socket.close()
