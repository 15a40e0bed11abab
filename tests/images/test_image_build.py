"""``image build``: what is contradictory, endless or would change its own input is refused (A6)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kurma_core.cli.main import main

NAMED = ("--name", "example.com/x")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "kurma.json").write_text("{}")
    monkeypatch.setenv("KURMA_CONFIG", str(tmp_path / "kurma.json"))
    monkeypatch.setenv("KURMA_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rootfs").mkdir()
    return tmp_path


def refused(capfd: pytest.CaptureFixture[str], *words: str, code: int = 2) -> tuple[str, str]:
    """The error and its hint."""
    assert main(["image", "build", *words]) == code
    out, err = capfd.readouterr()
    assert out == ""
    first, *more = err.splitlines()
    return first, more[0] if more else ""


def built(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["image", "build", *words]) == 0
    return capfd.readouterr().out


def test_a_manifest_has_an_end(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("pipe")
    options = ("--from-rootfs", "rootfs", *NAMED, "-o", "x.aci", "--manifest")
    for file in ("/dev/zero", "pipe"):
        error, _ = refused(capfd, *options, file)
        assert error == f"kurma: --manifest: {file}: cannot be read: it is not a regular file"
    for file in ("large", "large.yml"):
        os.truncate(os.open(file, os.O_CREAT | os.O_WRONLY), 1 << 30)
        assert f"{file}: cannot be read: it is larger than" in refused(capfd, *options, file)[0]


@pytest.mark.parametrize("place", ["rootfs/x.aci", "rootfs/below/x.aci", "link/x.aci", "./rootfs/../link/x.aci"])
def test_the_archive_does_not_lie_in_what_it_packs(
    place: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "rootfs" / "below").mkdir()
    (here / "link").symlink_to("rootfs/below")
    error, hint = refused(capfd, "--from-rootfs", "rootfs", *NAMED, "-o", place)
    assert error == f"kurma: {place}: is inside rootfs, the directory to pack"
    assert hint == "  hint: name a file outside it"
    assert os.listdir("rootfs/below") == []
    (here / "rootfs-2").mkdir()
    assert built(capfd, "--from-rootfs", "rootfs", *NAMED, "-o", "rootfs-2/x.aci").startswith("sha512-")


def test_the_word_of_a_person_counts_once(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = ("--from-rootfs", "rootfs", *NAMED, "-o", "x.aci")
    assert "'version' is given by --version, too" in refused(
        capfd, *options, "--label", "version=2", "--version", "1"
    )[0]  # fmt: skip
    assert "'a' is given twice" in refused(capfd, *options, "--label", "a=2", "--label", "a=2")[0]
    (here / "secret").write_text("secret\n")
    error, hint = refused(capfd, *options, "--passphrase-file", "secret")
    assert error == "kurma: --passphrase-file has no effect without --encrypt"
    assert "--encrypt" in hint
    error, hint = refused(capfd, *options[:-1], "x.tar")
    assert error == "kurma: cannot write an image to x.tar: its name must end in .aci"
    assert hint == "  hint: -o x.tar.aci"
    assert not (here / "x.tar").exists()
    assert not (here / "x.aci").exists()


def test_a_directory_that_is_no_image_s(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What was meant is told."""
    error, hint = refused(capfd, ".", *NAMED, "--exec", "/x", "-o", "x.aci")
    assert error == "kurma: . holds no manifest"
    assert "--from-rootfs ./rootfs" in hint
    error, hint = refused(capfd, "rootfs", *NAMED, "-o", "x.aci")
    assert error == "kurma: rootfs/rootfs is not a directory"
    assert hint == "  hint: a root filesystem alone is built by --from-rootfs rootfs"


def test_nothing_that_it_is_made_of_is_replaced(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "secret").write_text("secret\n")
    (here / "manifest").write_text('{"acKind": "ImageManifest", "acVersion": "0.8.11", "name": "example.com/x"}')
    os.link("manifest", "other")
    own = ("--from-rootfs", "rootfs", "--manifest", "manifest")
    encrypted = (*own, "--encrypt", "--passphrase-file", "secret")
    for words, place in (
        ((".",), "manifest"),
        ((".",), "./other"),
        (own, "manifest"),
        (own, "other"),
        (encrypted, "secret"),
    ):
        before = {name: (here / name).stat() for name in os.listdir()}
        error, _ = refused(capfd, *words, "-o", place)
        assert error == f"kurma: {place}: cannot be written: it is what the new file is made of"
        assert {name: (here / name).stat().st_ino for name in os.listdir()} == {
            name: status.st_ino for name, status in before.items()
        }
    built(capfd, *own, "-o", "x.aci")
    for place in ("x.aci", "rootfs/../x.aci", "secret"):
        words = ["image", "sign", "--force", "--passphrase-file", "secret", "-o", place, "x.aci"]
        assert main(words) == 2
        assert "it is what the new file is made of" in capfd.readouterr().err
    assert (here / "secret").read_text() == "secret\n"


def manifest_of(capfd: pytest.CaptureFixture[str], file: str) -> Any:
    assert main(["image", "cat-manifest", file]) == 0
    return json.loads(capfd.readouterr().out)


def test_what_the_options_say_is_in_the_manifest(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Over what stands in the manifest to begin with, the rest of which stays."""
    (here / "base.yml").write_text("""
acKind: ImageManifest
acVersion: 0.8.10
name: example.com/base
labels: [{name: os, value: linux}, {name: version, value: "1"}]
annotations: [{name: authors, value: Somebody}]
app:
  exec: [/bin/old]
  user: "0"
  group: "0"
  environment: [{name: A, value: "0"}, {name: C, value: "3"}]
""")
    words = ("--name", "example.com/x", "--version", "2", "--label", "channel=beta", "--exec", "/bin/app 'a b'")
    more = ("--user", "7", "--group", "8", "--workdir", "/srv", "-e", "A=1", "-e", "B=2", "-o", "x.aci")
    built(capfd, "--from-rootfs", "rootfs", "--manifest", "base.yml", *words, *more)
    assert manifest_of(capfd, "x.aci") == {
        "acKind": "ImageManifest",
        "acVersion": "0.8.10",
        "name": "example.com/x",
        "labels": [
            {"name": "os", "value": "linux"},
            {"name": "version", "value": "2"},
            {"name": "channel", "value": "beta"},
        ],
        "annotations": [{"name": "authors", "value": "Somebody"}],
        "app": {
            "exec": ["/bin/app", "a b"],
            "user": "7",
            "group": "8",
            "workingDirectory": "/srv",
            "environment": [
                {"name": "A", "value": "1"},
                {"name": "C", "value": "3"},
                {"name": "B", "value": "2"},
            ],
        },
    }


def test_without_a_manifest_the_platform_is_this_machines(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    built(capfd, "--from-rootfs", "rootfs", *NAMED, "-o", "x.aci")
    manifest = manifest_of(capfd, "x.aci")
    labels = {label["name"]: label["value"] for label in manifest["labels"]}
    assert labels.keys() == {"os", "arch"}
    assert labels["os"] == os.uname().sysname.lower()
    assert "app" not in manifest
