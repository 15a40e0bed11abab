"""Archives by command line, as root: encrypted ones run, and trees handed out (A1, A6)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.root


def test_an_encrypted_image_runs_with_its_passphrase(
    kurma: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the app's environment has none of it, though the command's had."""
    kurma.out("image", "extract", kurma.image, str(tmp_path / "rootfs"))
    (tmp_path / "passphrase").write_text("open sesame\n")
    secret, file = str(tmp_path / "secret.aci"), ("--passphrase-file", str(tmp_path / "passphrase"))
    options = ("--name", "example.com/secret", "--exec", "/bin/sh -c env", "--user", "0", "--group", "0")
    kurma.out(
        "image", "build", "--from-rootfs", str(tmp_path / "rootfs"), *options, "-o", secret, "--encrypt", *file
    )
    refused = kurma("run", "--rm", "--net", "none", secret)
    assert (refused.returncode, refused.stdout) == (125, "")
    assert "the archive is encrypted, and there is no passphrase" in refused.stderr
    assert kurma.out("prepare", *file, secret)
    monkeypatch.setitem(kurma.environment, "KURMA_PASSPHRASE", "open sesame")
    done = kurma("run", "--rm", "--net", "none", secret)
    assert done.returncode == 0, done.stderr
    assert "PATH=" in done.stdout
    assert "sesame" not in done.stdout + done.stderr


def test_extract(kurma: Any, tmp_path: Path) -> None:
    image_id = kurma.out("image", "extract", kurma.image, str(tmp_path / "one")).strip()
    assert kurma.out("image", "fetch", kurma.image).strip() == image_id
    assert kurma.out("image", "extract", image_id[:20], str(tmp_path / "two")).strip() == image_id
    assert sorted(os.listdir(tmp_path / "one")) == sorted(os.listdir(tmp_path / "two")) != []
    again = kurma("image", "extract", image_id, str(tmp_path / "two"))
    assert again.returncode == 125
    assert again.stderr.startswith(f"kurma: {tmp_path}/two: cannot be extracted to: it is not empty\n  hint: ")
