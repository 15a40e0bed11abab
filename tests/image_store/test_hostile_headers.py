"""A5: tricks that need headers which no tar program writes, and streams that unpack to nothing."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import struct
from collections.abc import Callable, Iterator
from threading import Thread

import pytest
import zstandard

from kurma_core.errors import ArchiveError, HostileArchiveError
from kurma_core.image_store import ImageStore, Limits
from tests.kit.archives import LOCAL, MANIFEST, file, image, nothing_left_behind, validate

END = bytes(1024)


def header(
    name: bytes,
    kind: bytes = b"0",
    content: bytes = b"",
    *,
    link: bytes = b"",
    size: bytes | None = None,
    mode: int = 0o644,
    mtime: int = 0,
) -> bytes:
    """A header with whatever it is given, its checksum right, and its content."""
    block = bytearray(512)
    block[: len(name)] = name
    block[100:124] = b"%07o\0" % mode + b"0000000\0" * 2
    block[124:136] = size or b"%011o\0" % len(content)
    block[136:148] = b"%011o\0" % mtime
    block[148:157] = b"        " + kind
    block[157 : 157 + len(link)] = link
    block[257:265] = b"ustar\x0000"
    block[329:345] = b"0000000\0" * 2
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + content + bytes(-len(content) % 512)


def extended(fields: dict[bytes, bytes], kind: bytes = b"x") -> bytes:
    records = []
    for key, value in fields.items():
        body = b" %b=%b\n" % (key, value)
        length = len(body)
        while len(b"%d" % length) + len(body) != length:
            length = len(b"%d" % length) + len(body)
        records.append(b"%d%b" % (length, body))
    return header(b"extended", kind, b"".join(records))


DOCUMENT = json.dumps(MANIFEST).encode()
HEAD = header(b"manifest", content=DOCUMENT) + header(b"rootfs/", b"5", mode=0o755)
FILE = header(b"rootfs/f", content=b"abc")
SPARSE = {b"GNU.sparse.major": b"1", b"GNU.sparse.minor": b"0", b"GNU.sparse.realsize": b"10"}
NO_STRETCHES = header(b"rootfs/s", content=b"0\n".ljust(512, b"\0"))

NASTY = {
    "a path for all, from a global header": extended({b"path": b"rootfs/../../evil"}, b"g") + HEAD + FILE,
    "an overlay's attribute for all": extended({b"SCHILY.xattr.trusted.overlay.opaque": b"y"}, b"g") + HEAD,
    "the same, encoded": extended({b"LIBARCHIVE.xattr.user%2Eoverlay%2Emetacopy": b"eA"}, b"g") + HEAD,
    "a long name that leads upwards": HEAD + header(b"@", b"L", b"rootfs/../../evil\0") + FILE,
    "a long target that leads upwards": HEAD
    + header(b"@", b"K", b"rootfs/../../../etc/passwd\0")
    + header(b"rootfs/h", b"1", link=b"rootfs/f"),
    "a sparse file's other name": HEAD
    + extended({**SPARSE, b"GNU.sparse.name": b"rootfs/../evil"})
    + NO_STRETCHES,
    "a sparse file's absolute name": HEAD + extended({**SPARSE, b"GNU.sparse.name": b"/etc/evil"}) + NO_STRETCHES,
    "stretches that overlap": HEAD
    + extended({b"GNU.sparse.map": b"5,2,0,2", b"GNU.sparse.size": b"10"})
    + header(b"rootfs/s", content=b"abcd"),
    "a negative size": HEAD + header(b"rootfs/f", size=b"\xff" * 12),
    "a size beyond all disks": HEAD + header(b"rootfs/f", size=b"\x80\0\0\0" + (1 << 62).to_bytes(8, "big")),
    "another size in the extended header": HEAD + extended({b"size": b"99999999999999"}) + FILE,
    "a hard link with content that is a header": HEAD
    + FILE
    + header(b"rootfs/h", b"1", b"\1" * 512, link=b"rootfs/f"),
    "a hard link before its target": HEAD + header(b"rootfs/h", b"1", link=b"rootfs/f") + FILE,
    "a manifest with a hole": extended({b"GNU.sparse.map": b"0,%d" % len(DOCUMENT), b"GNU.sparse.size": b"9999"})
    + HEAD,
    "a manifest that is a fifo": header(b"manifest", b"6") + header(b"rootfs/", b"5"),
    "the root twice": HEAD + header(b"rootfs/./", b"5"),
    "a record longer than its header": HEAD + header(b"x", b"x", b"99999 path=evil\n") + FILE,
    "a record of no length": HEAD + header(b"x", b"x", b"0 path=evil\n") + FILE,
    "a NUL in an attribute's name": HEAD + extended({b"LIBARCHIVE.xattr.user%00.x": b"eA"}) + FILE,
    "a volume of several": HEAD + header(b"rootfs/f", b"M"),
    "a second archive behind the first": HEAD + FILE + END + HEAD + FILE,
}


@pytest.mark.parametrize("trick", NASTY)
def test_refused_and_nothing_left(trick: str, store: ImageStore, tmp_path_factory: pytest.TempPathFactory) -> None:
    archive = NASTY[trick] + END
    with nothing_left_behind(store, str(tmp_path_factory.mktemp("outside"))):
        with pytest.raises(ArchiveError) as caught, store.stage_archive(io.BytesIO(archive)):
            pytest.fail("a hostile archive was staged")
    assert "\n" not in str(caught.value)
    with pytest.raises(ArchiveError):
        validate(io.BytesIO(archive))


@pytest.mark.parametrize(
    "fields",
    [{b"SCHILY.xattr.user.a": b"v" * 100_000}, {b"SCHILY.xattr.security.capability": b"nonsense"}],
    ids=["too large", "malformed"],
)
def test_an_impossible_attribute_is_the_archives_fault(fields: dict[bytes, bytes], store: ImageStore) -> None:
    with pytest.raises(HostileArchiveError, match="entry 'rootfs/f'"):
        with store.stage_archive(io.BytesIO(HEAD + extended(fields) + FILE + END)):
            pytest.fail("a hostile archive was staged")


# --- bombs -------------------------------------------------------------------------------------------------------


class Stream(io.RawIOBase):
    """What a generator makes, and how much of it was read."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""
        self.taken = 0

    def read(self, size: int = -1) -> bytes:
        while len(self._rest) < size and (piece := next(self._pieces, b"")):
            self._rest += piece
        data, self._rest = self._rest[:size], self._rest[size:]
        self.taken += len(data)
        return data


