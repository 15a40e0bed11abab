"""Writing tars that are the same for the same input, to the byte (A4, A6).

The form: ustar headers; what does not fit one goes into an extended header before it, keywords in the order of
their bytes. No names of users and groups, no access or change times, nothing of the machine. Names that are not
UTF-8 are announced with ``hdrcharset=BINARY``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from struct import Struct

from kurma_core.image_store.entry import BLOCK, CHARACTER, DIRECTORY, FIFO, FILE, HARDLINK, SYMLINK, Entry

_HEADER = Struct("100s8s8s8s12s12s8sc100s6s2s32s32s8s8s155s12x")
_FLAGS = {FILE: b"0", HARDLINK: b"1", SYMLINK: b"2", CHARACTER: b"3", BLOCK: b"4", DIRECTORY: b"5", FIFO: b"6"}
_BLOCK = 512
_ZERO = b"0000000"
_END = bytes(2 * _BLOCK)


class TarWriter:
    """Writes entries to ``out``, a function that takes bytes."""

    def __init__(self, out: Callable[[bytes], object]) -> None:
        self._out = out

    def add(self, entry: Entry, content: Iterable[bytes] = ()) -> None:
        """Write one entry.

        :param content: of a regular file, exactly ``entry.size`` bytes.
        :raises ValueError: it was more or less.
        """
        fields = _extended(entry)
        if fields:
            data = b"".join(_record(key, fields[key]) for key in sorted(fields))
            self._out(_header(b"PaxHeaders/" + _tail(entry.name), b"x", 0o644, 0, 0, len(data), 0, b"", (0, 0)))
            self._out(data + bytes(-len(data) % _BLOCK))
        name = entry.name + (b"/" if entry.kind == DIRECTORY and not entry.name.endswith(b"/") else b"")
        seconds = entry.mtime // 1_000_000_000
        self._out(
            _header(
                name if b"path" not in fields else _tail(name),
                _FLAGS[entry.kind],
                entry.mode,
                entry.uid if b"uid" not in fields else 0,
                entry.gid if b"gid" not in fields else 0,
                entry.size if b"size" not in fields else 0,
                seconds if 0 <= seconds < 8**11 else 0,
                entry.target if b"linkpath" not in fields else _tail(entry.target),
                entry.device,
            )
        )
        written = 0
        for piece in content:
            written += len(piece)
            self._out(piece)
        if written != entry.size:
            raise ValueError(f"{written} bytes of content, {entry.size} announced")
        if written % _BLOCK:
            self._out(bytes(-written % _BLOCK))

    def close(self) -> None:
        """Write the end marker."""
        self._out(_END)


def _header(
    name: bytes,
    flag: bytes,
    mode: int,
    uid: int,
    gid: int,
    size: int,
    mtime: int,
    target: bytes,
    device: tuple[int, int],
) -> bytes:
    fields = [
        name,
        b"%07o" % mode,
        b"%07o" % uid if uid else _ZERO,
        b"%07o" % gid if gid else _ZERO,
        b"%011o" % size,
        b"%011o" % mtime,
        b"        ",
        flag,
        target,
        b"ustar\0",
        b"00",
        b"",
        b"",
        b"%07o" % device[0] if device[0] else _ZERO,
        b"%07o" % device[1] if device[1] else _ZERO,
        b"",
    ]
    block = _HEADER.pack(*fields)
    return b"%b%06o\0 %b" % (block[:148], sum(block), block[156:])


def _extended(entry: Entry) -> dict[bytes, bytes]:
    """What the header itself cannot hold."""
    fields: dict[bytes, bytes] = {}
    slash = entry.kind == DIRECTORY
    if not _plain(entry.name, 100 - slash):
        fields[b"path"] = entry.name + (b"/" if slash else b"")
    if not _plain(entry.target, 100):
        fields[b"linkpath"] = entry.target
    for key, value, limit in ((b"uid", entry.uid, 8**7), (b"gid", entry.gid, 8**7), (b"size", entry.size, 8**11)):
        if value >= limit:
            fields[key] = b"%d" % value
    if entry.mtime % 1_000_000_000 or not 0 <= entry.mtime < 8**11 * 1_000_000_000:
        fields[b"mtime"] = _time(entry.mtime)
    for name, content in entry.attributes.items():
        # A keyword ends at the first "="; GNU tar's way around that.
        fields[b"SCHILY.xattr." + name.replace(b"%", b"%25").replace(b"=", b"%3D")] = content
    for key in (b"path", b"linkpath"):
        if key in fields and not _is_utf8(fields[key]):
            fields[b"hdrcharset"] = b"BINARY"
    return fields


def _plain(text: bytes, limit: int) -> bool:
    return len(text) <= limit and text.isascii()


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _time(nanoseconds: int) -> bytes:
    sign, value = (b"-", -nanoseconds) if nanoseconds < 0 else (b"", nanoseconds)
    whole, fraction = divmod(value, 1_000_000_000)
    return sign + (b"%d.%09d" % (whole, fraction) if fraction else b"%d" % whole)


def _record(key: bytes, value: bytes) -> bytes:
    body = b" %b=%b\n" % (key, value)
    length = len(body)
    while len(body) + len(str(length)) != length:
        length = len(body) + len(str(length))
    return b"%d%b" % (length, body)


def _tail(name: bytes) -> bytes:
    """Stands in a header for a name that does not fit; readers take the extended one."""
    return bytes(byte if byte < 128 else 0x5F for byte in name.rstrip(b"/")[-80:]) or b"_"
