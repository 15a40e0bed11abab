"""Reads the files in an image's tar by name; a compressed tar is decompressed only when its layers are wanted."""

from __future__ import annotations

import io
import os
import posixpath
import tarfile
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, BinaryIO, cast

from kurma_fetch_http.file_archive import open_regular

from kurma_core.cancellation import check
from kurma_core.errors import FetchError, FetchNotFoundError, FetchTruncatedError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.fetcher import RemoteBlobHooks
from kurma_fetch_docker.archive_index_cache import Remembered, Table, identity
from kurma_fetch_docker.decompressed import is_compressed, unpacked

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_LINKS = 8
_MEMBERS = 100_000


class Members:
    """The files of an image's tar. They are not extracted: each file is a span of the tar.

    The index of a compressed archive, and the small documents read from it, are cached in ``state_dir``: as long
    as the archive does not change, reading them again needs no decompression.

    :param unpack: opens the uncompressed tar.
    :param table: the index of the tar.
    """

    def __init__(self, path: str, unpack: _Unpack, table: Table, remembered: Remembered | None) -> None:
        self.path = path
        self._unpack = unpack
        self._table = table
        self._remembered = remembered
        self._read: dict[str, bytes] = {}

    @classmethod
    def read(cls, path: str, state_dir: str) -> Members:
        """Reads the index of the archive.

        :param state_dir: directory into which a compressed archive is decompressed, in a file without a name.
        :raises FetchError: it is not a tar. :raises FetchNotFoundError: it does not exist.
        """
        if os.path.isdir(path):
            raise FetchError(f"{path}: a directory", hint="a layout in a directory is oci:DIR", url=path)
        with open_regular(os.fsencode(path)) as file:
            compressed = is_compressed(file)
            unpack = _Unpack(path, state_dir, identity(path, file.fileno()), compressed)
            if not compressed:
                unpack.hold(os.dup(file.fileno()))
        remembered = Remembered(state_dir, unpack.identity) if compressed else None
        table = remembered.load() if remembered is not None else None
        return cls(path, unpack, table or _table(unpack), remembered)

    def remember(self) -> None:
        """Caches the index and the documents that were read."""
        if self._remembered is not None and not self._read.keys() <= self._table.documents.keys():
            documents = {**self._table.documents, **self._read}
            self._remembered.store(Table(self._table.spans, self._table.links, documents))

    def holds(self, name: str) -> bool:
        return name in self._table.spans or name in self._table.links

    def blob(self, name: str, digest: str | None) -> MemberBlob:
        """Returns a member as a blob. :raises FetchNotFoundError: there is no such member."""
        offset, size = self._table.spans[self._resolved(name)]
        return MemberBlob(self._unpack, offset, size, digest)

    def content(self, name: str, limit: int) -> bytes:
        """Reads a small member. :raises FetchNotFoundError: there is no such member."""
        name = self._resolved(name)
        offset, size = self._table.spans[name]
        if size > limit:
            raise FetchError(f"{self.path}: {name} is longer than {limit} bytes", url=self.path)
        if name in self._table.documents:
            return self._table.documents[name]
        content = os.pread(self._unpack.descriptor(), size, offset)
        if len(content) != size:
            raise FetchTruncatedError(f"{self.path}: ends within {name}", url=self.path)
        self._read[name] = content
        return content

    def _resolved(self, name: str) -> str:
        name = posixpath.normpath(name)
        for _ in range(_LINKS):
            if name in self._table.spans:
                return name
            name = self._table.links.get(name, "")
            if not name:
                break
        raise FetchNotFoundError(
            f"{self.path}: is not an image: it lacks a file that it should hold", url=self.path
        )


def _table(unpack: _Unpack) -> Table:
    """Reads the index of a tar. It has links, since ``docker save`` wrote repeated layers as links to the first.

    :raises FetchError: it is not a tar.
    """
    spans: dict[str, tuple[int, int]] = {}
    links: dict[str, str] = {}
    number = unpack.descriptor()
    try:
        os.lseek(number, 0, os.SEEK_SET)
        with os.fdopen(os.dup(number), "rb") as reader, tarfile.open(fileobj=reader, mode="r:") as tar:
            for count, member in enumerate(tar):
                check()
                if count > _MEMBERS:
                    raise FetchError(f"{unpack.path}: holds more than {_MEMBERS} files", url=unpack.path)
                name = posixpath.normpath(member.name)
                if member.isreg() and not member.issparse():
                    spans[name] = (member.offset_data, member.size)
                elif member.issym():
                    links[name] = posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))
                elif member.islnk():
                    links[name] = posixpath.normpath(member.linkname)
    except tarfile.TarError as error:
        raise FetchError(f"{unpack.path}: not a tar archive: {error}", url=unpack.path) from None
    return Table(spans, links, {})


class _Unpack:
    """The uncompressed tar as an open file: the archive itself, or a decompressed copy. The copy is made at the
    first use; the file is closed with its last user. Safe to use from several threads."""

    def __init__(self, path: str, state_dir: str, found: Mapping[str, object], compressed: bool) -> None:
        self.path = path
        self.identity = found
        self._state_dir = state_dir
        self._compressed = compressed
        self._lock = threading.Lock()
        self._number = -1

    def hold(self, number: int) -> None:
        self._number = number

    def descriptor(self) -> int:
        """Returns the descriptor. :raises FetchError: the archive cannot be decompressed, or has changed."""
        with self._lock:
            if self._number < 0:
                with open_regular(os.fsencode(self.path)) as file:
                    if identity(self.path, file.fileno()) != self.identity:
                        raise FetchError(f"{self.path}: changed while it was read", url=self.path)
                    self._number = unpacked(file, self.path, self._state_dir)
            return self._number

    def __del__(self) -> None:
        if self._number >= 0:
            os.close(self._number)


class MemberBlob(RemoteBlobHooks):
    """One file in a tar."""

    key = None

    def __init__(self, tar: _Unpack, start: int, size: int, digest: str | None) -> None:
        self.tar = tar
        self.start = start
        self.size: int = size
        self.digest = digest

    @hookimpl
    def open(self, offset: int) -> BinaryIO:
        self.tar.descriptor()
        return cast("BinaryIO", _Span(self.tar, self.start + offset, self.start + self.size))


class _Span(io.RawIOBase):
    def __init__(self, tar: _Unpack, start: int, end: int) -> None:
        self._tar = tar  # keeps the file open
        self._number = tar.descriptor()
        self._position = start
        self._end = end

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        left = self._end - self._position
        data = os.pread(self._number, left if size is None or size < 0 else min(size, left), self._position)
        self._position += len(data)
        return data

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)
