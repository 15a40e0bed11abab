"""Detects, decompresses and compresses gzip, bzip2, xz and zstd.

Every decoder gives its output in pieces of at most :data:`PIECE` bytes or, for zstd, in pieces whose size is
bounded by that of the input given to it, so that a bomb is noticed before it fills the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kurma_core.errors import ArchiveError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO, Protocol

    class _Decoder(Protocol):
        """The interface that :mod:`bz2`, :mod:`lzma` and Python 3.14's ``compression.zstd`` share."""

        @property
        def eof(self) -> bool: ...
        @property
        def needs_input(self) -> bool: ...
        @property
        def unused_data(self) -> bytes: ...
        def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...

    class _Compressor(Protocol):
        def compress(self, data: bytes, /) -> bytes: ...
        def flush(self) -> bytes: ...


#: Largest piece of output, bytes.
PIECE = 1 << 18
#: zstd: bytes of input at a time. One block of 4 bytes can expand to 128 KiB, so 4 KiB expand to 128 MiB at worst.
_ZSTD_INPUT = 1 << 12
#: Largest window of a zstd frame, as a power of two: 128 MiB, what ``zstd --long`` uses.
_ZSTD_WINDOW_LOG = 27
#: gzip's header and trailer, both checked; the largest window.
_GZIP_FORMAT = 31
#: Memory limit of an xz stream: ``xz -9`` needs 65 MiB.
_XZ_MEMORY = 256 << 20

_MAGIC = (
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    # the file begins with a skippable frame
    *((bytes((0x50 + low, 0x2A, 0x4D, 0x18)), "zstd") for low in range(16)),
)
#: First byte of an encrypted OpenPGP message: a session key or encrypted data, in the old and the new form.
_OPENPGP = frozenset((*range(0x84, 0x88), *range(0x8C, 0x90), *range(0xA4, 0xA8), 0xC1, 0xC3, 0xC9, 0xD2, 0xD4))


def detect(head: bytes) -> str:
    """The format of a stream that starts with ``head`` (512 bytes, fewer if it is shorter).

    :returns: ``tar``, ``gzip``, ``bzip2``, ``xz``, ``zstd``, ``openpgp``, or ``""`` for anything else.
    """
    if is_tar(head):
        return "tar"
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    if head.startswith(b"-----BEGIN PGP MESSAGE") or (head and head[0] in _OPENPGP):
        return "openpgp"
    return ""


def is_tar(head: bytes) -> bool:
    """Whether ``head`` is a tar header with a right checksum, or the zeros at the end of an empty tar."""
    if len(head) < 512:
        return False
    block = head[:512]
    field = block[148:156].strip(b" \0")
    if not field:
        return not any(block)
    if not field.isdigit() or field.strip(b"01234567"):
        return False
    return int(field, 8) == sum(block) - sum(block[148:156]) + 256


def decoder(kind: str, source: Iterator[bytes]) -> Iterator[bytes]:
    """The unpacked content of ``source``.

    :param kind: as from :func:`detect`.
    :param source: pieces of the stream as shipped, none empty.
    :raises ArchiveError: it is encrypted, corrupt, truncated, or of an unknown format.
    """
    if kind == "tar":
        return source
    if kind == "gzip":
        return _members(source, _Gzip, "gzip")
    if kind == "bzip2":
        return _bzip2(source)
    if kind == "xz":
        return _xz(source)
    if kind == "zstd":
        return _zstd(source)
    if kind == "openpgp":
        raise ArchiveError(
            "the archive is encrypted with OpenPGP, which only an image's archive may be",
            hint="decrypt it first: gpg --output FILE --decrypt FILE",
            encrypted=True,
        )
    raise ArchiveError(
        "not an image archive: neither a tar nor one compressed with gzip, bzip2, xz or zstd",
        hint="an App Container image is a tar with `manifest` and `rootfs`",
    )


def _bzip2(source: Iterator[bytes]) -> Iterator[bytes]:
    from bz2 import BZ2Decompressor

    return _members(source, BZ2Decompressor, "bzip2")


