"""A6: archives looked at where they lie, and every complaint about one names it."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import pytest

from kurma_core.cli.main import main
from tests.kit.archives import MANIFEST, directory, file, image, manifest_member, tar

APP = json.dumps(
    {
        "acVersion": "0.1.0", "acKind": "AppManifest", "name": "example.com/early-1.0.0",
        "os": "linux", "arch": "amd64", "exec": ["/x"], "user": "0", "group": "0",
    }
).encode() + b"\n"  # fmt: skip
TAR = image(file("rootfs/f", b"x" * 1000))
EARLY = tar([file("app", APP), directory("rootfs")])


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "kurma.json").write_text("{}")
    monkeypatch.setenv("KURMA_CONFIG", str(tmp_path / "kurma.json"))
    monkeypatch.setenv("KURMA_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "image.aci"


def run(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(words)
    return code, *capfd.readouterr()


def test_show(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path.write_bytes(gzip.compress(TAR))
    code, out, err = run(capfd, "image", "show", "--format", "json", "image.aci")
    assert (code, err) == (0, "")
    assert json.loads(out) == {
        "id": f"sha512-{hashlib.sha512(TAR).hexdigest()}",
        "earlyId": f"sha256-{hashlib.sha256(TAR).hexdigest()}",
        "name": "example.com/thing",
        "version": "1.0.0",
        "labels": {"version": "1.0.0"},
        "size": path.stat().st_size,
        "tarSize": len(TAR),
        "entries": 3,
        "encrypted": False,
        "early": False,
        "manifest": MANIFEST,
    }
    code, out, _ = run(capfd, "image", "show", str(path))
    assert code == 0
    assert "name       example.com/thing" in out
    assert not (path.parent / "state").exists()


def test_cat_manifest(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path.write_bytes(TAR)
    manifest = manifest_member()[1].decode()
    assert run(capfd, "image", "cat-manifest", "./image.aci") == (0, manifest, "")
    assert run(capfd, "image", "cat-manifest", "--original", "./image.aci") == (0, manifest, "")
    path.write_bytes(EARLY)
    assert run(capfd, "image", "cat-manifest", "--original", "./image.aci") == (0, APP.decode(), "")
    code, out, _ = run(capfd, "image", "cat-manifest", "./image.aci")
    assert (code, json.loads(out)["acKind"], json.loads(out)["name"]) == (0, "ImageManifest", "example.com/early")
    assert json.loads(run(capfd, "image", "show", "--format", "json", "./image.aci")[1])["early"]


BROKEN = {
    "no image": (b"hello" * 200, "not an image archive"),
    "truncated": (TAR[:2000], "truncated"),
    "hostile": (image(file("rootfs/../f")), "refused"),
    "a bad manifest": (tar([manifest_member(name="")]), "invalid manifest"),
    "gone": (None, "cannot be read: no such file"),
}


@pytest.mark.parametrize("words", ["image validate", "image show", "image cat-manifest"])
@pytest.mark.parametrize("case", BROKEN)
def test_every_complaint_names_the_file(
    case: str, words: str, path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    content, said = BROKEN[case]
    if content is not None:
        path.write_bytes(content)
    code, out, err = run(capfd, *words.split(), str(path))
    assert (code, out) == (125, "")
    assert err.startswith(f"kurma: {path}: ")
    assert err.count(str(path)) == 1
    assert said in err.splitlines()[0]


def test_one_broken_file_does_not_hide_the_others(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path.write_bytes(TAR)
    (path.parent / "bad.aci").write_bytes(b"")
    code, out, err = run(capfd, "image", "validate", "bad.aci", "image.aci")
    assert (code, out) == (125, "image.aci: example.com/thing: a valid image\n")
    assert err.startswith("kurma: bad.aci: ")


ODD = json.dumps({**json.loads(APP), "x": 1, "mountPoints": [{"name": "Data", "path": "/data"}]}).encode()


@pytest.mark.parametrize(
    ("archive", "told"),
    [
        (image(x=1, app={"exec": ["/x"], "user": "0", "group": "0", "y": 2}), ("$.app.y", "$.x")),
        (tar([file("app", ODD), directory("rootfs")]), ('"Data" is called data', "$.x")),
        (image(), ()),
    ],
    ids=["late", "early", "nothing"],
)
@pytest.mark.parametrize("words", ["fetch", "validate", "convert", "show"])
def test_what_is_odd_in_a_manifest_is_told(
    words: str, archive: bytes, told: tuple[str, ...], path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """T8"""
    path.write_bytes(archive)
    code, _, err = run(capfd, "image", words, str(path))
    assert code == 0
    lines = err.splitlines()
    assert len(lines) == len(told)
    for line, words in zip(lines, told, strict=True):
        assert str(path) in line
        assert words in line


def test_what_is_odd_is_told_once_and_not_without_end(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path.write_bytes(image(**{f"x{number}": 1 for number in range(5000)}))
    code, _, err = run(capfd, "image", "fetch", str(path))
    assert code == 0
    assert len(err.splitlines()) == 11
    assert err.endswith(": and 4990 more of the kind\n")
    assert run(capfd, "image", "fetch", str(path))[2] == ""


def test_what_is_odd_is_told_when_it_is_built(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (path.parent / "rootfs").mkdir()
    (path.parent / "manifest").write_text(json.dumps({**MANIFEST, "x": 1}))
    code, _, err = run(capfd, "image", "build", str(path.parent), "-o", str(path))
    assert (code, err) == (0, "kurma: unknown key $.x is kept and means nothing to Kurma\n")
    assert json.loads(run(capfd, "image", "cat-manifest", str(path))[1])["x"] == 1


NO_IMAGE = [
    (("show", "key.asc"), "the store holds no image key.asc", "to use the file of that name, write ./key.asc"),
    (("verify", "key.asc"), "the store holds no image key.asc", "to use the file of that name, write ./key.asc"),
    (("cat-manifest", "./key.asc"), "/key.asc: not an image archive", ""),
    (("convert", "key.asc"), "key.asc: not an image archive", ""),
    (("sign", "key.asc"), "key.asc: not an image archive", ""),
    (("show", "sha512-4563"), "the store holds no image called sha512-4563, and for", "give at least 6 digits"),
    (("show", "4563"), "the store holds no image called 4563, and for the beginning", "give at least 6 digits"),
    (("convert", "."), "cannot be read: it is a directory", ""),
    (("show", "."), "cannot be read: it is a directory", ""),
    (("validate", "."), ".: cannot be read: it is a directory", ""),
    (("sign", "."), ".: cannot be read: it is a directory", ""),
    (("convert", "/dev/zero"), "/dev/zero: cannot be read: it is not a regular file", ""),
    (("show", "/dev/zero"), "/dev/zero: cannot be read: it is not a regular file", ""),
    (("convert", "./none"), "none: cannot be read: no such file or directory", ""),
    (("show", "./none"), "none: cannot be read: no such file or directory", ""),
    (("sign", "none"), "none: cannot be read: no such file or directory", ""),
]


@pytest.mark.parametrize(("words", "said", "hint"), NO_IMAGE)
def test_the_same_mistake_is_told_alike(
    words: tuple[str, ...], said: str, hint: str, path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (path.parent / "state").mkdir()
    (path.parent / "key.asc").write_text("-----BEGIN PGP PUBLIC KEY BLOCK-----\n" * 30)
    code, out, err = run(capfd, "image", *words)
    assert (code, out) == (125, "")
    assert said in err.splitlines()[0]
    assert hint in err


def test_a_signature_goes_with_a_file(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capfd, "image", "verify", "example.com/hello", "--signature", "hello.asc")
    assert code == 2
    assert err.startswith("kurma: --signature needs an image file: example.com/hello is not a file\n  hint: ")
    (path.parent / "plain").write_bytes(TAR)
    code, _, err = run(capfd, "image", "verify", "plain", "--signature", "hello.asc")
    assert (code, err) == (125, "kurma: hello.asc: cannot be read: no such file or directory\n")


@pytest.mark.parametrize("content", ["[]", "null", '"x"', "[" * 5000, '{"acKind": 1, "acKind": 2}', "\ufeff{}"])
def test_json_that_is_no_manifest_is_told_as_json(
    content: str, path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (path.parent / "j").write_text(content)
    code, _, err = run(capfd, "image", "convert", "j")
    assert code == 125
    assert err.startswith("kurma: j: invalid manifest: $")
    code, _, err = run(capfd, "pod", "convert", "j.json" if (path.parent / "j").rename("j.json") else "")
    assert code == 125
    assert err.startswith("kurma: j.json: invalid manifest: $")
