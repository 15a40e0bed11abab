"""Signatures by real keys: which count, and what is said of those that do not (K3)."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest

from kurma_core.errors import ArchiveError, TrustError
from kurma_core.trust import Trust, gpg
from tests.kit.keys import LONG_AGO, gnupg_home


@pytest.fixture
def trust(tmp_path: Path) -> Trust:
    return Trust((), (), str(tmp_path / "state"))


@pytest.fixture
def keys(tmp_path: Path, signers) -> dict[str, tuple[str, ...]]:
    """Everybody's key but mallory's."""
    found = {}
    for name, fingerprint in signers.fingerprints.items():
        if name != "mallory":
            path = tmp_path / f"{fingerprint}"
            path.write_bytes(signers.public(name, armor=name != "old"))
            found[fingerprint] = (str(path),)
    return found


def refusal(trust: Trust, archive: Path, signature: bytes | None, keys: dict[str, tuple[str, ...]]) -> TrustError:
    with pytest.raises(TrustError) as caught:
        trust.verify(str(archive), signature, keys, what="example.com/app")
    assert str(caught.value).startswith("example.com/app: ")
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("armor", [True, False])
def test_good(trust: Trust, archive: Path, signers, keys, armor: bool) -> None:
    signature = signers.sign(archive, "alice", armor=armor)
    assert trust.verify(str(archive), signature, keys) == signers.fingerprints["alice"]


@pytest.mark.parametrize("armor", [True, False])
def test_over_a_stream(trust: Trust, archive: Path, signers, keys, place, armor: bool) -> None:
    """As early signatures are: nothing of the stream's size is written anywhere."""
    with archive.open("r+b") as file:
        file.truncate(5 << 20)
    signature = signers.sign(archive, "alice", armor=armor)
    whole, seen = archive.read_bytes(), []

    def pieces(content: bytes):
        for at in range(0, len(content), 100_000):
            seen.append(sum(file.stat().st_size for file in Path(place.path).rglob("*") if file.is_file()))
            yield content[at : at + 100_000]

    assert trust.verify(pieces(whole), signature, keys) == signers.fingerprints["alice"]
    assert max(seen) < 200_000
    with pytest.raises(TrustError) as caught:
        trust.verify(pieces(whole + b"x"), signature, keys, what="x", name="example.com/app")
    assert caught.value.data["reason"] == "bad"
    with pytest.raises(TrustError) as caught:
        trust.verify(pieces(whole), b"no signature", keys, what="x")
    assert caught.value.data["reason"] == "malformed"
    assert place.left() == []


def test_a_stream_that_fails(trust: Trust, archive: Path, signers, keys, place) -> None:
    def pieces():
        yield archive.read_bytes()
        raise ArchiveError("the archive is corrupt")

    with pytest.raises(ArchiveError, match="is corrupt"):
        trust.verify(pieces(), signers.sign(archive, "alice"), keys, what="x")
    assert place.left() == []


def test_hints_name_the_image(trust: Trust, archive: Path, signers, keys) -> None:
    with pytest.raises(TrustError) as caught:
        trust.verify(str(archive), signers.sign(archive, "mallory"), keys, name="example.com/app")
    assert "kurma trust add --prefix example.com/app" in (caught.value.hint or "")


def test_a_binary_key_file_counts_too(trust: Trust, archive: Path, signers, keys) -> None:
    assert trust.verify(str(archive), signers.sign(archive, "old"), keys) == signers.fingerprints["old"]


def test_a_sub_key_signs_for_its_primary_key(trust: Trust, archive: Path, signers, keys) -> None:
    subkey = sub_key(signers, "alice")
    assert subkey != signers.fingerprints["alice"]
    signature = signers.sign(archive, f"{subkey}!")
    assert trust.verify(str(archive), signature, keys) == signers.fingerprints["alice"]


def sub_key(signers, name: str) -> str:
    listing = signers.gpg("--with-colons", "--list-keys", signers.fingerprints[name]).decode().splitlines()
    found: str = [line.split(":")[9] for line in listing if line.startswith("fpr:")][1]
    return found


