"""Signers of every kind, with real keys, made once."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kurma_core.trust.machine import _end_agent

NOW: tuple[str, ...] = ()
LONG_AGO = ("--faked-system-time", "20200101T000000!")


class Signers:
    """A GnuPG home with keys by name."""

    def __init__(self, home: str) -> None:
        self.home = home
        self.fingerprints: dict[str, str] = {}

    def gpg(self, *arguments: str, stdin: bytes = b"") -> bytes:
        command = ["gpg", "--batch", "--no-tty", "--quiet", "--homedir", self.home, "--passphrase", "", *arguments]
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


@pytest.fixture(scope="session")
def signers() -> Iterator[Signers]:
    with tempfile.TemporaryDirectory(prefix="kt-", dir="/tmp", ignore_cleanup_errors=True) as home:
        Path(home).chmod(0o700)
        made = Signers(home)
        try:
            for name in ("alice", "mallory", "revoked", "machine"):
                made.make(name)
            made.make("expired", *LONG_AGO, expires="1d")
            made.make("old", *LONG_AGO)
            made.gpg("--quick-add-key", made.fingerprints["alice"], "ed25519", "sign")
            rev = Path(home, "openpgp-revocs.d", made.fingerprints["revoked"] + ".rev").read_text()
            made.revocation = rev.replace(":-----BEGIN", "-----BEGIN").encode()
            yield made
        finally:
            _end_agent(home)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "image.aci"
    path.write_bytes(b"an image's bytes\n" * 100)
    return path


class Place:
    """Where temporary homes are made during a test."""

    def __init__(self, path: str) -> None:
        self.path = path

    def left(self) -> list[str]:
        """Files, and processes that name it on their command line."""
        found = os.listdir(self.path)
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if self.path.encode() in Path("/proc", pid, "cmdline").read_bytes():
                    found.append(pid)
            except (FileNotFoundError, ProcessLookupError):
                continue
        return found


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="kt-", dir="/tmp") as path:
        monkeypatch.setattr(tempfile, "tempdir", path)
        yield Place(path)
