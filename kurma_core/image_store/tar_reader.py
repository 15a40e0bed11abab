"""Reads tars: ustar, GNU and pax, sparse files included.

Names are bytes all the way. Whether an entry may be extracted, and where, is not decided here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from struct import Struct

from kurma_core.errors import ArchiveError, HostileArchiveError
from kurma_core.image_store import extended_headers
from kurma_core.image_store.archive_stream import ArchiveStream
from kurma_core.image_store.tar_entries import (
    BLOCK,
    CHARACTER,
    DIRECTORY,
    FIFO,
    FILE,
    FIXED,
    HARDLINK,
    NO_ATTRIBUTES,
    SYMLINK,
    Entry,
    Limits,
    show,
)

BLOCK_SIZE = 512
_ZEROS = bytes(BLOCK_SIZE)
_HEADER = Struct("100s8s8s8s12s12s8sc100s8s32s32s8s8s155s12x")
_KINDS = {
    b"0": FILE,
    b"\0": FILE,
    b"7": FILE,
    b"S": FILE,
    b"1": HARDLINK,
    b"2": SYMLINK,
    b"3": CHARACTER,
    b"4": BLOCK,
    b"5": DIRECTORY,
    b"6": FIFO,
}
_MAX_NUMBER = (1 << 63) - 1


class TarReader:
    """Entries of a tar, in order; the content of each must be read, or is skipped, before the next is requested.

    :param strict: apply the rules for image archives: an end marker, and nothing after it. A layer, whose digest
        covers all of it, need not have one.
    """

    def __init__(self, stream: ArchiveStream, limits: Limits, *, strict: bool = True) -> None:
        self._stream = stream
        self._limits = limits
        self._strict = strict
        self._left = 0  # bytes of the current entry's content that are still to be read
        self._padding = 0
        self._globals: dict[bytes, bytes] = {}
        self._map: list[tuple[int, int]] | None = None
        #: Entries so far, and bytes of their content once extracted.
        self.entries = 0
        self.content = 0

    def __iter__(self) -> Iterator[Entry]:
        while (entry := self._next()) is not None:
            self.entries += 1
            self.content += entry.size
            if self.entries > self._limits.entries:
                raise HostileArchiveError(
                    f"the archive has more than {self._limits.entries} entries",
                    hint="raise limits.entries in kurma.yml if the image is trusted",
                    entry=show(entry.name),
                    limit="entries",
                )
            if self.content > self._limits.total_size:
                raise HostileArchiveError(
                    f"the archive holds more than {self._limits.total_size} bytes of files",
                    hint="raise limits.total_size in kurma.yml if the image is trusted",
                    entry=show(entry.name),
                    limit="total_size",
                )
            yield entry
        self._stream.finish(_must_be_zero if self._strict else None)

    def content_of(self, entry: Entry) -> Iterator[memoryview]:
        """The stored content of the current entry, in pieces; to be read to its end."""
        count = self._left
        self._left = 0
        for piece in self._stream.pieces(count):
            count -= len(piece)
            yield piece
        if count:
            raise _truncated(f"in the middle of '{show(entry.name)}'")

    # --- headers -------------------------------------------------------------------------------------------------

    def _next(self) -> Entry | None:
        local: extended_headers.Extensions | None = None
        name: bytes | None = None
        target: bytes | None = None
        extended = False
        while True:
            block = self._header()
            if block is None:
                if extended:
                    raise _truncated("after an extended header")
                return None
            kind = block[156:157]
            if kind == b"x" or kind == b"X":
                local = extended_headers.parse(self._extended(block))
            elif kind == b"g":
                self._add_globals(extended_headers.parse(self._extended(block)).fields)
                continue
            elif kind == b"L":
                name = self._extended(block).partition(b"\0")[0]
            elif kind == b"K":
                target = self._extended(block).partition(b"\0")[0]
            else:
                return self._entry(block, local, name, target)
            extended = True

    def _header(self) -> bytes | None:
        """The next header block, its checksum verified; None at the end of the archive."""
        left = self._left + self._padding
        if left:
            if sum(map(len, self._stream.pieces(left))) != left:
                raise _truncated("in the middle of an entry")
            self._left = self._padding = 0
        block = self._stream.take(BLOCK_SIZE)
        if len(block) != BLOCK_SIZE:
            if block or self._strict:
                raise _truncated("it has no end marker" if not block else "in the middle of a header")
            return None
        if block == _ZEROS:
            return None
        if _octal(block[148:156], "checksum") != sum(block) - sum(block[148:156]) + 256:
            raise ArchiveError("the archive is corrupt: a header's checksum is wrong")
        return block

    def _add_globals(self, fields: dict[bytes, bytes]) -> None:
        """Global headers add up, so all of them together may be as large as one."""
        self._globals.update(fields)
        size = sum(len(key) + len(value) for key, value in self._globals.items())
        if size > self._limits.header_size:
            raise HostileArchiveError(
                f"the archive has global extended headers of {size} bytes, more than {self._limits.header_size}",
                hint=FIXED,
                entry=None,
                limit="header_size",
            )

    def _extended(self, block: bytes) -> bytes:
        size = _number(block[124:136], "size")
        if size > self._limits.header_size:
            raise HostileArchiveError(
                f"the archive has an extended header of {size} bytes, more than {self._limits.header_size}",
                hint=FIXED,
                entry=None,
                limit="header_size",
            )
        data = self._stream.take(size + -size % BLOCK_SIZE)
        if len(data) < size + -size % BLOCK_SIZE:
            raise _truncated("in the middle of an extended header")
        return data[:size]

    def _entry(
        self, block: bytes, local: extended_headers.Extensions | None, name: bytes | None, target: bytes | None
    ) -> Entry:
        head, mode, uid, gid, size, mtime, _, flag, link, magic, user, group, major, minor, prefix = (
            _HEADER.unpack(block)
        )
        kind = _KINDS.get(flag)
        if kind is None:
            named = show(head.rstrip(b"\0"))
            raise ArchiveError(f"the archive has an entry '{named}' of an unknown type {flag!r}", entry=named)
        if name is None:
            name = head.partition(b"\0")[0]
            prefix = prefix.partition(b"\0")[0]
            if prefix and magic[:6] == b"ustar\0":
                name = prefix + b"/" + name
        entry = Entry(
            name,
            kind,
            mode=_repeated(mode, "mode") & 0o7777,
            uid=_repeated(uid, "user"),
            gid=_repeated(gid, "group"),
            size=_number(size, "size"),
            mtime=_time(mtime),
            target=link.partition(b"\0")[0] if target is None else target,
        )
        if local is not None or self._globals:
            self._extend(entry, local or extended_headers.Extensions({}, []), user, group)
        if entry.kind == FILE and flag != b"7" and entry.name.endswith(b"/"):
            entry.kind = DIRECTORY  # how tars older than ustar say it
        if entry.kind in (CHARACTER, BLOCK):
            entry.device = (_number(major, "device"), _number(minor, "device"))
        if entry.kind != FILE:
            entry.size = entry.stored = 0
            self._left = self._padding = 0
            return entry
        if flag == b"S":
            self._old_sparse(entry, block)
        self._left = entry.stored
        self._padding = -entry.stored % BLOCK_SIZE
        self._new_sparse(entry, local)
        return entry

    def _extend(self, entry: Entry, local: extended_headers.Extensions, user: bytes, group: bytes) -> None:
        fields = {**self._globals, **local.fields} if self._globals else local.fields
        for key, value in fields.items():
            if not value and key in _BASIC:
                continue  # the extended header removes the field, so that the plain header's value is valid again
            if key == b"path":
                entry.name = value
            elif key == b"linkpath":
                entry.target = value
            elif key == b"size":
                entry.size = entry.stored = extended_headers.number(value, "size in an extended header")
            elif key == b"mtime":
                entry.mtime = extended_headers.time(value)
            elif key == b"uid":
                entry.uid = extended_headers.identity(value)
            elif key == b"gid":
                entry.gid = extended_headers.identity(value)
        found = extended_headers.attributes(fields)
        extended_headers.add_acls(found, fields, (user, entry.uid), (group, entry.gid))
        if extended_headers.ACL_ACCESS in found:
            fitting = extended_headers.fitting_acl(found.pop(extended_headers.ACL_ACCESS), entry.mode)
            if fitting is not None:
                found[extended_headers.ACL_ACCESS] = fitting
        entry.attributes = found or NO_ATTRIBUTES

    # --- sparse files --------------------------------------------------------------------------------------------

    def _old_sparse(self, entry: Entry, block: bytes) -> None:
        """GNU's own format: four stretches in the header, more in blocks after it."""
        values: list[int] = []
        fields, more = block[386:482], block[482]
        entry.size = _number(block[483:495], "size of a sparse file")
        while True:
            for at in range(0, len(fields), 24):
                if not fields[at]:
                    break
                values.append(_number(fields[at : at + 12], "sparse map"))
                values.append(_number(fields[at + 12 : at + 24], "sparse map"))
            if not more:
                break
            extension = self._stream.take(BLOCK_SIZE)
            if len(extension) != BLOCK_SIZE:
                raise _truncated("in the middle of a sparse map")
            if len(values) > 2 * extended_headers.MAX_STRETCHES:
                raise ArchiveError("the archive is corrupt: bad sparse map")
            fields, more = extension[:504], extension[504]
        entry.sparse = extended_headers.pairs(values)
        extended_headers.check_map(entry.sparse, entry.size, entry.stored)

    def _new_sparse(self, entry: Entry, local: extended_headers.Extensions | None) -> None:
        """GNU's pax formats 0.0, 0.1 (map in the header) and 1.0 (map before the content)."""
        if local is None:
            return
        fields = local.fields
        name = fields.get(b"GNU.sparse.name")
        size = fields.get(b"GNU.sparse.realsize", fields.get(b"GNU.sparse.size"))
        if size is None:
            return
        if name is not None:
            entry.name = name
        entry.size = extended_headers.number(size, "size of a sparse file")
        version = (fields.get(b"GNU.sparse.major"), fields.get(b"GNU.sparse.minor"))
        if version == (b"1", b"0"):
            entry.sparse = self._map_in_content(entry)
        elif version in ((None, None), (b"0", b"0"), (b"0", b"1")):
            entry.sparse = extended_headers.sparse_map(local)
        if entry.sparse is None:
            raise ArchiveError(f"the archive has a sparse file of an unknown format: '{show(entry.name)}'")
        extended_headers.check_map(entry.sparse, entry.size, entry.stored)

    def _map_in_content(self, entry: Entry) -> list[tuple[int, int]]:
        """Format 1.0: decimal lines before the content, padded to a block."""
        lines: list[bytes] = []
        rest = b""
        wanted = 1
        while len(lines) < wanted:
            if entry.stored < BLOCK_SIZE:
                raise ArchiveError("the archive is corrupt: bad sparse map")
            block = self._stream.take(BLOCK_SIZE)
            if len(block) != BLOCK_SIZE:
                raise _truncated("in the middle of a sparse map")
            entry.stored -= BLOCK_SIZE
            *found, rest = (rest + block).split(b"\n")
            if len(rest) > BLOCK_SIZE and len(lines) + len(found) < wanted:
                raise ArchiveError("the archive is corrupt: bad sparse map")
            lines += found
            if wanted == 1 and lines:
                wanted = 1 + 2 * extended_headers.number(lines[0], "sparse map", extended_headers.MAX_STRETCHES)
        self._left = entry.stored
        return extended_headers.pairs([extended_headers.number(line, "sparse map") for line in lines[1:wanted]])


