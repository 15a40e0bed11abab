"""Signers of every kind, with real keys, made once."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.keys import LONG_AGO, Signers, gnupg_home


@pytest.fixture(scope="session")
def signers() -> Iterator[Signers]:
    with gnupg_home() as made:
        for name in ("alice", "mallory", "revoked", "machine"):
            made.make(name)
        made.make("expired", *LONG_AGO, expires="1d")
        made.make("old", *LONG_AGO)
        made.gpg("--quick-add-key", made.fingerprints["alice"], "ed25519", "sign")
        made.revocation = made.revocation_of("revoked")
        yield made


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
