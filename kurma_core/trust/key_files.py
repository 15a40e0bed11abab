"""Reads public key files: their keys, when these expire, whether they were revoked.

GnuPG is the judge: what it would not import is not a key. Read in a home of its own, which ends with the reading.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kurma_core.api.images import Key
from kurma_core.errors import TrustError
from kurma_core.json_text import loads
from kurma_core.linux.files import others_may_write, replace_file
from kurma_core.trust.gpg import gpg_in, private_directory, read_key

#: Bytes of a file of keys.
LARGEST = 1 << 20


def parse_keys(data: bytes, source: str) -> tuple[Key, ...]:
    """The keys in a file, in its order.

    :raises TrustError: the file holds no key, or a secret one, or is too large.
    """
    if len(data) > LARGEST:
        raise TrustError(f"{source}: larger than a file of keys may be ({LARGEST} bytes)")
    return read_keys([data], source)


def read_keys(pieces: Iterable[bytes], source: str) -> tuple[Key, ...]:
    """:func:`parse_keys`, of what several files say together of the same keys."""
    with private_directory() as home:
        program = gpg_in(home, "--no-autostart")
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


_VERSION = 1
#: Seconds. Two writes within the clock's tick leave the same stamps: what is younger may yet change unseen.
_SETTLED = 0.1


class Revocations:
    """:param directory: made when something is first written."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def revoked(self, fingerprint: str, files: Sequence[str]) -> bool:
        """Whether the key was revoked by its owner, as those files of a keystore have it.

        :raises TrustError: one of them cannot be read, or holds no key.
        """
        begun = time.time()
        stamps = _stamps(files)
        known = self._known(fingerprint, stamps)
        if known is not None:
            return known

        found = read_keys([read_key(file) for file in files], files[0])
        revoked = any(key.fingerprint == fingerprint and key.state == "revoked" for key in found)
        self._remember(fingerprint, files, stamps, revoked, begun)
        return revoked

    def _known(self, fingerprint: str, stamps: object) -> bool | None:
        try:
            with open(f"{self._directory}/{fingerprint}", "rb") as file:
                status = os.fstat(file.fileno())
                value = loads(file.read(), own=True)
            same = value["version"] == _VERSION and value["files"] == stamps
            return bool(value["revoked"]) if same and not others_may_write(status) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None  # then GnuPG is asked

    def _remember(
        self, fingerprint: str, files: Sequence[str], stamps: object, revoked: bool, begun: float
    ) -> None:
        """Not where a file had just changed when it was read, nor where we may not write: then it is asked again
        next time."""
        newest = max(os.stat(file).st_ctime for file in files)
        if newest > begun - _SETTLED or _stamps(files) != stamps:
            return
        value = {"version": _VERSION, "files": stamps, "revoked": revoked}
        with contextlib.suppress(OSError):
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
            replace_file(f"{self._directory}/{fingerprint}", json.dumps(value).encode())


def _stamps(files: Sequence[str]) -> list[list[object]]:
    found: list[list[object]] = []
    for file in files:
        status = os.stat(file)
        found.append([file, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns])
    return found
