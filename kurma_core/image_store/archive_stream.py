"""Reads an archive as a stream, once: keeps it as shipped, and decompresses and hashes it in a thread.

The caller's stream is read in the caller's thread, so that an interrupt or a slow network affects that thread.
Writing to disk, decompressing and hashing release the interpreter's lock, and are done in the other thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from queue import Empty, Queue, SimpleQueue
from threading import Thread

from kurma_core.cancellation import check
from kurma_core.errors import ArchiveError, HostileArchiveError
from kurma_core.image_store.compression import decoder, detect
from kurma_core.image_store.tar_entries import Limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import BinaryIO

    #: Decrypts: turns the pieces of an encrypted message into the pieces of its plaintext, or raises.
    Plain = Callable[[Iterator[bytes]], Generator[bytes]]
    #: Takes the first bytes of the message; called in the caller's thread, so that the user can be asked there.
    Decrypt = Callable[[bytes], Plain]

#: Bytes read from the caller's stream at a time.
_READ = 1 << 18
#: Pieces read ahead, and unpacked ahead.
_AHEAD = 4
#: Bytes of an encrypted message that are read before it is opened: enough to detect a wrong passphrase.
_ENOUGH = 1 << 18
#: Marker among the unpacked pieces, none of which is empty: all input so far has been used up.
_HUNGRY = b""


class ArchiveStream:
    """The uncompressed bytes of an archive, in order. Used as a context manager: leaving it ends the thread.

    :param stream: the archive as shipped; read to its end, not closed.
    :param algorithm: of the digest over the uncompressed bytes, trailing padding included.
    :param early: SHA-256 over the same bytes as well: what early documents call the image by.
    :param tee: called in another thread with every piece as shipped.
    :param decrypt: opens an OpenPGP message; without it, one is refused.
    :param tee_decrypted: called with every piece of what such a message holds.
    """

    def __init__(
        self,
        stream: BinaryIO,
        limits: Limits,
        *,
        algorithm: str = "sha512",
        early: bool = False,
        tee: Callable[[bytes], object] | None = None,
        decrypt: Decrypt | None = None,
        tee_decrypted: Callable[[bytes], object] | None = None,
    ) -> None:
        import hashlib

        self._stream = stream
        self._limits = limits
        self._tee = tee
        self._decrypt = decrypt
        self._tee_decrypted = tee_decrypted
        self._plain: Plain | None = None
        self._hash = hashlib.new(algorithm)
        self._early = hashlib.sha256() if early else None
        self._raw: SimpleQueue[bytes | None] = SimpleQueue()
        self._out: Queue[bytes | None] = Queue(_AHEAD)
        self._fed = 0
        self._taken = 0
        self._read_all = False
        self._ended = False
        self._stop = False
        self._error: BaseException | None = None
        self._piece: bytes = b""
        self._at = 0
        self._thread: Thread | None = None
        #: Bytes as shipped, decrypted and unpacked, so far.
        self.packed = 0
        self.decrypted = 0
        self.size = 0

    def __enter__(self) -> ArchiveStream:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop = True
        self._raw.put(None)
        if self._thread is not None:
            while not self._ended:
                self._ended = self._out.get() is None
            self._thread.join()

    def digest(self) -> str:
        """Hexadecimal digest over everything; right once :meth:`finish` has returned."""
        return self._hash.hexdigest()

    def early_digest(self) -> str:
        """The SHA-256 that ``early`` requested; valid when :meth:`digest` is."""
        assert self._early is not None
        return self._early.hexdigest()

    # --- reading -------------------------------------------------------------------------------------------------

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes; fewer only at the end of the stream."""
        at = self._at
        end = at + count
        if end <= len(self._piece):
            self._at = end
            return self._piece[at:end]
        return b"".join(self.pieces(count))

    def pieces(self, count: int) -> Iterator[memoryview]:
        """The next ``count`` bytes in pieces; fewer only at the end of the stream."""
        while count > 0:
            if self._at == len(self._piece) and not self._next():
                return
            piece = memoryview(self._piece)[self._at : self._at + count]
            self._at += len(piece)
            count -= len(piece)
            yield piece

    def finish(self, check: Callable[[memoryview], object] | None = None) -> None:
        """Reads the rest of the stream to its end, so that the digest covers it.

        :param check: called with each further piece.
        """
        while self._at < len(self._piece) or self._next():
            if check is not None:
                check(memoryview(self._piece)[self._at :])
            self._at = len(self._piece)

    def _next(self) -> bool:
        """Gets one more piece; False at the end. :raises Cancelled: the operation was cancelled."""
        check()
        if self._ended:
            return False
        if self._thread is None:
            self._begin()
            thread = Thread(target=self._work, name="kurma-archive", daemon=True)
            thread.start()
            self._thread = thread  # set once it runs, so that it is joined at the end
        if not self._read_all and self._fed - self._taken < _AHEAD:
            self._feed()
        piece: bytes | None = _HUNGRY
        while piece == _HUNGRY:
            try:
                piece = self._out.get_nowait()
            except Empty:
                if self._read_all or self._fed - self._taken >= _AHEAD:
                    piece = self._out.get()
                else:
                    self._feed()
        if piece is None:
            self._ended = True
            self._piece, self._at = b"", 0
            if self._error is not None:
                raise self._error
            return False
        self._piece, self._at = piece, 0
        return True

    def _begin(self) -> None:
        """Reads enough bytes to detect the format; opens an encrypted archive."""
        head = self._read()
        while 0 < len(head) < 512 and (raw := self._read()):
            head += raw
        if self._decrypt is not None and detect(head[:512]) == "openpgp":
            while len(head) < _ENOUGH and (raw := self._read()):
                head += raw
            self._plain = self._decrypt(head)
        self._put(head)

    def _feed(self) -> None:
        self._put(self._read())

    def _read(self) -> bytes:
        try:
            return self._stream.read(_READ)
        except OSError as error:
            raise ArchiveError(f"cannot read the archive: {error.strerror or error}", errno=error.errno) from error

    def _put(self, raw: bytes) -> None:
        self._read_all = not raw
        self._fed += 1
        self._raw.put(raw or None)

    # --- the other thread ----------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            if self._plain is None:
                self._unpack(self._shipped())
            else:
                # Closed here in any case: the decrypting generator has a thread of its own that reads ahead.
                with closing(self._plain(self._shipped())) as plain:
                    self._unpack(self._kept(plain))
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread, which raises it
            self._error = error
        finally:
            self._out.put(None)

    def _unpack(self, source: Iterator[bytes]) -> None:
        head = b""
        for piece in source:
            head += piece
            if len(head) >= 512:
                break
        if not head:
            raise ArchiveError("not an image archive: it is empty")
        kind = detect(head[:512])
        if kind == "openpgp" and self._plain is not None:
            raise ArchiveError("not an image archive: what is encrypted in it is encrypted once more")
        for piece in decoder(kind, _chain(head, source)):
            self._hash.update(piece)
            if self._early is not None:
                self._early.update(piece)
            self.size += len(piece)
            self._judge(self.size, "unpacks")
            self._out.put(piece)
            if self._stop:
                return

    def _kept(self, plain: Iterator[bytes]) -> Iterator[bytes]:
        """The decrypted pieces, counted: gpg may already decompress a bomb."""
        for piece in plain:
            self.decrypted += len(piece)
            self._judge(self.decrypted, "decrypts")
            if self._tee_decrypted is not None:
                self._tee_decrypted(piece)
            yield piece

    def _shipped(self) -> Iterator[bytes]:
        while True:
            if self._raw.empty():
                # Megabytes may decompress to nothing (padding, a skipped frame, empty members): the reader waits
                # for a piece, and must be told to read more input.
                self._out.put(_HUNGRY)
            raw = self._raw.get()
            self._taken += 1
            if raw is None or self._stop:
                return
            self.packed += len(raw)
            if self.packed > self._limits.total_size:
                # Endless padding unpacks to nothing, but is stored.
                raise HostileArchiveError(
                    f"the archive is larger than {self._limits.total_size} bytes as shipped",
                    hint="raise limits.total_size in kurma.yml if the image is trusted",
                    entry=None,
                    limit="total_size",
                )
            if self._tee is not None:
                self._tee(raw)
            yield raw

    def _judge(self, size: int, how: str) -> None:
        limits = self._limits
        if size > limits.total_size:
            raise HostileArchiveError(
                f"the archive {how} to more than {limits.total_size} bytes",
                hint="raise limits.total_size in kurma.yml if the image is trusted",
                entry=None,
                limit="total_size",
            )
        if size > limits.ratio_from and size > limits.ratio * self.packed:
            raise HostileArchiveError(
                f"the archive {how} to more than {limits.ratio:g} times its size",
                hint="raise limits.ratio in kurma.yml if the image is trusted",
                entry=None,
                limit="ratio",
            )


def _chain(head: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield head
    yield from rest