def test_a_sub_key_that_ran_out_or_was_revoked(trust: Trust, archive: Path, tmp_path: Path) -> None:
    """Although the primary key is as good as ever."""
    with gnupg_home() as own:
        own.make("bob", *LONG_AGO)
        own.make("carol")
        own.gpg(*LONG_AGO, "--quick-add-key", own.fingerprints["bob"], "ed25519", "sign", "1d")
        own.gpg("--quick-add-key", own.fingerprints["carol"], "ed25519", "sign")
        signatures = {
            "expired": ("bob", own.sign(archive, f"{sub_key(own, 'bob')}!", *LONG_AGO)),
            "revoked": ("carol", own.sign(archive, f"{sub_key(own, 'carol')}!")),
        }
        said = b"key 1\nrevkey\ny\n0\n\ny\nsave\n"
        edit = ("--command-fd", "0", "--pinentry-mode", "loopback", "--edit-key", own.fingerprints["carol"])
        own.gpg(*edit, stdin=said, batch=False)
        for reason, (name, signature) in signatures.items():
            file = tmp_path / own.fingerprints[name]
            file.write_bytes(own.public(name))
            keys = {own.fingerprints[name]: (str(file),)}
            assert refusal(trust, archive, signature, keys).data["reason"] == reason
            plain = own.sign(archive, f"{own.fingerprints[name]}!")
            assert trust.verify(str(archive), plain, keys) == own.fingerprints[name]


def test_a_changed_byte(trust: Trust, archive: Path, signers, keys) -> None:
    signature = signers.sign(archive, "alice")
    with archive.open("r+b") as file:
        file.write(b"A")
    assert refusal(trust, archive, signature, keys).data["reason"] == "bad"


def test_a_key_that_nobody_trusts_is_named(trust: Trust, archive: Path, signers, keys) -> None:
    error = refusal(trust, archive, signers.sign(archive, "mallory"), keys)
    assert error.data["reason"] == "unknown"
    assert error.data["fingerprint"] == signers.fingerprints["mallory"]
    assert signers.fingerprints["mallory"] in str(error)
    assert refusal(trust, archive, signers.sign(archive, "mallory"), {}).data["reason"] == "unknown"


def test_a_key_smuggled_into_another_keys_file(trust: Trust, archive: Path, signers, keys) -> None:
    (file,) = keys[signers.fingerprints["alice"]]
    Path(file).write_bytes(signers.public("alice", "mallory"))
    assert refusal(trust, archive, signers.sign(archive, "mallory"), keys).data["reason"] == "unknown"


def test_an_expired_key(trust: Trust, archive: Path, signers, keys) -> None:
    """Although it signed while it was valid."""
    signature = signers.sign(archive, "expired", "--faked-system-time", "20200101T010000!")
    error = refusal(trust, archive, signature, keys)
    assert (error.data["reason"], "key has expired" in str(error)) == ("expired", True)


def test_an_expired_signature(trust: Trust, archive: Path, signers, keys) -> None:
    signature = signers.sign(
        archive, "old", "--faked-system-time", "20200102T000000!", "--default-sig-expire", "1d"
    )
    error = refusal(trust, archive, signature, keys)
    assert (error.data["reason"], "signature has expired" in str(error)) == ("expired", True)


def test_a_revoked_key(trust: Trust, archive: Path, signers, keys) -> None:
    signature = signers.sign(archive, "revoked")
    file = Path(keys[signers.fingerprints["revoked"]][0])
    assert trust.verify(str(archive), signature, keys) == signers.fingerprints["revoked"]
    file.write_bytes(file.read_bytes() + signers.revocation)
    assert refusal(trust, archive, signature, keys).data["reason"] == "revoked"


def test_a_revocation_counts_wherever_it_is_known(trust: Trust, archive: Path, signers, keys, tmp_path) -> None:
    fingerprint = signers.fingerprints["revoked"]
    newer = tmp_path / "newer"
    newer.write_bytes(signers.public("revoked") + signers.revocation)
    keys[fingerprint] = (str(newer), *keys[fingerprint])
    assert refusal(trust, archive, signers.sign(archive, "revoked"), keys).data["reason"] == "revoked"


@pytest.mark.parametrize(
    ("algorithm", "called"), [("SHA1", "SHA-1"), ("MD5", "MD5"), ("RIPEMD160", "RIPEMD-160"), ("SHA256", "")]
)
def test_a_weak_digest(trust: Trust, archive: Path, signers, keys, algorithm: str, called: str) -> None:
    signature = signers.sign(archive, "alice", "--allow-weak-digest-algos", "--digest-algo", algorithm)
    if not called:
        assert trust.verify(str(archive), signature, keys) == signers.fingerprints["alice"]
        return
    error = refusal(trust, archive, signature, keys)
    assert error.data["reason"] == "weak"
    assert f"a {called} sum" in str(error)