def _global_headers() -> Iterator[bytes]:
    yield HEAD
    for number in range(10_000):
        yield extended({b"key %d" % number: b"v" * 100_000}, b"g")


def _implied_directories() -> Iterator[bytes]:
    yield HEAD
    for number in range(100):  # far fewer entries than the limit
        yield header(b"rootfs/%d/" % number + b"d/" * 40 + b"f")
    yield END


def _long_names() -> Iterator[bytes]:
    yield HEAD
    for number in range(1000):
        yield extended({b"path": b"rootfs/%d" % number + b"/d" * 100 + b"n" * 200}) + header(b"f")


def _padding() -> Iterator[bytes]:
    yield gzip.compress(HEAD + FILE + END)
    while True:
        yield bytes(1 << 20)


BOMBS = {
    "global headers that add up": (_global_headers, Limits(), "header_size"),
    "directories that are only implied": (_implied_directories, Limits(entries=1000), "entries"),
    "names": (_long_names, Limits(names_size=1 << 18), "names_size"),
    "padding without end": (_padding, Limits(total_size=16 << 20), "total_size"),
}


@pytest.mark.full
@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs_that_unpack_to_little(bomb: str, tmp_path: object) -> None:
    make, limits, limit = BOMBS[bomb]
    store = ImageStore(f"{tmp_path}/images", limits=limits)
    stream = Stream(make())
    with nothing_left_behind(store, store.path("partial")):
        with pytest.raises(HostileArchiveError) as caught, store.stage_archive(stream):  # type: ignore[arg-type]
            pytest.fail("a bomb was staged")
    assert caught.value.data["limit"] == limit
    assert stream.taken < 32 << 20
    if bomb != "padding without end":
        with pytest.raises(HostileArchiveError):
            validate(Stream(make()), limits)  # type: ignore[arg-type]


# --- streams that unpack to nothing ------------------------------------------------------------------------------

PLAIN = image(file("rootfs/x"))
NOTHING = 8 << 20


def _gzip_with_a_long_name() -> bytes:
    packed = gzip.compress(PLAIN)
    return packed[:3] + b"\x08" + packed[4:10] + b"n" * NOTHING + b"\0" + packed[10:]


LULLS: dict[str, Callable[[], bytes]] = {
    "gzip, then zeros": lambda: gzip.compress(PLAIN) + bytes(NOTHING),
    "xz, then zeros": lambda: lzma.compress(PLAIN) + bytes(NOTHING),
    "bzip2, then zeros": lambda: bz2.compress(PLAIN) + bytes(NOTHING),
    "a file's name of megabytes": _gzip_with_a_long_name,
    "empty gzip members": lambda: gzip.compress(b"") * 100_000 + gzip.compress(PLAIN),
    "a skipped zstd frame": lambda: (
        struct.pack("<II", 0x184D2A50, NOTHING) + bytes(NOTHING) + zstandard.compress(PLAIN)
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("lull", LULLS)
def test_megabytes_that_unpack_to_nothing_do_not_stop_the_reader(lull: str, store: ImageStore) -> None:
    packed = LULLS[lull]()
    found = []

    def stage() -> None:
        with store.stage_archive(io.BytesIO(packed)) as staged:
            found.append(staged.id)

    # In a thread, so that a reader that waits for ever fails this test instead of holding it up.
    thread = Thread(target=stage, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    with store.stage_archive(io.BytesIO(PLAIN)) as plain:
        assert found == [plain.id]


# --- times -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", ["549755813888", "-62135596800", "-2147483648.5", "15032385535.9"])
def test_times_that_no_file_system_keeps(seconds: str, store: ImageStore) -> None:
    """Go's zero time and the like: what was extracted must still be what the archive holds."""
    archive = HEAD + extended({b"mtime": seconds.encode()}) + FILE + END
    with store.stage_archive(io.BytesIO(archive)) as staged:
        image_id = staged.commit(LOCAL).id
    store.verify(image_id, deep=True)
