"""Public keys as they come, in files that may hold several, and what they say of themselves.

GnuPG is the judge: what it would not import is no key. Read in a home of its own, which ends with the reading.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from kurma_core.api.images import Key
from kurma_core.errors import TrustError
from kurma_core.trust import openpgp

#: Bytes of a file of keys.
LARGEST = 1 << 20


def parse(data: bytes, source: str) -> tuple[Key, ...]:
    """The keys in a file, in its order.

    :raises TrustError: there is none, it holds a secret one, or it is too large.
    """
    if len(data) > LARGEST:
        raise TrustError(f"{source}: larger than a file of keys may be ({LARGEST} bytes)")
    return read([data], source)


def read(pieces: Iterable[bytes], source: str) -> tuple[Key, ...]:
    """:func:`parse`, of what several files say together of the same keys."""
    with openpgp.private_directory() as home:
        program = openpgp.gpg(home, "--no-autostart")
        order: list[str] = []
        for data in pieces:
            result: Any = program.import_keys(data)
            if int(result.sec_read or 0):
                raise TrustError(
                    f"{source}: holds a secret key, which must not leave its owner",
                    hint="export the public half: gpg --armor --export FINGERPRINT",
                )
            order += [one for one in result.fingerprints if one and one not in order]
        if not order:
            raise TrustError(
                f"{source}: holds no OpenPGP public key", hint="made by: gpg --armor --export FINGERPRINT"
            )
        listed = {one["fingerprint"]: one for one in program.list_keys()}
        return tuple(
            _key(listed[one], program.export_keys(one, minimal=True).encode(), source)
            for one in order
            if one in listed
        )


def _key(listed: Mapping[str, Any], material: bytes, source: str) -> Key:
    expires = _time(listed["expires"])
    state = {"r": "revoked", "e": "expired"}.get(listed["trust"], "valid")
    if state == "valid" and "S" not in listed["cap"]:
        state = "unusable"
    return Key(
        fingerprint=listed["fingerprint"],
        users=tuple(listed["uids"]),
        created=_time(listed["date"]) or "",
        expires=expires,
        state=state,
        material=material,
        source=source,
    )


def _time(seconds: str) -> str | None:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(seconds))) if seconds.isdigit() else None
