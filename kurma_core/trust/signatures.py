"""Signs with a key of the caller's GnuPG home, and verifies detached OpenPGP signatures against the keys given.

The result of GnuPG is read from its status lines, never from its messages or its exit code.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kurma_core.cancellation import current
from kurma_core.errors import TrustError, UsageError
from kurma_core.trust.gpg import GpgProcess, gpg_in, gpg_program, private_directory, read_key, running_gpg


def sign_as(key: str, source: str | Iterable[bytes]) -> tuple[bytes, str]:
    """Makes an armored detached signature with GnuPG, with the caller's own configuration and agent.

    :param key: as for ``gpg --local-user``; it must match one key only, as a fingerprint does.
    :returns: the signature, and the fingerprint of the primary key to which the signing key belongs, as from
        :func:`verify`.
    :raises UsageError: ``key`` is empty.
    :raises TrustError: there is no such key, or several, it has expired or was revoked, or its passphrase was not
        given.
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
    """Makes an armored signature over a file, or over a stream of bytes.

    :param directory: private. :param home: :param environment: see :func:`.gpg.running_gpg`.
    :returns: the signature, None if gpg has failed; and the ended gpg.
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
    """Checks that the text matches one usable key at most. gpg itself reports a missing key."""
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
    """The environment with ``GPG_TTY``, the terminal at which gpg-agent may ask; shells often do not set it."""
    environment = dict(os.environ)
    for fd in (0, 2):
        if "GPG_TTY" not in environment and os.isatty(fd):
            environment["GPG_TTY"] = os.ttyname(fd)
    return environment


if TYPE_CHECKING:
    pass

_LARGEST_SIGNATURE = 1 << 16
_DETACHED = "a detached signature is wanted, as is made by: gpg --armor --detach-sign FILE"
# OpenPGP's numbers of MD5, SHA-1 and RIPEMD-160: documents with a given sum of these can be made.
_WEAK = {"1": "MD5", "2": "SHA-1", "3": "RIPEMD-160"}
_REASONS = {
    "EXPSIG": ("expired", "the signature has expired"),
    "EXPKEYSIG": ("expired", "the signer's key has expired"),
    "REVKEYSIG": ("revoked", "the signer's key was revoked"),
    "BADSIG": ("bad", "the signature does not fit: the file or the signature was changed"),
}
_NO_PUBLIC_KEY = "9"
_HINTS = {
    "unknown": "if you trust that key: kurma trust add --prefix {name} [KEYFILE]",
    "expired": "if its owner has renewed the key: kurma trust add --prefix {name} KEYFILE",
    "revoked": "ask for an image that is signed by another key of its owner",
    "weak": "ask for a signature over a SHA-256 or SHA-512 sum",
    "bad": "get both anew; distrust the source if it stays so",
}


def verify(
    source: str | Iterable[bytes],
    signature: bytes | None,
    keys: Mapping[str, Sequence[str]],
    *,
    what: str,
    name: str | None = None,
) -> str:
    """See :meth:`kurma_core.trust.Trust.verify`."""
    if signature is None:
        raise TrustError(f"{what}: there is no signature", reason="unsigned")
    if len(signature) > _LARGEST_SIGNATURE:
        raise TrustError(f"{what}: the signature is too large", hint=_DETACHED, reason="malformed")
    if not signature.strip():
        raise TrustError(f"{what}: the signature is empty", hint=_DETACHED, reason="malformed")
    with private_directory() as home:
        program = gpg_in(home, "--no-autostart")
        for material in _material(file for files in keys.values() for file in files):
            program.import_keys(material)
        said = _signatures(_checked(home, signature, source))
    return _judge(said, keys, what, name)


def _checked(home: str, signature: bytes, source: str | Iterable[bytes]) -> list[list[str]]:
    """GnuPG's status lines on a detached signature. python-gnupg would take what is signed, which may be a stream
    as large as an image, only as a file or as one piece of memory."""
    with open(f"{home}/signature", "xb") as file:
        file.write(signature)
    with contextlib.ExitStack() as stack:
        data = stack.enter_context(open(source, "rb")) if isinstance(source, str) else subprocess.PIPE
        gpg = stack.enter_context(running_gpg(home, ("--verify", f"{home}/signature", "-"), stdin=data))
        if not isinstance(source, str):
            with current().waking(gpg.process.kill):
                gpg.feed(source)  # gpg stops reading if the signature is malformed
        gpg.wait()
        return gpg.statuses()


def _material(files: Iterable[str]) -> list[bytes]:
    """The keys to be imported; armored keys, the usual case, in one piece."""
    read = [read_key(file) for file in files]
    binary = [key for key in read if key[:1] >= b"\x80"]  # the first bit of every packet is set
    armored = b"\n".join(key for key in read if key[:1] < b"\x80")
    return [*binary, armored] if armored else binary


@dataclass(slots=True)
class _Signature:
    """GnuPG's statement on one signature.

    :param verdict: the status word; "" if there is none.
    :param signer: fingerprint of the primary key, or what the signature tells of the key: a fingerprint or key ID.
    :param digest: number of the algorithm. :param document: it is over the bytes as they are.
    """

    verdict: str = ""
    signer: str = ""
    digest: str = ""
    document: bool = True
    code: str = ""


def _signatures(statuses: list[list[str]]) -> list[_Signature]:
    """GnuPG's statements, one for each signature in the file."""
    found: list[_Signature] = []
    for word, *fields in statuses:
        if word == "NEWSIG":
            found.append(_Signature())
        if not found:
            continue
        one = found[-1]
        if word in ("GOODSIG", *_REASONS):
            one.verdict = word
            one.signer = one.signer or fields[0]
        elif word == "VALIDSIG" and len(fields) >= 10:
            one.signer, one.digest, one.document = fields[9], fields[7], fields[8] == "00"
        elif word == "ERRSIG" and len(fields) >= 6:
            one.verdict, one.digest, one.code = word, fields[2], fields[5]
            told = fields[6] if len(fields) > 6 and len(fields[6]) > 16 else ""
            one.signer = told or fields[0]
    return found


def _judge(said: list[_Signature], keys: Collection[str], what: str, name: str | None) -> str:
    """The signer, if one signature of the file is good; else the fault of the first."""
    faults = []
    for one in said:
        fault = _fault(one, keys)
        if fault is None:
            return one.signer
        faults.append((one, fault))
    if not faults:
        raise TrustError(f"{what}: this is not an OpenPGP signature", hint=_DETACHED, reason="malformed")
    one, (reason, text) = faults[0]
    signer = f" (key {one.signer})" if one.signer else ""
    hint = _HINTS.get(reason)
    raise TrustError(
        f"{what}: {text}{signer}",
        hint=hint and hint.format(name=name or "NAME"),
        reason=reason,
        fingerprint=one.signer,
    )


def _fault(one: _Signature, keys: Collection[str]) -> tuple[str, str] | None:
    if one.verdict in _REASONS:
        return _REASONS[one.verdict]
    if one.verdict == "ERRSIG" and one.code == _NO_PUBLIC_KEY:
        return "unknown", "signed by a key that is not trusted for it"
    if one.digest in _WEAK:
        return "weak", f"the signature is over a {_WEAK[one.digest]} sum, which is too weak"
    if one.verdict != "GOODSIG":
        return "malformed", "the signature cannot be checked: it is of a kind that gpg does not know, or broken"
    if not one.document:
        return (
            "malformed",
            "the signature is over text, whose line ends may be changed; an image needs one over bytes",
        )
    if one.signer not in keys:
        # A key file may hold more keys than its name says.
        return "unknown", "signed by a key that is not trusted for it"
    return None
