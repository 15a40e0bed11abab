"""Decompresses an image archive to a file without a name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, BinaryIO, cast

from kurma_core.cancellation import check
from kurma_core.errors import FetchError

if TYPE_CHECKING:
    from collections.abc import Callable

#: A compressed archive may unpack to ``_MOST_RATIO`` times its size or to ``_HONEST_SIZE`` bytes, whichever is
#: more.
_MOST_RATIO = 1000
_HONEST_SIZE = 64 << 20
_PIECE = 1 << 20
#: Largest window of a zstd frame: what ``zstd --long`` uses.
_ZSTD_WINDOW = 1 << 27


def is_compressed(file: BinaryIO) -> bool:
    """Whether the file's content is compressed. Afterwards the file is positioned at its start."""
    return _opener(file) is not None


def unpacked(file: BinaryIO, path: str, state_dir: str) -> int:
    """Decompresses the archive to a file without a name.

    :param path: for messages.
    :param state_dir: directory of the copy; it is made if it is missing.
    :returns: a descriptor of the copy; the caller closes it.
    :raises FetchError: the archive is corrupt, or unpacks to far more than its size.
    """
    import lzma
    import tempfile
    import zlib

    opener = _opener(file)
    assert opener is not None
    os.makedirs(state_dir, mode=0o700, exist_ok=True)
    most = max(_HONEST_SIZE, os.fstat(file.fileno()).st_size * _MOST_RATIO)
    size = 0
    try:
        with opener(file) as source, tempfile.TemporaryFile(dir=state_dir) as copy:
            while data := source.read(_PIECE):
                check()
                size += len(data)
                if size > most:
                    raise FetchError(f"{path}: unpacks to more than {_MOST_RATIO} times its size", url=path)
                copy.write(data)
            copy.flush()
            return os.dup(copy.fileno())
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise FetchError(f"{path}: cannot be unpacked: {error}", url=path) from None
    except Exception as error:
        if type(error).__name__ != "ZstdError":  # compression.zstd's or zstandard's
            raise
        raise FetchError(f"{path}: cannot be unpacked: {error}", url=path) from None


def _opener(file: BinaryIO) -> Callable[[BinaryIO], BinaryIO] | None:
    head = file.read(6)
    file.seek(0)
    if head.startswith(b"\x1f\x8b"):
        return _gzip
    if head.startswith(b"BZh"):
        return _bzip2
    if head.startswith(b"\xfd7zXZ\0"):
        return _xz
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return _zstd
    return None


def _gzip(file: BinaryIO) -> BinaryIO:
    import gzip

    return cast("BinaryIO", gzip.open(file, "rb"))


def _bzip2(file: BinaryIO) -> BinaryIO:
    import bz2

    return cast("BinaryIO", bz2.open(file, "rb"))


def _xz(file: BinaryIO) -> BinaryIO:
    import lzma

    return cast("BinaryIO", lzma.open(file, "rb"))


def _zstd(file: BinaryIO) -> BinaryIO:
    try:
        from compression import zstd  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        import zstandard

        return cast(
            "BinaryIO", zstandard.open(file, "rb", dctx=zstandard.ZstdDecompressor(max_window_size=1 << 27))
        )
    return cast("BinaryIO", zstd.open(file, "rb"))
