"""Encrypts and decrypts archives with a passphrase, by GnuPG, as a stream.

The passphrase goes to gpg through a pipe of its own, and nowhere else: into no argument, no variable, no file. No
agent takes part. What gpg says is read from its status lines, never from its messages.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Thread
from typing import IO, BinaryIO, Protocol, cast

from kurma_core.errors import DecryptionError, HostError, UsageError
from kurma_core.trust.gpg import GpgProcess, close_pipe, private_directory, running_gpg

_READ = 1 << 20
_LONGEST_PASSPHRASE = 1024
#: OpenPGP's numbers of AES with 128, 192 and 256 bits.
_AES = ("7", "8", "9")
_PUBLIC_KEY, _PASSPHRASE = 1, 3
_ENCRYPTED = (9, 18, 20)
_SIGNED = ("NEWSIG", "GOODSIG", "BADSIG", "ERRSIG", "EXPSIG", "EXPKEYSIG", "REVKEYSIG")
_HOW = "an image is encrypted by: gpg --cipher-algo AES256 --symmetric FILE"
_WAYS = "give it by --passphrase-file FILE, in KURMA_PASSPHRASE, or at a terminal"

#: Turns the pieces of a message into those of its content.
Plain = Callable[[Iterator[bytes]], Generator[bytes]]


class Passphrases(Protocol):
    """Where passphrases come from."""

    @property
    def attempts(self) -> int:
        """How often it is worth asking: more than once where a person answers."""
        ...

    def get(self, what: str, *, wrong: bool) -> bytes | None:
        """The passphrase of the archive called ``what``; None: the user gives none.

        :param wrong: the last one did not fit.
        """
        ...


def opened(head: bytes, passphrases: Passphrases, what: str) -> Plain:
    """Get the passphrase of the message that starts with ``head``; a person who mistypes it is asked again.

    :param head: some 100 KB, or all of it.
    :param what: what to call it when a passphrase is asked for.
    :returns: what decrypts it. Its content counts only once that has come to its end: it raises
        :exc:`.DecryptionError` where the message was changed on its way.
    :raises DecryptionError: it is not encrypted with a passphrase, or there is no passphrase, or a wrong one.
    :raises HostError: gpg is not installed.
    """
    _check_kind(head)
    for attempt in range(passphrases.attempts):
        passphrase = passphrases.get(what, wrong=attempt > 0)
        if passphrase is None:
            raise DecryptionError(
                "the archive is encrypted, and there is no passphrase for it", hint=_WAYS, reason="passphrase"
            )
        if passphrases.attempts == 1 or _fits(head, passphrase):
            return _Decryption(checked(passphrase))
    raise _wrong()


def checked(passphrase: bytes) -> bytes:
    """:raises UsageError: gpg would not take it, or not all of it."""
    if not passphrase:
        raise UsageError("the passphrase is empty")
    if len(passphrase) > _LONGEST_PASSPHRASE or b"\0" in passphrase or b"\n" in passphrase:
        raise UsageError(f"a passphrase is one line of at most {_LONGEST_PASSPHRASE} bytes")
    return passphrase


@contextmanager
def encrypting(out: BinaryIO, passphrase: bytes) -> Iterator[BinaryIO]:
    """A file: what is written to it arrives in ``out``, encrypted with AES-256.

    :raises UsageError: the passphrase is empty, too long, or has more than one line.
    :raises HostError: gpg is not installed, or fails.
    """
    out.flush()
    options = (
        "--cipher-algo=AES256",
        "--s2k-cipher-algo=AES256",
        "--s2k-digest-algo=SHA512",
        "--s2k-count=65011712",
        "--compress-algo=none",
        "--symmetric",
    )
    with _gpg(options, checked(passphrase), stdout=out.fileno()) as gpg:
        with suppress(BrokenPipeError):  # gpg says why
            yield cast("BinaryIO", gpg.stdin)
            gpg.stdin.close()
        if gpg.process.wait() != 0 or "END_ENCRYPTION" not in gpg.words():
            raise HostError(f"gpg cannot encrypt the archive: {gpg.reason()}")


# --- decrypting --------------------------------------------------------------------------------------------------


def _check_kind(head: bytes) -> None:
    """By the first packet, before the user is asked: checks that a passphrase can open the message."""
    packet = _first_packet(head)
    if packet == _PUBLIC_KEY:
        raise DecryptionError(
            "the archive is encrypted to somebody's public key, and only a passphrase can open an image",
            hint=_HOW,
            reason="kind",
        )
    if packet in _ENCRYPTED:
        raise DecryptionError(
            "the archive is encrypted in a way that is too old or of another kind", hint=_HOW, reason="kind"
        )
    if packet not in (_PASSPHRASE, None):
        raise DecryptionError(
            "the archive is an OpenPGP message that is not encrypted",
            hint="a signature belongs beside the archive, not around it (gpg --detach-sign)",
            reason="kind",
        )


def _first_packet(head: bytes) -> int | None:
    """The tag of a message's first packet; None: it cannot be told."""
    import base64

    if head.startswith(b"-----BEGIN"):
        lines = head[:4096].splitlines()
        blank = next((number for number, line in enumerate(lines) if not line.strip()), len(lines))
        try:
            head = base64.b64decode(lines[blank + 1][:4], validate=True)
        except (IndexError, ValueError):
            return None
    if not head or not head[0] & 0x80:
        return None
    return head[0] & 0x3F if head[0] & 0x40 else (head[0] >> 2) & 0x0F


