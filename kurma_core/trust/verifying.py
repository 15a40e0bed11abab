"""Verifies detached OpenPGP signatures with GnuPG, in a home that holds just the keys that count.

What GnuPG says is read from its status lines, never from its messages or its exit code.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kurma_core.cancellation import current
from kurma_core.errors import TrustError
from kurma_core.trust.gpg import gpg_in, private_directory, read_key, running_gpg

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
        raise TrustError(f"{what}: the signature is none that OpenPGP knows", hint=_DETACHED, reason="malformed")
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
