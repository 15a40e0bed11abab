"""What GnuPG said of a key file, kept while the file is the same: asking it takes longer than a pod's start.

One small file per key; it only saves work."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Sequence

from kurma_core.json_text import loads
from kurma_core.linux.files import others_may_write, replace_file

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
        from kurma_core.trust import keyfile, openpgp

        found = keyfile.read([openpgp.read_key(file) for file in files], files[0])
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
