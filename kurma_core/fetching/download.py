"""Downloads one blob: resumes its partial file, counts and hashes the bytes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from kurma_core.cancellation import abandoning, check, current, pause
from kurma_core.errors import (
    FetchDigestError,
    FetchError,
    FetchTruncatedError,
    PluginError,
    StoreError,
)
from kurma_core.linux.files import is_at

if TYPE_CHECKING:
    from typing import BinaryIO, TypeVar

    from kurma_core.api.operations import Progress
    from kurma_core.hookspecs.fetcher import RemoteBlobHooks

    T = TypeVar("T")

CHUNK = 1 << 18
_LOCK_POLL = 0.05


_received = 0
_counting = threading.Lock()


def _count(more: int) -> None:
    global _received
    with _counting:
        _received += more


def received() -> int:
    """Returns the number of bytes that this process has fetched."""
    return _received


class Download(io.RawIOBase):
    """A stream of the bytes of one blob: first the partial file's, then the source's. One thread reads it, once.

    The last ``read`` checks digest and size and raises if they differ, so a reader that reads to the end never
    accepts wrong bytes. A reader that stops earlier must call :meth:`finish` before it trusts the bytes.

    :param patient: opening the source may wait, so it must be possible to abandon it.
    """

    def __init__(
        self,
        blob: RemoteBlobHooks,
        what: str,
        progress: Progress | None,
        partial: Partial | None,
        *,
        patient: bool = True,
    ) -> None:
        self.waited = partial is not None and partial.waited
        self._blob = blob
        self._what = what
        self._progress = progress
        self._partial = partial
        self._patient = patient
        self._source: BinaryIO | None = None
        self._started = False
        self._replay = 0
        self._position = 0
        self._ended = False
        algorithm, _, self._expected = (blob.digest or "").partition(":")
        if self._expected and algorithm not in ("sha256", "sha512"):
            raise FetchDigestError(f"{what}: digest algorithm {algorithm} is not supported", digest=blob.digest)
        self._hash = hashlib.new(algorithm) if self._expected else None

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """:raises FetchError: :raises StoreError: the partial file cannot be written. :raises Cancelled:"""
        if size is None or size < 0:
            return b"".join(iter(lambda: self.read(CHUNK), b""))
        if self._ended or not size:
            return b""
        check()
        if not self._started:
            self._start()
        data = self._next(size)
        if not data:
            self._ended = True
            self._check()
            if self._partial is not None:
                # The store will sync the file system next, and the partial file's pages need not reach the disk.
                self._partial.truncate()
            return b""
        self._position += len(data)
        if self._hash is not None:
            self._hash.update(data)
        if self._progress is not None and self._position > self._replay:
            self._progress.advance(len(data))
        if self._position > self._replay:
            _count(len(data))
        if self._blob.size is not None and self._position > self._blob.size:
            raise FetchDigestError(f"{self._what}: is longer than the {self._blob.size} bytes announced")
        return data

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def finish(self) -> None:
        """Reads to the end and checks the whole. :raises FetchError: see :meth:`read`."""
        while self.read(CHUNK):
            pass

    def close(self) -> None:
        """Ends a successful download and removes the partial file."""
        self._end(keep=False)

    def abandon(self, *, resumable: bool) -> None:
        """Ends a failed download. :param resumable: keeps the partial file for the next attempt."""
        self._end(keep=resumable)

    def _end(self, *, keep: bool) -> None:
        if self.closed:
            return
        if self._source is not None:
            self._source.close()
        if self._partial is not None:
            self._partial.release(keep=keep)
        if self._started and self._progress is not None:
            self._progress.finish()
        super().close()

    def _start(self) -> None:
        """Opens the source at the end of the partial file, before the first byte is returned: if the source's
        content has changed, the partial file can still be discarded at this point."""
        self._started = True
        size = self._blob.size
        if self._partial is not None:
            self._replay = self._partial.size()
            if size is not None and self._replay > size:
                self._replay = 0
        if size is None or self._replay < size or not size:
            try:
                self._source = self._opened(self._replay)
            except FetchTruncatedError as error:
                if not self._replay or not error.data.get("changed"):
                    raise
                self._replay = 0
                self._source = self._opened(0)
        if self._partial is not None and not self._replay:
            self._partial.truncate()
        if self._progress is not None:
            self._progress.start(self._what, size, "bytes" if self._partial is None else "download")
            if self._replay:
                self._progress.skip(self._replay)

    def _next(self, size: int) -> bytes:
        if self._position < self._replay:
            assert self._partial is not None
            return self._partial.read(min(size, self._replay - self._position), self._position)
        if self._source is None:
            return b""
        data = self._read(self._source, size)
        if data and self._partial is not None:
            self._partial.append(data)
        return data

    def _opened(self, offset: int) -> BinaryIO:
        """Opens the source; abandons the call if the operation is cancelled before the source answers."""
        if not self._patient:
            return self._ask(lambda: self._blob.open(offset))
        return self._ask(lambda: abandoning(lambda: self._blob.open(offset), lambda source: source.close()))

    def _read(self, source: BinaryIO, size: int) -> bytes:
        with current().waking(lambda: _close(source)):
            return self._ask(lambda: source.read(size))

    def _ask(self, source: Callable[[], T]) -> T:
        """Calls the plugin.

        :raises FetchError: the source cannot be read. :raises PluginError: the plugin failed.
        """
        try:
            return source()
        except PluginError as error:
            error.prefix(self._what)
            raise
        except OSError as error:
            reason = error.strerror or " ".join(str(error).split()) or type(error).__name__
            raise FetchError(f"{self._what}: cannot be read: {reason}", errno=error.errno) from error

    def _check(self) -> None:
        size = self._blob.size
        if size is not None and self._position != size:
            raise FetchTruncatedError(f"{self._what}: ended after {self._position} of {size} bytes")
        if self._hash is not None and self._hash.hexdigest() != self._expected:
            raise FetchDigestError(
                f"{self._what}: its digest is {self._hash.name}:{self._hash.hexdigest()}, not {self._blob.digest}",
                hint="the content is not the requested one: try again, and distrust the source if the "
                "error persists",
                digest=self._blob.digest,
            )


class Partial:
    """The locked file with the bytes received so far. ``image gc`` removes partial files that are not locked."""

    def __init__(self, path: str, descriptor: int, waited: bool) -> None:
        self._path = path
        self._descriptor = descriptor
        self.waited = waited

    @classmethod
    def lock(cls, directory: str, key: str, note: Callable[[], None]) -> Partial:
        """Locks the file; waits while another process or thread writes it. It polls, since a wait in flock(2)
        cannot be interrupted from another thread.

        :raises Cancelled: the operation was cancelled meanwhile.
        """
        os.makedirs(directory, mode=0o700, exist_ok=True)
        path = os.path.join(directory, hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()[:40])
        waited = False
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                while not _try_lock(descriptor):
                    if not waited:
                        note()
                    waited = True
                    pause(_LOCK_POLL)
                # The previous holder of the lock may have removed the file: then this descriptor is useless.
                if is_at(descriptor, path):
                    return cls(path, descriptor, waited)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def truncate(self) -> None:
        os.ftruncate(self._descriptor, 0)

    def read(self, size: int, offset: int) -> bytes:
        return os.pread(self._descriptor, size, offset)

    def append(self, data: bytes) -> None:
        view = memoryview(data)
        end = os.lseek(self._descriptor, 0, os.SEEK_END)
        try:
            while view:
                written = os.pwrite(self._descriptor, view, end)
                end += written
                view = view[written:]
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                self.truncate()  # frees the space for other processes
                raise StoreError(
                    f"cannot write {self._path}: no space left on device",
                    hint="make room, perhaps by `kurma image gc`",
                    path=self._path,
                    errno=error.errno,
                ) from None
            reason = (error.strerror or str(error)).lower()
            raise StoreError(
                f"{self._path}: cannot be written: {reason}", path=self._path, errno=error.errno
            ) from None

    def release(self, *, keep: bool) -> None:
        if not keep or not self.size():
            os.unlink(self._path)
        os.close(self._descriptor)


def _close(source: BinaryIO) -> None:
    """Ends another thread's ``read``. Runs in a thread of its own: a plugin's ``close`` may wait for that
    ``read``."""

    def close() -> None:
        with contextlib.suppress(Exception):
            source.close()

    threading.Thread(target=close, name="kurma-close", daemon=True).start()


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
