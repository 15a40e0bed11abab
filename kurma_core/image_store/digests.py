"""Digests of single files: how the store tells later that none has changed."""

from __future__ import annotations

import os
from collections.abc import Iterator

from kurma_core.cancellation import check

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hashlib import _Hash

#: Bytes read at a time; the grain in which zeros of a sparse file are left out.
_GRAIN = 1 << 20


def content_hash() -> _Hash:
    """SHA-256: with the processor's help the fastest of the sound ones."""
    import hashlib

    return hashlib.sha256(usedforsecurity=True)


def file_digest(fd: int) -> str:
    """Digest of the content of ``fd``, read from its start. :raises OSError: as the kernel says."""
    digest = content_hash()
    offset = 0
    while piece := os.pread(fd, _GRAIN, offset):
        check()
        digest.update(piece)
        offset += len(piece)
    return digest.hexdigest()


def sparse_digest(fd: int, size: int) -> str:
    """Digest that takes time for what a file holds, not for its holes; ``sparse:`` tells it from the other.

    It covers the size, and each grain that is not all zeros with its place, so it does not depend on where the
    file system sees holes.

    :raises OSError: as the kernel says.
    """
    digest = content_hash()
    digest.update(b"%d\n" % size)
    at = 0
    while at < size:
        check()
        try:
            at = os.lseek(fd, at, os.SEEK_DATA) // _GRAIN * _GRAIN
        except OSError as error:
            import errno

            if error.errno != errno.ENXIO:
                raise
            break
        piece = os.pread(fd, _GRAIN, at)
        if piece.strip(b"\0"):
            digest.update(b"%d\n" % at)
            digest.update(piece)
        at += _GRAIN
    return f"sparse:{digest.hexdigest()}"


def sparse_content_digest(stretches: list[tuple[int, int]], size: int, content: Iterator[memoryview]) -> str:
    """What :func:`sparse_digest` gives for a file with these stretches of content, without making it.

    :param stretches: (offset, length), ascending.
    """
    digest = content_hash()
    digest.update(b"%d\n" % size)
    grain = bytearray()
    place = -1

    def flush() -> None:
        if grain.strip(b"\0"):
            digest.update(b"%d\n" % place)
            digest.update(bytes(grain))

    ahead = iter(stretches)
    offset = length = 0
    for piece in content:
        while piece:
            while not length:
                offset, length = next(ahead)
            start = offset // _GRAIN * _GRAIN
            if start != place:
                flush()
                place, grain = start, bytearray(min(_GRAIN, size - start))
            count = min(len(piece), length, start + _GRAIN - offset)
            grain[offset - start : offset - start + count] = piece[:count]
            offset, length, piece = offset + count, length - count, piece[count:]
    flush()
    return f"sparse:{digest.hexdigest()}"
