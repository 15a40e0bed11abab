"""Archives by command line, as root: encrypted ones run, and trees handed out (A1, A6)."""

from __future__ import annotations

import os
import stat
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
    nowhere = kurma("image", "extract", image_id, str(tmp_path / "a" / "b"))
    assert nowhere.returncode == 125
    assert nowhere.stderr.splitlines()[1] == f"  hint: mkdir -p {tmp_path}/a"


def test_no_device_and_no_link_is_replaced(kurma: Any, tmp_path: Path) -> None:
    """By any command that writes a file where somebody says."""
    image_id = kurma.out("image", "fetch", kurma.image).strip()
    (tmp_path / "rootfs").mkdir()
    (tmp_path / "file").write_text("mine")
    places = [tmp_path / name for name in ("null", "link")]
    os.mknod(places[0], stat.S_IFCHR | 0o666, os.makedev(1, 3))
    places[1].symlink_to("file")
    before = [stated(place) for place in places]
    build = ("image", "build", "--from-rootfs", str(tmp_path / "rootfs"), "--name", "example.com/x")
    ways = [
        ("image", "export", image_id, "PLACE"),
        (*build, "-o", "PLACE"),
        ("image", "sign", "--force", "-o", "PLACE", kurma.image),
        ("image", "sign", "-o", "PLACE", kurma.image),
        ("run", "--uuid-file", "PLACE", image_id),
        ("prepare", "--uuid-file", "PLACE", image_id),
    ]
    for way in ways:
        for place in places:
            done = kurma(*(str(place) if word == "PLACE" else word for word in way))
            what = "a symbolic link" if place.name == "link" else "not a regular file"
            assert (done.returncode, done.stdout) == (2, "")
            assert done.stderr.splitlines()[0] == f"kurma: {place}: cannot be written: it is {what}"
    assert [stated(place) for place in places] == before
    assert (tmp_path / "file").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["file", "link", "null", "rootfs"]
    assert kurma.out("list", "--no-legend") == ""


def stated(place: Path) -> tuple[int, int, int]:
    status = os.lstat(place)
    return status.st_mode, status.st_rdev, status.st_ino


def test_a_uuid_file_that_cannot_be_written_is_named(kurma: Any, tmp_path: Path) -> None:
    """Before there is a pod."""
    done = kurma("run", "--uuid-file", str(tmp_path / "none" / "uuid"), kurma.image)
    assert done.returncode == 125
    assert done.stderr.startswith(f"kurma: {tmp_path}/none/uuid: cannot be written: there is no directory")
    assert kurma.out("list", "--no-legend") == ""
    kurma("run", "--rm", "--net", "none", "--uuid-file", str(tmp_path / "uuid"), kurma.image)
    first = (tmp_path / "uuid").read_text()
    kurma("run", "--rm", "--net", "none", "--uuid-file", str(tmp_path / "uuid"), kurma.image)
    assert len(first) == len((tmp_path / "uuid").read_text()) == 37
    assert first != (tmp_path / "uuid").read_text()


def test_a_uuid_file_replaces_nothing_else(kurma: Any, tmp_path: Path) -> None:
    image = tmp_path / "image.aci"
    image.write_bytes(Path(kurma.image).read_bytes())
    for command in ("run", "prepare"):
        done = kurma(command, "--net", "none", "--uuid-file", str(image), str(image))
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"kurma: --uuid-file: {image}: is there, and holds no UUID\n  hint: ")
    assert image.read_bytes() == Path(kurma.image).read_bytes()
    assert kurma.out("list", "--no-legend") == ""