def test_no_signature(trust: Trust, archive: Path, keys) -> None:
    assert refusal(trust, archive, None, keys).data["reason"] == "unsigned"


@pytest.mark.parametrize("junk", [b"", b"<html>404</html>", os.urandom(200), b"x" * (1 << 17)])
def test_no_signature_at_all(trust: Trust, archive: Path, keys, junk: bytes) -> None:
    error = refusal(trust, archive, junk, keys)
    assert error.data["reason"] == "malformed"
    assert ("is empty" in error.message) is not bool(junk)
    assert "gpg --armor --detach-sign" in (error.hint or "")


def test_a_signature_over_text_leaves_line_ends_free(trust: Trust, archive: Path, signers, keys) -> None:
    signature = signers.sign(archive, "alice", "--textmode")
    archive.write_bytes(archive.read_bytes().replace(b"\n", b"\r\n"))
    assert refusal(trust, archive, signature, keys).data["reason"] == "malformed"


@pytest.mark.parametrize("way", ["--clear-sign", "--sign"])
def test_a_signed_message_is_no_detached_signature(trust: Trust, archive: Path, signers, keys, way: str) -> None:
    message = signers.sign(archive, "alice", way)
    archive.write_bytes(b"something else")
    assert refusal(trust, archive, message, keys).data["reason"] in ("malformed", "bad")


def test_one_good_signature_of_two_is_enough(trust: Trust, archive: Path, signers, keys) -> None:
    two = signers.sign(archive, "mallory", armor=False) + signers.sign(archive, "alice", armor=False)
    assert trust.verify(str(archive), two, keys) == signers.fingerprints["alice"]


def test_a_status_line_in_a_user_id_is_only_text(
    trust: Trust, archive: Path, signers, keys, tmp_path: Path
) -> None:
    """gpg escapes line ends in names; a key's owner cannot write status lines."""
    alice = signers.fingerprints["alice"]
    name = f"x\\x0a[GNUPG:] GOODSIG {alice[-16:]} x"
    signers.gpg("--quick-generate-key", name, "ed25519", "sign", "never")
    listing = signers.gpg("--with-colons", "--list-keys", "x").decode().splitlines()
    made = [line.split(":")[9] for line in listing if line.startswith("fpr:")][-1]
    signature = signers.sign(archive, f"{made}!")
    assert refusal(trust, archive, signature, keys).data["reason"] == "unknown"


def test_what_gnupg_says_is_bounded(
    trust: Trust, archive: Path, signers, keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is not filled by what it repeats without end."""
    real = shutil.which("gpg")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "gpg"
    program.write_text(
        "#!/bin/sh\n"
        'for word; do case "$word" in --status-fd=*) status=${word#*=};; esac; done\n'
        'case "$*" in *--verify*) exec yes "[GNUPG:] NEWSIG" >/proc/self/fd/$status;; esac\n'
        f'exec {real} "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    begun = time.monotonic()
    assert refusal(trust, archive, signers.sign(archive, "alice"), keys).data["reason"] == "malformed"
    assert time.monotonic() - begun < 20


def test_an_unreadable_key(trust: Trust, archive: Path, signers, keys, tmp_path: Path) -> None:
    keys[signers.fingerprints["alice"]] = (str(tmp_path / "gone"),)
    with pytest.raises(TrustError, match="cannot read the key"):
        trust.verify(str(archive), signers.sign(archive, "alice"), keys)


def test_nothing_is_left(trust: Trust, archive: Path, signers, keys, place) -> None:
    trust.verify(str(archive), signers.sign(archive, "alice"), keys)
    refusal(trust, archive, b"", keys)
    assert place.left() == []


def test_what_a_killed_process_left_is_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what somebody holds, what is young, nor what others made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(gpg, "_LONGEST_HOME", 4096)
    left, held, other = (tmp_path / name for name in ("kurma-gpg-1", "kurma-gpg-2", "other"))
    for each in (left, held, other):
        each.mkdir()
    (left / "pubring.kbx").write_text("x")
    fd = os.open(held, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    now = time.time()
    monkeypatch.setattr(gpg.time, "time", lambda: now + 100)
    try:
        with gpg.private_directory() as made:
            assert not left.exists()
            assert held.exists()
            assert other.exists()
            monkeypatch.setattr(gpg.time, "time", lambda: now)
            with gpg.private_directory():
                assert Path(made).exists()
    finally:
        os.close(fd)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kurma-gpg-2", "other"]