def _fits(head: bytes, passphrase: bytes) -> bool:
    """Whether the beginning of the message opens, as far as that can be told."""
    with _gpg(("--decrypt",), checked(passphrase), stdout=subprocess.DEVNULL) as gpg:
        gpg.feed([head])
        gpg.wait()
        return not _is_wrong(gpg.words())


def _is_wrong(words: Sequence[str]) -> bool:
    return "NEED_PASSPHRASE_SYM" in words and "DECRYPTION_FAILED" in words and "PLAINTEXT" not in words


def _wrong() -> DecryptionError:
    return DecryptionError("the archive is encrypted, and the passphrase is wrong", hint=_WAYS, reason="wrong")


class _Decryption:
    """Decrypts one message with that passphrase."""

    def __init__(self, passphrase: bytes) -> None:
        self._passphrase = passphrase

    def __call__(self, source: Iterator[bytes]) -> Generator[bytes]:
        with _gpg(("--decrypt",), self._passphrase, stdout=subprocess.PIPE) as gpg:
            feeder = _Feeder(source, gpg)
            try:
                output = cast("IO[bytes]", gpg.process.stdout).fileno()
                while piece := os.read(output, _READ):
                    yield piece
                gpg.process.wait()
            finally:
                gpg.process.kill()
                feeder.join()
            if feeder.error is not None:
                raise feeder.error
            self._judge(gpg, whole=feeder.whole)

    def _judge(self, gpg: GpgProcess, *, whole: bool) -> None:
        """:param whole: gpg took all of the message."""
        words = gpg.words()
        if any(word in _SIGNED for word in words):
            raise DecryptionError(
                "the archive is signed and encrypted in one",
                hint="an image's signature is a file beside it: gpg --armor --detach-sign FILE",
                reason="kind",
            )
        if _is_wrong(words):
            raise _wrong()
        intact = (
            gpg.process.returncode == 0
            and whole
            and all(words.count(word) == 1 for word in ("PLAINTEXT", "DECRYPTION_OKAY", "GOODMDC"))
            and not any(word in words for word in ("BADMDC", "DECRYPTION_FAILED", "NODATA"))
        )
        if not intact:
            raise DecryptionError(
                "the archive is damaged: what is encrypted in it was changed or cut short; gpg ended with "
                f"{gpg.process.returncode}: {gpg.reason()}",
                hint="fetch it anew",
                reason="damaged",
            )
        cipher = next((fields[1] for word, *fields in gpg.statuses() if word == "DECRYPTION_INFO"), "")
        if cipher not in _AES:
            raise DecryptionError("the archive is not encrypted with AES", hint=_HOW, reason="kind")


class _Feeder:
    """Hands the message to gpg, in a thread: gpg gives as it takes.

    :ivar error: what came in place of the message's end. :ivar whole: gpg took all of it.
    """

    def __init__(self, source: Iterator[bytes], gpg: GpgProcess) -> None:
        self.error: BaseException | None = None
        self.whole = False
        self._source = source
        self._gpg = gpg
        self._thread = Thread(target=self._work, name="kurma-decrypt", daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def _work(self) -> None:
        try:
            self.whole = self._gpg.feed(self._source)
        except BaseException as error:  # noqa: BLE001 - raised by the reader
            self.error = error
        finally:
            close_pipe(self._gpg.stdin)


@contextmanager
def _gpg(options: Sequence[str], passphrase: bytes, *, stdout: int) -> Iterator[GpgProcess]:
    """A running gpg in a home of its own, of which nothing is left."""
    with private_directory() as home, running_gpg(home, options, stdout=stdout, passphrase=passphrase) as gpg:
        yield gpg
