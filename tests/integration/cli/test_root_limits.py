"""A5: ``limits`` in kurma.yml count, whichever way an archive comes in, and the refusal says which it was."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.archives import file, image, tar

pytestmark = pytest.mark.root

_MIB = 1 << 20
#: What of an archive breaks the limit, the limit, and what is said of it.
LIMITS: dict[str, tuple[Callable[[str], list[Any]], dict[str, object], str]] = {
    "total_size": (
        lambda top: [file(f"{top}f", os.urandom(2 * _MIB))],
        {"total_size": "1Mi"},
        "the archive holds more than 1048576 bytes of files",
    ),
    "entries": (
        lambda top: [file(f"{top}{number}", b"") for number in range(20)],
        {"entries": 7},
        "the archive has more than 7 entries",
    ),
    "ratio": (
        lambda top: [file(f"{top}f", bytes(65 * _MIB))],
        {"ratio": 12.5},
        "the archive unpacks to more than 12.5 times its size",
    ),
}


def _plain(kurma: Any, place: Path, members: Callable[[str], list[Any]]) -> str:
    (place / "x.aci").write_bytes(gzip.compress(image(*members("rootfs/")), 1))
    return str(place / "x.aci")


def _encrypted(kurma: Any, place: Path, members: Callable[[str], list[Any]]) -> str:
    """Not packed by itself: what is in it breaks the limit."""
    root = place / "root"
    root.mkdir()
    for info, content in members(""):
        (root / info.name).write_bytes(content)
    words = ("--from-rootfs", str(root), "--name", "example.com/x", "--compress", "gzip", "--encrypt")
    kurma.out("image", "build", *words, "-o", str(place / "x.aci"))
    return str(place / "x.aci")


def _layers(kurma: Any, place: Path, members: Callable[[str], list[Any]]) -> str:
    """A registry's image, as a layout."""
    layer = tar(members(""))
    packed = gzip.compress(layer, 1)
    config = {
        "os": "linux",
        "architecture": "amd64",
        "config": {"Cmd": ["/f"]},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }
    blobs = place / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(content: bytes, kind: str) -> dict[str, Any]:
        (blobs / _digest(content)[7:]).write_bytes(content)
        media = f"application/vnd.oci.image.{kind}"
        return {"mediaType": media, "digest": _digest(content), "size": len(content)}

    parts = {
        "config": blob(json.dumps(config).encode(), "config.v1+json"),
        "layers": [blob(packed, "layer.v1.tar+gzip")],
    }
    found = blob(json.dumps({"schemaVersion": 2, **parts}).encode(), "manifest.v1+json")
    (place / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [found]}))
    (place / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return f"oci:{place}"


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


FORMS = {"plain": _plain, "encrypted": _encrypted, "layers": _layers}


@pytest.fixture
def mine(kurma: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command, with a store and a configuration of this test's own."""
    (tmp_path / "kurma.json").write_text("{}")
    for name, value in (("KURMA_DIR", "state"), ("KURMA_CONFIG", "kurma.json")):
        monkeypatch.setitem(kurma.environment, name, str(tmp_path / value))
    monkeypatch.setitem(kurma.environment, "KURMA_PASSPHRASE", "open sesame")
    return kurma


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("limit", LIMITS)
def test_limits_of_the_configuration(mine: Any, tmp_path: Path, limit: str, form: str) -> None:
    members, values, said = LIMITS[limit]
    locator = FORMS[form](mine, tmp_path, members)
    (tmp_path / "kurma.json").write_text(json.dumps({"limits": values}))
    words = [("image", "fetch", locator)]
    if form == "encrypted":
        words.append(("image", "validate", locator))
    elif form == "plain":
        words.append(("image", "extract", locator, str(tmp_path / "out")))
    for one in words:
        done = mine(*one)
        assert (done.returncode, done.stdout) == (125, "")
        first, hint = done.stderr.splitlines()
        assert first.startswith("kurma: ")
        assert first.endswith(said)
        assert hint == f"  hint: raise limits.{limit} in kurma.yml if the image is trusted"
    assert not (tmp_path / "out").exists()
    store = tmp_path / "state" / "images"
    assert {name: os.listdir(store / name) for name in ("tmp", "archives", "layers", "images")} == {
        "tmp": [],
        "archives": [],
        "layers": [],
        "images": [],
    }
    # As the hint says.
    (tmp_path / "kurma.json").write_text(json.dumps({"limits": {limit: 2 << 30}}))
    assert mine.out("image", "fetch", locator).startswith("sha512-")


def test_limits_that_are_fixed(mine: Any, tmp_path: Path) -> None:
    noted = image(annotations=[{"name": "x", "value": "y" * (5 * _MIB)}])
    headed = image(file("rootfs/f", pax_headers={"SCHILY.xattr.user.x": "x" * (2 * _MIB)}))
    deep = image(file("rootfs/" + "d/" * 300 + "f"))
    long = image(file("rootfs/" + "/".join(["n" * 200] * 25)))
    for content, value in ((noted, "4194304"), (headed, "1048576"), (deep, "256"), (long, "3840")):
        (tmp_path / "x.aci").write_bytes(content)
        done = mine("image", "fetch", str(tmp_path / "x.aci"))
        first, hint = done.stderr.splitlines()
        assert (done.returncode, done.stdout) == (125, "")
        assert value in first
        assert hint.startswith("  hint: this limit is fixed")
