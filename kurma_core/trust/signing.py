"""Signs archives with a key of the caller's own GnuPG home, whose agent may ask for a passphrase."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence

from kurma_core.errors import TrustError, UsageError
from kurma_core.trust.gpg import GpgProcess, gpg_program, private_directory, running_gpg


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
        made, gpg = detached_signature(directory, key, source, environment=_environment())
        signers = [fields[5] for word, *fields in gpg.statuses() if word == "SIG_CREATED"]
        if made is None or not signers:
            reason = gpg.reason()
            if "Inappropriate ioctl" in reason or "No pinentry" in reason:
                reason = "it has a passphrase, and there is no terminal to ask for it at"
            raise TrustError(
                f"gpg cannot sign with the key {key}: {reason}",
                hint="see gpg --list-secret-keys; to use this machine's key, leave --key out",
                key=key,
            )
    return made, _primary(signers[-1])


def detached_signature(
    directory: str,
    key: str,
    source: str | Iterable[bytes],
    *,
    home: Sequence[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> tuple[bytes | None, GpgProcess]:
    """An armored signature over a file, or over bytes as they come; None: gpg made none. And the gpg that ended.

    :param directory: private. :param home: :param environment: see :func:`.gpg.running_gpg`.
    """
    target = f"{directory}/signature"
    arguments = ("--armor", "--digest-algo=SHA512", "--local-user", key, "--output", target, "--detach-sign", "-")
    with contextlib.ExitStack() as stack:
        data = stack.enter_context(open(source, "rb")) if isinstance(source, str) else subprocess.PIPE
        gpg = stack.enter_context(
            running_gpg(directory, arguments, home=home, stdin=data, environment=environment)
        )
        if not isinstance(source, str):
            gpg.feed(source)
        if gpg.wait() or not os.path.exists(target):
            return None, gpg
    with open(target, "rb") as file:
        return file.read(), gpg


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
