"""``kurma image sign`` and ``verify`` on files, with real keys (A6, K3)."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from kurma_core.cli.main import main
from tests.cli import json_fields
from tests.kit.keys import LONG_AGO, Signers, gnupg_home

NAME = "example.com/app"


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "kurma.json").write_text(json.dumps({"trustedkeys": [str(tmp_path / "keys")]}))
    monkeypatch.setenv("KURMA_CONFIG", str(tmp_path / "kurma.json"))
    monkeypatch.setenv("KURMA_DIR", str(tmp_path / "state"))
    return tmp_path / "keys"


@pytest.fixture
def image(keys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Compressed, so that archive and tar differ."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "file").write_bytes(os.urandom(200_000))
    path = tmp_path / "app.aci"
    words = ["--from-rootfs", str(tmp_path / "root"), "--name", NAME, "--compress", "gzip", "-o", str(path)]
    assert main(["image", "build", *words]) == 0
    capsys.readouterr()
    return path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["image", *words])
    return code, *capsys.readouterr()


def trust(keys: Path, fingerprint: str, public: bytes, place: str = f"prefix.d/{NAME}") -> None:
    (keys / place).mkdir(parents=True)
    (keys / place / fingerprint).write_bytes(public)


@pytest.mark.parametrize("early", [False, True])
def test_signed_with_this_machines_key(
    keys: Path, image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], early: bool
) -> None:
    code, out, _ = run(capsys, "sign", *(["--early"] if early else []), "--format", "json", str(image))
    assert code == 0
    signed = json.loads(out)
    json_fields.check("image sign", signed)
    place = tmp_path / ("app.sig" if early else "app.aci.asc")
    assert (signed["signature"], signed["over"]) == (str(place), "tar" if early else "archive")
    assert place.read_bytes().startswith(b"-----BEGIN PGP SIGNATURE-----")
    code, _, err = run(capsys, "verify", str(image))
    assert code == 125
    assert "not trusted for it" in err
    assert f"kurma trust add --prefix {NAME}" in err
    trust(keys, signed["fingerprint"], (tmp_path / "state" / "keys" / "public.asc").read_bytes())
    code, out, _ = run(capsys, "verify", "--format", "json", f"file://{image}")
    found = json.loads(out)
    json_fields.check("image verify", found)
    assert (code, found["fingerprint"], found["name"], found["id"]) == (
        0,
        signed["fingerprint"],
        NAME,
        signed["id"],
    )
    assert found["users"] == ["Kurma, this machine's key <kurma@localhost>"]
    # The same tar, packed in another way: only a signature over the tar holds.
    image.write_bytes(gzip.compress(gzip.decompress(image.read_bytes()), 1))
    code, _, err = run(capsys, "verify", str(image))
    assert code == (0 if early else 125)
    assert early or "does not fit" in err


def test_signed_with_a_key_of_ones_own(
    keys: Path, image: Path, signers: Signers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GNUPGHOME", signers.home)
    alice = signers.fingerprints["alice"]
    trust(keys, alice, signers.public("alice"))
    code, out, _ = run(capsys, "sign", "--key", alice, str(image))
    assert (code, out) == (0, f"{image}.asc: {NAME}, by {alice}\n")
    code, out, _ = run(capsys, "verify", str(image))
    assert code == 0
    assert "alice <alice@example.com>" in out
    code, _, err = run(capsys, "sign", "--force", "--key", "B" * 40, str(image))
    assert code == 125
    assert f"cannot sign with the key {'B' * 40}" in err
    assert run(capsys, "verify", str(image))[0] == 0, "the old signature is as it was"


def test_signed_with_an_rsa_key(
    keys: Path, image: Path, signers: Signers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """For rkt, whose OpenPGP knows no Ed25519 (Z9); GnuPG agrees, and says that it is RSA and SHA512."""
    monkeypatch.setenv("GNUPGHOME", signers.home)
    signers.gpg("--quick-gen-key", "rsa <rsa@example.com>", "rsa2048", "sign", "never")
    listing = signers.gpg("--with-colons", "--list-keys", "rsa@example.com").decode().splitlines()
    rsa = next(line.split(":")[9] for line in listing if line.startswith("fpr:"))
    code, out, _ = run(capsys, "sign", "--key", rsa, str(image))
    assert (code, out) == (0, f"{image}.asc: {NAME}, by {rsa}\n")
    said = signers.gpg("--status-fd", "1", "--verify", f"{image}.asc", str(image)).decode()
    (valid,) = [line.split() for line in said.splitlines() if " VALIDSIG " in line]
    assert (valid[2], valid[8:10]) == (rsa, ["1", "10"])
    trust(keys, rsa, signers.gpg("--armor", "--export", rsa))
    assert run(capsys, "verify", str(image))[0] == 0


def test_signed_with_a_sub_key(
    keys: Path, image: Path, signers: Signers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Told is the primary key, which is the one that people trust."""
    monkeypatch.setenv("GNUPGHOME", signers.home)
    signers.make("carol")
    carol = signers.fingerprints["carol"]
    signers.gpg("--quick-add-key", carol, "ed25519", "sign")
    listing = signers.gpg("--with-colons", "--list-keys", carol).decode().splitlines()
    sub = [line.split(":")[9] for line in listing if line.startswith("fpr:")][1]
    trust(keys, carol, signers.public("carol"))
    for chosen in (f"{sub}!", sub, carol):
        code, out, _ = run(capsys, "sign", "--force", "--key", chosen, "--format", "json", str(image))
        assert (code, json.loads(out)["fingerprint"]) == (0, carol)
        code, out, _ = run(capsys, "verify", "--format", "json", str(image))
        assert (code, json.loads(out)["fingerprint"]) == (0, carol)


