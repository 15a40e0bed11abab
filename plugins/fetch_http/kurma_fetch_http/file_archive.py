"""The entry point ``file``: archives, and the signatures beside them, in files of this machine."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO
from urllib.parse import unquote_to_bytes, urlsplit

from kurma_core.errors import FetchError, FetchNotFoundError, FetchRefusedError, UsageError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, DriverContext
from kurma_core.hookspecs.fetcher import (
    DetachedSignature,
    FetcherHooks,
    FetchRequest,
    RemoteArchive,
    RemoteBlobHooks,
)
from kurma_core.linux import beneath

#: Most bytes of a detached signature, which has some hundred.
SIGNATURE_LIMIT = 1 << 20


class FileFetcher(FetcherHooks):
    """Resolves ``file://`` locators."""

    def __init__(self, context: DriverContext) -> None:
        pass

    @hookimpl
    def resolve(self, locator: str, request: FetchRequest) -> RemoteArchive:
        """The image's signature is a file beside it, see :func:`beside`."""
        return local_archive(locator)


@hookimpl
def kurma_fetcher() -> Driver:
    """Archives from this machine's files."""
    return Driver(create=FileFetcher, locators="path")


def local_archive(locator: str) -> RemoteArchive:
    """Returns the archive of a ``file://`` address; its signature is a file beside it, see :func:`beside`.

    :raises UsageError: the address names another host, or its path is not absolute.
    :raises FetchError: the file does not exist, cannot be read, or is not a regular file.
    """
    return RemoteArchive(locator=locator, url=locator, transport="file", blob=FileBlob.of(path_of(locator)))


def beside(path: str) -> tuple[tuple[str, str], ...]:
    """Returns the possible paths of a signature of the archive at ``path``, each with the signed content, in the
    order of trying: ``X.aci.asc`` (signs the archive); the early ``X.sig`` and ``X.aci.sig`` (sign the tar)."""
    early = [f"{path}.sig"]
    if path.endswith(".aci"):
        early.insert(0, path.removesuffix(".aci") + ".sig")
    return ((f"{path}.asc", "archive"), *((place, "tar") for place in early))


def path_of(locator: str) -> bytes:
    """Returns the path in a ``file://`` address, percent-decoded, as bytes, for a name need not be UTF-8.

    :raises UsageError: the address names another host, or its path is not absolute.
    """
    hint = "write file:///PATH, or just the path"
    try:
        parts = urlsplit(locator)
        path = unquote_to_bytes(parts.path)
    except ValueError as error:
        raise UsageError(f"{locator}: not a file address: {error}", hint=hint) from None
    if parts.netloc not in ("", "localhost"):
        raise UsageError(f"{locator}: a file address names no host", hint=hint)
    if not path.startswith(b"/") or b"\0" in path:
        raise UsageError(f"{locator}: not an absolute path", hint=hint)
    return path


class FileBlob(RemoteBlobHooks):
    """A regular file; ``key`` changes with the file."""

    def __init__(self, path: bytes, key: str | None, size: int | None, digest: str | None = None) -> None:
        self.path = path
        self.key = key
        self.size = size
        self.digest = digest

    @classmethod
    def of(cls, path: bytes) -> FileBlob:
        """Makes the blob of a file. :raises FetchError: see :func:`open_regular`."""
        with open_regular(path) as file:
            found = os.fstat(file.fileno())
        key = f"file {os.fsdecode(path)!r} {found.st_dev} {found.st_ino} {found.st_size} {found.st_mtime_ns}"
        return cls(path, f"{key} {found.st_ctime_ns}", found.st_size)

    @hookimpl
    def open(self, offset: int) -> BinaryIO:
        """Opens the file. :raises FetchError: see :func:`open_regular`."""
        file = open_regular(self.path)
        file.seek(offset)
        return file

    @hookimpl
    def signature(self) -> DetachedSignature | None:
        """Reads the file beside it, see :func:`beside`."""
        for place, over in beside(os.fsdecode(self.path)):
            try:
                with open_regular(os.fsencode(place)) as file:
                    content = file.read(SIGNATURE_LIMIT + 1)
            except FetchNotFoundError:
                continue
            if len(content) > SIGNATURE_LIMIT:
                raise FetchError(f"{place}: larger than a signature can be", url=place)
            return DetachedSignature(content, over=over, url=place)
        return None


def open_regular(path: bytes) -> BinaryIO:
    """Opens a regular file for reading; see :func:`kurma_core.linux.beneath.open_regular`.

    :raises FetchNotFoundError: it does not exist. :raises FetchRefusedError: it may not be read.
    :raises FetchError: it is not a regular file.
    """
    name = os.fsdecode(path)
    try:
        descriptor = beneath.open_regular(beneath.AT_FDCWD, name, resolve=0)
    except OSError as error:
        raise _opening_error(name, error) from None
    return os.fdopen(descriptor, "rb")


def _opening_error(name: str, error: OSError) -> FetchError:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return FetchNotFoundError(f"{name}: no such file", url=name)
    if error.errno in (errno.EACCES, errno.EPERM):
        return FetchRefusedError(f"{name}: may not be read: {error.strerror}", url=name)
    if isinstance(error, beneath.NotRegularError):
        kind = "a directory" if stat.S_ISDIR(error.mode) else "not a regular file"
        return FetchError(f"{name}: {kind}", hint="name a file: an image archive (.aci), or one of keys", url=name)
    return FetchError(f"{name}: cannot be opened: {error.strerror}", url=name)
