"""Signs archives with a key of the caller's own GnuPG home, whose agent may ask for a passphrase."""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

from kurma_core.errors import TrustError, UsageError
from kurma_core.trust.gpg import feed, gpg_program, gpg_reason, private_directory


def sign_as(key: str, source: str | Iterable[bytes]) -> tuple[bytes, str]:
    """An armored detached signature, and the fingerprint of the primary key that made it, or whose sub-key did:
    the one that is trusted, and that verifying tells.

    GnuPG is run with its own configuration and agent, as the caller would.

    :param key: as ``gpg --local-user`` takes it, and fitting one key alone; a fingerprint says it best.
    :raises UsageError: it is empty. :raises TrustError: there is no such key, or several, it has expired or was
        revoked, or its passphrase was not given.
    """
    _check_key(key)
    with private_directory() as directory:
        target, status = f"{directory}/signature", f"{directory}/status"
        with open(status, "x+", errors="replace") as said:
            command = [gpg_program(), "--batch", "--status-fd", "1", "--armor", "--digest-algo", "SHA512"]
            process = subprocess.Popen(
                [*command, "--local-user", key, "--output", target, "--detach-sign", "-"],
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=subprocess.PIPE,
                env=_environment(),
            )
            try:
                with reader(source) as data:
                    feed(process, iter(lambda: data.read(1 << 18), b""))
                assert process.stderr is not None
                complaint = process.stderr.read().decode(errors="replace")
                process.wait()
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
                if process.stderr is not None:
                    process.stderr.close()
            said.seek(0)
            made = [
                line.split(" ") for line in said.read().splitlines() if line.startswith("[GNUPG:] SIG_CREATED ")
            ]
        if process.returncode or not made:
            reason = gpg_reason(complaint)
            if "Inappropriate ioctl" in reason or "No pinentry" in reason:
                reason = "it has a passphrase, and there is no terminal to ask for it at"
            raise TrustError(
                f"gpg cannot sign with the key {key}: {reason}",
                hint="see gpg --list-secret-keys; to use this machine's key, leave --key out",
                key=key,
            )
        with open(target, "rb") as file:
            return file.read(), _primary(made[-1][7])


def _check_key(key: str) -> None:
    """Whether one key alone is meant, as far as that can be told; a key that is not there is left to gpg."""
    if not key.strip():
        raise UsageError("--key names no key", hint="see gpg --list-secret-keys")
    command = [gpg_program(), "--batch", "--with-colons", "--list-secret-keys", "--", key]
    listed = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment()).stdout
    found: dict[str, str] = {}
    state = None
    for fields in (line.split(":") for line in listed.splitlines()):
        if fields[0] == "sec":
            state = fields[1]
        elif fields[0] == "fpr" and state is not None:
            found[fields[9]], state = state, None
    if len(found) > 1:
        raise TrustError(
            f"several keys fit {key}: {', '.join(found)}", hint="name one by its fingerprint", key=key
        )
    for fingerprint, letter in found.items():
        fault = {"e": "has expired", "r": "was revoked"}.get(letter)
        if fault is not None:
            raise TrustError(f"the key {fingerprint} {fault}", hint="sign with another key", key=key)


def _primary(fingerprint: str) -> str:
    """The primary key of a key of the caller's GnuPG home."""
    command = [gpg_program(), "--batch", "--with-colons", "--list-secret-keys", f"0x{fingerprint}"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment()).stdout
    found = [line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr:")]
    return found[0] if fingerprint in found else fingerprint


def _environment() -> dict[str, str]:
    """With the terminal at which the agent may ask; shells often forget it."""
    environment = dict(os.environ)
    for fd in (0, 2):
        if "GPG_TTY" not in environment and os.isatty(fd):
            environment["GPG_TTY"] = os.ttyname(fd)
    return environment


@contextmanager
def reader(source: str | Iterable[bytes]) -> Iterator[BinaryIO]:
    """A file, or bytes as they come, as something that is read."""
    if isinstance(source, str):
        with open(source, "rb") as file:
            yield file
    else:
        yield cast("BinaryIO", io.BufferedReader(_Pieces(source)))


class _Pieces(io.RawIOBase):
    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
