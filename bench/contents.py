"""What the fetched images hold: the same bytes at each run, as compressible as files usually are.

An eighth of each file is noise, half looks like machine code (few operations, many operands), the rest like text
(few words often, many rarely): gzip makes it less than half. A layer is compressed in blocks of 1 MiB that need
nothing of each other's coding but are one gzip member, as Docker and podman write it when they push.
"""

from __future__ import annotations

import hashlib
import random
import tarfile
import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

_BLOCK = 1 << 20
_GRAIN = 1 << 12
_POOL = 16 << 20
_TIME = 1_700_000_000


@dataclass(frozen=True, slots=True)
class Content:
    """Files with the same sizes and bytes every time.

    :param sizes: of the files, bytes; 50 files in each directory.
    """

    name: str
    sizes: tuple[int, ...]

    def write(self, path: str, first: int = 0, count: int | None = None) -> str:
        """One layer with ``count`` of the files, as ``path``. :returns: its digest without compression."""
        noise = random.Random(f"{self.name} {first}")
        pool = _pool(noise)
        end = len(self.sizes) if count is None else first + count
        with open(path, "wb") as file, _Gzip(file) as out, tarfile.open(fileobj=out, mode="w|") as tar:
            self._add(tar, "data", tarfile.DIRTYPE, 0o755)
            for number in range(first, end):
                if number % 50 == 0 or number == first:
                    self._add(tar, f"data/{number // 50:03d}", tarfile.DIRTYPE, 0o755)
                info = self._info(f"data/{number // 50:03d}/file-{number:05d}", tarfile.REGTYPE, 0o644)
                info.size = self.sizes[number]
                tar.addfile(info, _Pieces(noise, pool, info.size))
        return out.digest

    def _add(self, tar: tarfile.TarFile, name: str, kind: bytes, mode: int) -> None:
        tar.addfile(self._info(name, kind, mode))

    @staticmethod
    def _info(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.mtime = kind, mode, _TIME
        return info


def small_files(count: int = 20_000, total: int = 139_000_000) -> Content:
    """Many files of a few kilobytes, some of which are larger."""
    noise = random.Random("sizes")
    weights = [noise.lognormvariate(0, 1.2) for _ in range(count)]
    scale = total / sum(weights)
    return Content("small", tuple(int(weight * scale) for weight in weights))


def large_files(count: int = 8, total: int = 1_100_000_000) -> Content:
    return Content("large", (total // count,) * count)


def _pool(noise: random.Random) -> bytes:
    """Bytes from which files are cut; larger by far than what gzip looks back at."""
    words = [noise.randbytes(noise.randint(1, 5)).hex().encode() for _ in range(400)]
    often = [1 / (rank + 1) for rank in range(len(words))]
    codes = [noise.randbytes(noise.randint(3, 7)) for _ in range(60)]
    pieces = []
    while len(pieces) * _GRAIN < _POOL:
        text = b" ".join(noise.choices(words, often, k=_GRAIN))
        pieces += [text[:_GRAIN], text[_GRAIN : 2 * _GRAIN], text[2 * _GRAIN : 3 * _GRAIN]]
        code = b"".join(b"%b%c" % (code, noise.getrandbits(4)) for code in noise.choices(codes, k=_GRAIN))
        pieces += [code[:_GRAIN], code[_GRAIN : 2 * _GRAIN], code[2 * _GRAIN : 3 * _GRAIN], code[-_GRAIN:]]
        pieces.append(noise.randbytes(_GRAIN))
    return b"".join(pieces)


class _Pieces:
    """A file's content, as :mod:`tarfile` reads it."""

    def __init__(self, noise: random.Random, pool: bytes, size: int) -> None:
        self._noise, self._pool, self._left = noise, pool, size

    def read(self, size: int = -1) -> bytes:
        size = min(self._left, size if size >= 0 else self._left)
        self._left -= size
        at = self._noise.randrange(len(self._pool) - size) if size < len(self._pool) else 0
        return self._pool[at : at + size]


class _Gzip:
    """Writes one gzip member, two blocks at once. :ivar digest: of what was written, once it is closed."""

    def __init__(self, file: object) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._crc = self._size = 0
        self._buffer = bytearray()
        self._pool = ThreadPoolExecutor(2)
        self._ahead: deque[Future[bytes]] = deque()
        self.digest = ""

    def __enter__(self) -> _Gzip:
        self._write(b"\x1f\x8b\x08\0\0\0\0\0\0\xff")
        return self

    def __exit__(self, *_: object) -> None:
        self._block(bytes(self._buffer), zlib.Z_FINISH)
        for _ in self._done(0):
            pass
        self._write(self._crc.to_bytes(4, "little") + (self._size & 0xFFFFFFFF).to_bytes(4, "little"))
        self._pool.shutdown()
        self.digest = f"sha256:{self._hash.hexdigest()}"

    def write(self, data: bytes) -> int:
        self._buffer += data
        while len(self._buffer) >= _BLOCK:
            self._block(bytes(self._buffer[:_BLOCK]), zlib.Z_SYNC_FLUSH)
            del self._buffer[:_BLOCK]
        return len(data)

    def _block(self, data: bytes, flush: int) -> None:
        self._hash.update(data)
        self._crc = zlib.crc32(data, self._crc)
        self._size += len(data)
        self._ahead.append(self._pool.submit(_deflated, data, flush))
        for _ in self._done(4):
            pass

    def _done(self, left: int) -> Iterator[None]:
        while len(self._ahead) > left:
            self._write(self._ahead.popleft().result())
            yield

    def _write(self, data: bytes) -> None:
        self._file.write(data)  # type: ignore[attr-defined]


def _deflated(data: bytes, flush: int) -> bytes:
    deflate = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    return deflate.compress(data) + deflate.flush(flush)
