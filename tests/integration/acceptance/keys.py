"""OpenPGP keys of other people."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


class Key:
    """A key that can sign, in a home of its own."""

    def __init__(self, home: Path) -> None:
        home.mkdir(mode=0o700)
        self._home = str(home)
        self._gpg("--quick-gen-key", "somebody <s@example.com>", "ed25519", "sign", "never")
        listing = self._gpg("--with-colons", "--list-keys").splitlines()
        self.fingerprint = next(line.split(":")[9] for line in listing if line.startswith("fpr:"))

    def public(self) -> str:
        return self._gpg("--armor", "--export", self.fingerprint)

    def sign(self, image: str) -> None:
        """Writes the signature beside it."""
        self._gpg("--armor", "--output", f"{image}.asc", "--detach-sign", image)

    def close(self) -> None:
        subprocess.run(["gpgconf", "--homedir", self._home, "--kill", "all"], check=True, capture_output=True)
        shutil.rmtree(self._home)

    def _gpg(self, *words: str) -> str:
        command = ["gpg", "--homedir", self._home, "--batch", "--pinentry-mode", "loopback", "--passphrase", ""]
        return subprocess.run([*command, *words], check=True, capture_output=True, text=True).stdout
