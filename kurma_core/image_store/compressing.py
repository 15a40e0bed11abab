"""Compressing what Kurma writes: the same output for the same input, so no names and no times in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kurma_core.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO, Protocol

    class _Compressor(Protocol):
        def compress(self, data: bytes, /) -> bytes: ...
        def flush(self) -> bytes: ...


#: Ways of compressing, ``""`` being none.
KINDS = ("", "gzip", "bzip2", "xz", "zstd")


@contextmanager
def compressor(kind: str, out: BinaryIO) -> Iterator[Callable[[bytes], object]]:
    """A function that writes its argument to ``out``, compressed; leaving the context without an error ends the
    stream.

    :raises UsageError: there is no such way of compressing.
    """
    if kind not in KINDS:
        raise UsageError(f"unknown compression {kind!r}", hint=f"one of {', '.join(KINDS[1:])}")
    if not kind:
        yield out.write
        return
    made = _make(kind)

    def write(data: bytes) -> None:
        packed = made.compress(data)
        if packed:
            out.write(packed)

    yield write
    out.write(made.flush())


def _make(kind: str) -> _Compressor:
    if kind == "gzip":
        import zlib

        return zlib.compressobj(6, zlib.DEFLATED, zlib.MAX_WBITS | 16)  # zlib's own header has time 0, no name
    if kind == "bzip2":
        import bz2

        return bz2.BZ2Compressor()
    if kind == "xz":
        import lzma

        return lzma.LZMACompressor()
    try:
        from compression import zstd  # type: ignore[import-not-found, unused-ignore]

        found: _Compressor = zstd.ZstdCompressor()
    except ImportError:
        import zstandard

        found = zstandard.ZstdCompressor().compressobj()
    return found