_BASIC = frozenset((b"path", b"linkpath", b"size", b"mtime", b"uid", b"gid"))


def _number(field: bytes, what: str) -> int:
    """A number that is not negative: octal, or GNU's base 256."""
    value = _signed(field, what)
    if value < 0:
        raise ArchiveError(f"the archive is corrupt: a header has a negative {what}")
    return value


# Owners and modes are the same few in a whole archive.
_repeated = lru_cache(256)(_number)


def _signed(field: bytes, what: str) -> int:
    if field[0] & 0x80:
        value = int.from_bytes(field, "big", signed=True)
        if field[0] == 0x80:
            value = int.from_bytes(field[1:], "big")
        elif field[0] != 0xFF:
            raise ArchiveError(f"the archive is corrupt: a header has a bad {what}")
        if not -_MAX_NUMBER <= value <= _MAX_NUMBER:
            raise ArchiveError(f"the archive is corrupt: a header has a {what} out of range")
        return value
    return _octal(field, what)


def _time(field: bytes) -> int:
    seconds = _signed(field, "time")
    if abs(seconds) > extended_headers.MAX_SECONDS:
        raise ArchiveError("the archive is corrupt: a header has a time out of range")
    return extended_headers.kept_time(seconds * 1_000_000_000)


def _octal(field: bytes, what: str) -> int:
    text = field.partition(b"\0")[0].strip(b" ")
    if not text:
        return 0
    try:
        value = int(text, 8)
    except ValueError:
        value = -1
    if value < 0 or not text.isdigit():
        raise ArchiveError(f"the archive is corrupt: a header has a bad {what}")
    return value


def _must_be_zero(piece: memoryview) -> None:
    if any(piece) if len(piece) < BLOCK_SIZE else bytes(piece).strip(b"\0"):
        raise ArchiveError("the archive is corrupt: something follows its end marker")


def _truncated(where: str) -> ArchiveError:
    return ArchiveError(f"the archive is truncated: {where}", truncated=True)