def _xz(source: Iterator[bytes]) -> Iterator[bytes]:
    import lzma

    return _members(source, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY), "xz")


def _zstd(source: Iterator[bytes]) -> Iterator[bytes]:
    try:
        from compression import zstd  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return _members(_slices(source, _ZSTD_INPUT), _Zstandard, "zstd")
    options = {zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}
    return _members(source, lambda: zstd.ZstdDecompressor(options=options), "zstd")


def _slices(source: Iterator[bytes], size: int) -> Iterator[bytes]:
    for piece in source:
        for start in range(0, len(piece), size):
            yield piece[start : start + size]


def _members(source: Iterator[bytes], make: Callable[[], _Decoder], kind: str) -> Iterator[bytes]:
    """One member (stream, frame) after the other; zeros between and after them are padding."""
    current: _Decoder | None = make()
    for piece in source:
        data = piece
        while data or (current is not None and not current.needs_input):
            if current is None:
                data = data.lstrip(b"\0")
                if not data:
                    break
                current = make()
            try:
                out = current.decompress(data, PIECE)
            except Exception as error:
                # zlib.error, OSError, EOFError, LZMAError, ZstdError: each library has its own exception for
                # corrupt data.
                raise ArchiveError(f"the archive is corrupt: not valid {kind} data: {error}", kind=kind) from error
            if out:
                yield out
            data = b""
            if current.eof:
                data = current.unused_data
                current = None
    if current is not None:
        raise ArchiveError(f"the archive is truncated: its {kind} stream ends early", kind=kind, truncated=True)


class _Gzip:
    """One gzip member, with the interface of the other decoders.

    Uses ISA-L if it is installed, which takes half of zlib's time (docs/decisions/0002-dependencies.md).
    """

    __slots__ = ("_begun", "_inner", "_rest")

    def __init__(self) -> None:
        try:
            from isal import isal_zlib as zlib
        except ImportError:
            import zlib  # type: ignore[no-redef]

        self._inner: Any = zlib.decompressobj(_GZIP_FORMAT)
        self._rest = b""
        self._begun = False

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        if data and not self._begun:
            self._begun = True
            if not _MAGIC[0][0].startswith(data[:2]):  # ISA-L waits for the whole header before it looks
                raise ValueError("incorrect header")
        out: bytes = self._inner.decompress(self._rest + data if self._rest else data, max(max_length, 0))
        self._rest = self._inner.unconsumed_tail
        return out

    @property
    def eof(self) -> bool:
        ended: bool = self._inner.eof
        return ended

    @property
    def needs_input(self) -> bool:
        return not self._rest

    @property
    def unused_data(self) -> bytes:
        rest: bytes = self._inner.unused_data
        return rest


class _Zstandard:
    """One zstd frame by the zstandard package, with the interface of the other decoders."""

    __slots__ = ("_inner",)

    def __init__(self) -> None:
        import zstandard

        self._inner = zstandard.ZstdDecompressor(max_window_size=1 << _ZSTD_WINDOW_LOG).decompressobj()

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        out: bytes = self._inner.decompress(data)
        return out

    @property
    def eof(self) -> bool:
        ended: bool = self._inner.eof
        return ended

    @property
    def needs_input(self) -> bool:
        return True

    @property
    def unused_data(self) -> bytes:
        rest: bytes = self._inner.unused_data
        return rest


#: Compressions for archives; ``""`` means none.
KINDS = ("", "gzip", "bzip2", "xz", "zstd")


@contextmanager
def compressor(kind: str, out: BinaryIO) -> Iterator[Callable[[bytes], object]]:
    """A function that writes its argument to ``out``, compressed; leaving the context without an error ends the
    stream.

    :raises UsageError: the compression is unknown.
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


#: Bytes read at a time.
_READ = 1 << 18


def unpacked(path: str) -> Iterator[bytes]:
    """The uncompressed tar of the archive at ``path``, in pieces, to its very end.

    :raises ArchiveError: it is corrupt. :raises OSError: as the kernel says.
    """
    with open(path, "rb") as file:
        head = file.read(512)
        file.seek(0)
        yield from decoder(detect(head), iter(lambda: file.read(_READ), b""))
