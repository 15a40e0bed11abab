"""Verifying with GnuPG, in a home that holds just the keys that count.

What GnuPG says is read from its status lines, never from its messages or its exit code.
"""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kurma_core.errors import HostError, TrustError

if TYPE_CHECKING:
    import gnupg

#: No configuration of the system's, no network, no web of trust: the keys given count.
_OPTIONS = (
    "--no-options",
    "--disable-dirmngr",
    "--no-auto-key-retrieve",
    "--no-auto-key-locate",
    "--trust-model=always",
    "--no-auto-check-trustdb",
)
_LARGEST_KEY = 1 << 20
_LARGEST_SIGNATURE = 1 << 16
# Names of an agent's socket must fit 107 bytes.
_LONGEST_HOME = 60
# OpenPGP's numbers of MD5, SHA-1 and RIPEMD-160: documents with a given sum of these can be made.
_WEAK = {"1": "MD5", "2": "SHA-1", "3": "RIPEMD-160"}
_REASONS = {
    "EXPSIG": ("expired", "the signature has expired"),
    "EXPKEYSIG": ("expired", "the signer's key has expired"),
    "REVKEYSIG": ("revoked", "the signer's key was revoked"),
    "BADSIG": ("bad", "the signature does not fit: the file or the signature was changed"),
}
_NO_PUBLIC_KEY = "9"


@contextmanager
def private_directory() -> Iterator[str]:
    """A directory for us alone (0700) with a short path, removed afterwards."""
    place = tempfile.gettempdir()
    if len(place) > _LONGEST_HOME - 20:
        place = "/tmp"  # noqa: S108 (mkdtemp makes a name of its own there, 0700)
    directory = tempfile.mkdtemp(prefix="kurma-gpg-", dir=place)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)  # sockets may vanish under our hands


def gpg(home: str, *options: str) -> gnupg.GPG:
    """GnuPG in that home. :raises HostError: it is not installed."""
    import gnupg

    binary = shutil.which("gpg")
    if binary is None:
        raise HostError("gpg is not installed", hint="apt-get install gnupg")
    return gnupg.GPG(gpgbinary=binary, gnupghome=home, options=[*_OPTIONS, *options])


def verify(path: str, signature: bytes | None, keys: Mapping[str, str], *, what: str | None = None) -> str:
    """See :meth:`kurma_core.trust.Trust.verify`."""
    what = what or path
    if signature is None:
        raise TrustError(f"{what}: there is no signature", reason="unsigned", path=path)
    if len(signature) > _LARGEST_SIGNATURE:
        raise TrustError(f"{what}: the signature is too large", reason="malformed", path=path)
    with private_directory() as home:
        program = gpg(home, "--no-autostart")
        for material in _material(keys.values()):
            program.import_keys(material)
        result = program.verify_file(io.BytesIO(signature), os.path.abspath(path))
        said = _statuses(str(result.stderr))
    return _judge(said, keys, what, path)


def _material(files: Iterable[str]) -> list[bytes]:
    """What is to be imported; armored keys, the usual case, at one go."""
    read = [_read(file) for file in files]
    binary = [key for key in read if key[:1] >= b"\x80"]  # the first bit of every packet is set
    armored = b"\n".join(key for key in read if key[:1] < b"\x80")
    return [*binary, armored] if armored else binary


def _read(file: str) -> bytes:
    try:
        with open(file, "rb") as source:
            return source.read(_LARGEST_KEY)
    except OSError as error:
        raise TrustError(f"cannot read the key {file}: {error.strerror}", path=file) from error


@dataclass(slots=True)
class _Signature:
    """What is said of one signature.

    :param verdict: the status word; "" if there is none.
    :param signer: fingerprint of the primary key, or what the signature tells of the key: a fingerprint or key ID.
    :param digest: number of the algorithm. :param document: it is over the bytes as they are.
    """

    verdict: str = ""
    signer: str = ""
    digest: str = ""
    document: bool = True
    code: str = ""


def _statuses(output: str) -> list[_Signature]:
    """One for each signature in the file."""
    found: list[_Signature] = []
    for line in output.splitlines():
        prefix, _, rest = line.partition("[GNUPG:] ")
        if prefix or not rest:
            continue
        word, *fields = rest.split(" ")
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


def _judge(said: list[_Signature], keys: Mapping[str, str], what: str, path: str) -> str:
    """The signer, if one signature of the file is good; else the fault of the first."""
    faults = []
    for one in said:
        fault = _fault(one, keys)
        if fault is None:
            return one.signer
        faults.append((one, fault))
    if not faults:
        raise TrustError(f"{what}: the signature is none that OpenPGP knows", reason="malformed", path=path)
    one, (reason, text) = faults[0]
    hint = (
        "if you trust it for this image, put its public key into trustedkeys/prefix.d/NAME/FINGERPRINT"
        if reason == "unknown"
        else None
    )
    signer = f" (key {one.signer})" if one.signer else ""
    raise TrustError(f"{what}: {text}{signer}", hint=hint, reason=reason, fingerprint=one.signer, path=path)


def _fault(one: _Signature, keys: Mapping[str, str]) -> tuple[str, str] | None:
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
