"""gzip, by ISA-L and by zlib: the same bytes, and the same errors (A1, A5)."""

from __future__ import annotations

import gzip
import random
import sys
from collections.abc import Iterator

import pytest

from kurma_core.errors import ArchiveError
from kurma_core.image_store.compression import PIECE, decoder

NOISE = random.Random(7)
CONTENT = b"".join(NOISE.choice((b"word " * 9, NOISE.randbytes(40), bytes(70))) for _ in range(20_000))
PACKED = gzip.compress(CONTENT, mtime=0)


@pytest.fixture(params=["isal", "zlib"], autouse=True)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "zlib":
        monkeypatch.setitem(sys.modules, "isal", None)
    else:
        pytest.importorskip("isal")
    return str(request.param)


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


def unpacked(data: bytes, size: int = 1 << 18) -> bytes:
    return b"".join(decoder("gzip", pieces(data, size)))


@pytest.mark.parametrize("size", [1000, 1 << 18, 1 << 24])
def test_the_content_comes_out_whatever_the_pieces_are(size: int) -> None:
    assert unpacked(PACKED, size) == CONTENT


def test_members_follow_each_other_with_padding_between() -> None:
    assert unpacked(gzip.compress(b"one ") + bytes(512) + gzip.compress(b"two") + bytes(100)) == b"one two"
    assert unpacked(gzip.compress(b"one ") + gzip.compress(b"two"), 1) == b"one two"


def test_no_piece_of_a_bomb_is_large() -> None:
    bomb = gzip.compress(bytes(64 << 20), 9)
    sizes = [len(piece) for piece in decoder("gzip", pieces(bomb, 1 << 18))]
    assert sum(sizes) == 64 << 20
    assert max(sizes) <= PIECE


@pytest.mark.parametrize("cut", [5, 12, 1000, len(PACKED) - 9, len(PACKED) - 1])
def test_a_stream_that_ends_early_is_truncated(cut: int) -> None:
    with pytest.raises(ArchiveError, match="truncated: its gzip stream ends early"):
        unpacked(PACKED[:cut])


@pytest.mark.parametrize("place", [0, 2, len(PACKED) // 2, len(PACKED) - 6, len(PACKED) - 2])
def test_a_changed_byte_is_corrupt(place: int) -> None:
    """Head, body, checksum, length."""
    changed = bytearray(PACKED)
    changed[place] ^= 0x55
    with pytest.raises(ArchiveError, match=r"corrupt: not valid gzip data|truncated"):
        unpacked(bytes(changed))


@pytest.mark.parametrize("junk", [b"j", b"junk", b"something else"])
def test_what_follows_a_member_must_be_one(junk: bytes) -> None:
    with pytest.raises(ArchiveError, match="corrupt: not valid gzip data"):
        unpacked(PACKED + junk)
