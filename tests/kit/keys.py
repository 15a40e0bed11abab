"""People who sign: real keys in a GnuPG home of their own."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kurma_core.trust.machine_key import _end_agent

LONG_AGO = ("--faked-system-time", "20200101T000000!")


class Signers:
    """A GnuPG home with keys by name."""

    def __init__(self, home: str) -> None:
        self.home = home
        self.fingerprints: dict[str, str] = {}
        #: Revokes the key ``revoked``, once it is merged.
        self.revocation = b""

    def gpg(self, *arguments: str, stdin: bytes = b"", batch: bool = True) -> bytes:
        """:param batch: False: its questions are answered by ``stdin`` (``--command-fd 0``)."""
        start = ["gpg", *(["--batch"] if batch else []), "--no-tty", "--quiet", "--homedir", self.home]
        command = [*start, "--passphrase", "", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    def make(self, name: str, *options: str, expires: str = "never") -> str:
        self.gpg(*options, "--quick-generate-key", f"{name} <{name}@example.com>", "ed25519", "sign", expires)
        listing = self.gpg("--with-colons", "--list-keys", f"{name}@example.com").decode()
        fingerprint = next(line.split(":")[9] for line in listing.splitlines() if line.startswith("fpr:"))
        self.fingerprints[name] = fingerprint
        return fingerprint

    def public(self, *names: str, armor: bool = True) -> bytes:
        return self.gpg(*(["--armor"] if armor else []), "--export", *(self.fingerprints[name] for name in names))

    def sign(self, path: Path, name: str, *options: str, armor: bool = True) -> bytes:
        """Detached, unless the options end with another way."""
        how = [] if any(one.startswith("--clear") or one == "--sign" for one in options) else ["--detach-sign"]
        key = name if name.endswith("!") else self.fingerprints[name]
        start = ["--armor"] if armor else []
        return self.gpg(*start, "--local-user", key, *options, *how, "--output", "-", str(path))

    def sign_beside(self, path: str | Path, name: str) -> None:
        """Writes the signature to ``PATH.asc``."""
        Path(f"{path}.asc").write_bytes(self.sign(Path(path), name))

    def put(self, name: str, keystore: Path, place: str) -> Path:
        """Writes a public key into a keystore, and returns its file, whose name is the fingerprint.

        :param place: the directory that says what the key may sign: ``root.d``, ``host.d``, ``prefix.d/NAME``.
        """
        file = keystore / place / self.fingerprints[name]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(self.public(name))
        return file

    def revocation_of(self, name: str) -> bytes:
        """The certificate that GnuPG made along with the key."""
        file = Path(self.home, "openpgp-revocs.d", self.fingerprints[name] + ".rev")
        return file.read_text().replace(":-----BEGIN", "-----BEGIN").encode()


@contextmanager
def gnupg_home() -> Iterator[Signers]:
    """Its agent ends with the block."""
    with tempfile.TemporaryDirectory(prefix="kt-", dir="/tmp", ignore_cleanup_errors=True) as home:
        Path(home).chmod(0o700)
        # Without this the agent first measures the machine, and then derives each key for 0.1 s.
        Path(home, "gpg-agent.conf").write_text("s2k-count 65536\n")
        try:
            yield Signers(home)
        finally:
            _end_agent(home)