def test_a_signature_is_not_replaced_unasked(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = Path(f"{image}.asc")
    there.write_text("mine")
    code, _, err = run(capsys, "sign", str(image))
    assert (code, there.read_text()) == (2, "mine")
    assert "--force" in err
    assert run(capsys, "sign", "--force", str(image))[0] == 0
    assert there.read_text() != "mine"


def test_elsewhere(keys: Path, image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "else.sig"
    code, out, _ = run(capsys, "sign", "--early", "-o", str(place), "--format", "json", str(image))
    trust(keys, json.loads(out)["fingerprint"], (tmp_path / "state" / "keys" / "public.asc").read_bytes())
    assert run(capsys, "verify", str(image))[0] == 125
    assert run(capsys, "verify", str(image), "--signature", str(place))[0] == 0
    code, _, err = run(capsys, "verify", str(image), "--signature", str(tmp_path / "gone"))
    assert code == 125
    assert "gone: cannot be read" in err


def test_what_is_no_image_is_not_signed(image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = image.read_bytes()
    for content in (b"junk", whole[: len(whole) // 2]):
        image.write_bytes(content)
        code, _, err = run(capsys, "sign", str(image))
        assert code == 125, err
        assert not Path(f"{image}.asc").exists()
    code, _, err = run(capsys, "sign", str(tmp_path / "none.aci"))
    assert code == 125
    assert "none.aci: cannot be read" in err


def test_an_unsigned_file(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "verify", str(image))
    assert code == 125
    assert f"the image {NAME} is not signed" in err


# --- images of the store ---


def vouching(capsys: pytest.CaptureFixture[str]) -> tuple[str, str, str]:
    """What the table, its JSON and the image's page say vouches for it."""
    _, table, _ = run(capsys, "list", "--no-legend")
    _, listed, _ = run(capsys, "list", "--format", "json")
    _, page, _ = run(capsys, "show", NAME)
    words = table.split()
    line = next(line for line in page.splitlines() if line.startswith("trust "))
    return (
        next(word for word in words if word in ("signed", "unverified")),
        json.loads(listed)[0]["trust"],
        line.split()[1],
    )


@pytest.mark.root
def test_an_image_of_the_store(
    keys: Path, image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run(capsys, "sign", "--format", "json", str(image))
    key = json.loads(out)["fingerprint"]
    trust(keys, key, (tmp_path / "state" / "keys" / "public.asc").read_bytes())
    assert run(capsys, "fetch", str(image))[0] == 0
    code, tree, _ = run(capsys, "render", "--renderer", "copy", NAME)
    assert code == 0
    code, out, _ = run(capsys, "verify", NAME)
    assert code == 0
    assert "as extracted, in rendered trees too (1)" in out
    assert f"signed, by {key}" in out
    assert vouching(capsys) == ("signed", "signed", "signed")
    assert main(["trust", "rm", key, "--prefix", NAME]) == 0
    code, out, _ = run(capsys, "verify", NAME)
    assert code == 0
    assert "unverified (it came in signed, by a key that is not trusted for it)" in out
    assert vouching(capsys) == ("unverified", "unverified", "unverified"), "all say the same"
    json_fields.check("image verify", json.loads(run(capsys, "verify", "--format", "json", NAME)[1]))
    (Path(tree.strip()) / "file").write_bytes(b"crooked")
    code, _, err = run(capsys, "verify", NAME)
    assert code == 125
    assert "file" in err
    assert "damaged" in err


@pytest.mark.root
def test_an_image_of_the_store_whose_signer_was_revoked(
    keys: Path, image: Path, signers: Signers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """To be told to trust the key would be the wrong advice: it is there."""
    Path(f"{image}.asc").write_bytes(signers.sign(image, "alice"))
    trust(keys, signers.fingerprints["alice"], signers.public("alice"))
    assert run(capsys, "fetch", str(image))[0] == 0
    (tmp_path / "revoked.asc").write_bytes(signers.public("alice") + signers.revocation_of("alice"))
    assert main(["trust", "add", "--yes", "--prefix", NAME, str(tmp_path / "revoked.asc")]) == 0
    for words in (("verify", NAME), ("show", NAME)):
        code, out, _ = run(capsys, *words)
        assert code == 0
        assert "unverified (it came in signed, by a key that was revoked)" in out


def test_which_file_is_no_signature(image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.asc").write_text("no signature")
    code, _, err = run(capsys, "verify", str(image), "--signature", f"{tmp_path}/x.asc")
    assert code == 125
    assert err.startswith(f"kurma: {tmp_path}/x.asc: {image}: this is not an OpenPGP signature\n  hint: ")


def test_a_key_is_named_so_that_one_is_meant(
    image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with gnupg_home() as ring:
        monkeypatch.setenv("GNUPGHOME", ring.home)
        monkeypatch.delenv("GPG_TTY", raising=False)
        monkeypatch.setattr(os, "isatty", lambda descriptor: False)
        one, two = ring.make("carol"), ring.make("caroline")
        late = ring.make("dave", *LONG_AGO, expires="1d")
        ring.gpg(
            "--passphrase", "open sesame", "--quick-generate-key", "erin <erin@example.com>", "ed25519", "sign"
        )
        for key, code, said in (
            ("", 2, "--key names no key"),
            ("example.com", 125, "several keys fit example.com: "),
            (late, 125, f"the key {late} has expired"),
            ("erin@example.com", 125, "it has a passphrase, and there is no terminal to ask for it at"),
        ):
            found, _, err = run(capsys, "sign", "--key", key, str(image))
            assert found == code, err
            assert said in err.splitlines()[0]
            assert not Path(f"{image}.asc").exists()
        assert one in run(capsys, "sign", "--key", "example.com", str(image))[2]
        assert run(capsys, "sign", "--key", two, str(image))[0] == 0
