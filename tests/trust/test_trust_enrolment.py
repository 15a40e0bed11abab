"""Keys put into the keystore, listed, and taken out of trust again (K1, K2)."""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kurma_core.errors import AmbiguousReferenceError, TrustError
from kurma_core.formats.timestamps import timestamp
from kurma_core.trust import Trust

NAME = "example.com/busybox"
LONG_SINCE = "2024-01-01T00:00:00Z"


@pytest.fixture
def system(tmp_path: Path) -> Path:
    return tmp_path / "usr"


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return tmp_path / "etc" / "kurma" / "trustedkeys"


@pytest.fixture
def trust(system: Path, local: Path, tmp_path: Path) -> Trust:
    return Trust((), (str(system), str(local)), str(tmp_path / "state"))


def key(trust: Trust, signers, *names: str):
    return trust.parse_keys(signers.public(*names), "keys.asc")


def put(directory: Path, place: str, name: str, content: bytes) -> Path:
    path = directory / place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


# --- reading ---


def test_a_file_of_several_keys(trust: Trust, signers) -> None:
    alice, expired, revoked = trust.parse_keys(
        signers.public("alice", "expired") + signers.public("revoked") + signers.revocation, "keys.asc"
    )
    assert (alice.fingerprint, alice.users) == (signers.fingerprints["alice"], ("alice <alice@example.com>",))
    assert (alice.state, alice.expires, alice.source) == ("valid", None, "keys.asc")
    assert (expired.state, expired.created[:4], expired.expires and expired.expires[:4]) == (
        "expired",
        "2020",
        "2020",
    )
    assert revoked.state == "revoked"


def test_what_is_no_public_key(trust: Trust, signers, archive: Path) -> None:
    for junk in (b"", b"<html>", signers.public("alice")[:200], signers.sign(archive, "alice")):
        with pytest.raises(TrustError, match="holds no OpenPGP public key"):
            trust.parse_keys(junk, "x")
    with pytest.raises(TrustError, match="larger than"):
        trust.parse_keys(b"x" * (2 << 20), "x")
    secret = signers.gpg(
        "--armor", "--pinentry-mode", "loopback", "--export-secret-keys", signers.fingerprints["mallory"]
    )
    with pytest.raises(TrustError, match="holds a secret key"):
        trust.parse_keys(secret, "x")


# --- adding ---


def test_a_key_that_is_added_signs(trust: Trust, local: Path, archive: Path, signers) -> None:
    fingerprint = signers.fingerprints["alice"]
    umask = os.umask(0o077)
    try:
        change = trust.add_key(*key(trust, signers, "alice"), NAME)
    finally:
        os.umask(umask)
    path = local / "prefix.d" / NAME / fingerprint
    assert (change.action, change.path) == ("added", str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    for parent in (path.parent, path.parent.parent, local / "prefix.d"):
        assert stat.S_IMODE(parent.stat().st_mode) == 0o755
    assert os.listdir(path.parent) == [fingerprint], "no temporary file is left"
    signature = signers.sign(archive, "alice")
    assert trust.verify(str(archive), signature, trust.keys_for(f"{NAME}/x")) == fingerprint
    assert trust.keys_for("example.com/busy") == {}


def test_each_file_holds_one_key(trust: Trust, local: Path, signers) -> None:
    alice, _ = key(trust, signers, "alice", "mallory")
    path = trust.add_key(alice, None).path
    assert path == str(local / "root.d" / signers.fingerprints["alice"])
    (found,) = trust.parse_keys(Path(path).read_bytes(), path)
    assert found.fingerprint == signers.fingerprints["alice"]


def test_nothing_is_written_but_the_last_keystore(trust: Trust, system: Path, local: Path, signers) -> None:
    trust.add_key(*key(trust, signers, "alice"), None)
    assert not system.exists()
    assert not (local / "host.d").exists()


@pytest.mark.parametrize("prefix", ["../host.d", "a/../../host.d", "/etc", "", "a//b", "a\0b"])
def test_a_prefix_leads_nowhere_else(trust: Trust, local: Path, signers, prefix: str) -> None:
    with pytest.raises(TrustError, match="no prefix"):
        trust.add_key(*key(trust, signers, "alice"), prefix)
    with pytest.raises(TrustError, match="no prefix"):
        trust.remove_key(signers.fingerprints["alice"], prefix)
    assert not local.exists()


def test_keys_that_cannot_sign_are_not_added(trust: Trust, local: Path, signers) -> None:
    data = signers.public("expired") + signers.public("revoked") + signers.revocation
    expired, revoked = trust.parse_keys(data, "keys.asc")
    for one, word in ((expired, "has expired"), (revoked, "was revoked")):
        with pytest.raises(TrustError, match=word):
            trust.add_key(one, None)
    assert not local.exists()


def test_a_revocation_is_taken_in_and_stays(
    trust: Trust, system: Path, local: Path, archive: Path, signers
) -> None:
    fingerprint = signers.fingerprints["revoked"]
    put(system, "root.d", fingerprint, signers.public("revoked"))
    (revoked,) = trust.parse_keys(signers.public("revoked") + signers.revocation, "x")
    assert trust.add_key(revoked, None).action == "refreshed"
    trust.add_key(*key(trust, signers, "revoked"), None)  # an older copy of it
    with pytest.raises(TrustError) as caught:
        trust.verify(str(archive), signers.sign(archive, "revoked"), trust.keys_for("a"))
    assert caught.value.data["reason"] == "revoked"


def test_a_keystore_that_others_may_write_is_not_added_to(trust: Trust, local: Path, signers) -> None:
    local.mkdir(parents=True)
    local.chmod(0o777)
    with pytest.raises(TrustError, match="users other than root can write it"):
        trust.add_key(*key(trust, signers, "alice"), None)


def test_a_keystore_that_cannot_be_written(trust: Trust, local: Path, signers) -> None:
    local.parent.mkdir(parents=True)
    local.write_text("")
    with pytest.raises(TrustError, match=r"cannot add a key to the keystore: .*exists|not a directory"):
        trust.add_key(*key(trust, signers, "alice"), None)


# --- removing ---


def test_a_local_key_is_removed_with_its_directories(trust: Trust, local: Path, signers) -> None:
    alice, mallory = key(trust, signers, "alice", "mallory")
    trust.add_key(alice, NAME)
    trust.add_key(mallory, "example.com")
    dry = trust.remove_key(alice.fingerprint, NAME, dry_run=True)
    assert (dry.action, set(trust.keys_for(NAME))) == ("removed", {alice.fingerprint, mallory.fingerprint})
    assert trust.remove_key(alice.fingerprint[:16].lower(), NAME) == dry
    assert set(trust.keys_for(NAME)) == {mallory.fingerprint}
    assert not (local / "prefix.d" / NAME).exists()
    with pytest.raises(TrustError, match="no such key is trusted for"):
        trust.remove_key(alice.fingerprint, NAME)
    with pytest.raises(TrustError, match="no such key"):
        trust.remove_key(mallory.fingerprint, NAME)


def test_a_system_key_is_masked(trust: Trust, system: Path, local: Path, signers) -> None:
    fingerprint = signers.fingerprints["alice"]
    theirs = put(system, "root.d", fingerprint, signers.public("alice"))
    change = trust.remove_key(fingerprint[-16:], None)
    assert (change.action, change.path) == ("masked", str(local / "root.d" / fingerprint))
    assert theirs.read_bytes()
    assert Path(change.path).read_bytes() == b""
    assert stat.S_IMODE(Path(change.path).stat().st_mode) == 0o644
    assert trust.keys_for("a") == {}
    assert trust.add_key(*key(trust, signers, "alice"), None).action == "unmasked"
    assert set(trust.keys_for("a")) == {fingerprint}
    assert trust.remove_key(fingerprint, None).action == "masked", "removing the local one would bring theirs back"
    assert trust.keys_for("a") == {}


def test_both_spellings_of_a_file_go(trust: Trust, local: Path, signers) -> None:
    fingerprint = signers.fingerprints["alice"]
    put(local, "root.d", fingerprint, signers.public("alice"))
    put(local, "root.d", fingerprint.lower(), signers.public("alice"))
    trust.remove_key(fingerprint, None)
    assert trust.keys_for("a") == {}


def test_a_revocation_is_not_removed(trust: Trust, system: Path, local: Path, signers) -> None:
    """Nor is it hidden from an older copy of the key by a mask, or by its standing at another place."""
    fingerprint = signers.fingerprints["revoked"]
    revoked = signers.public("revoked") + signers.revocation
    there = put(local, "root.d", fingerprint, revoked)
    for dry_run in (True, False):
        with pytest.raises(TrustError, match=f"was revoked by its owner, and {there} is what says so") as caught:
            trust.remove_key(fingerprint, None, dry_run=dry_run)
        assert "delete that file" in (caught.value.hint or "")
    assert there.read_bytes() == revoked
    (old,) = key(trust, signers, "revoked")
    with pytest.raises(TrustError, match="was revoked by its owner, and is not added"):
        trust.add_key(old, NAME)
    there.unlink()
    put(system, "root.d", fingerprint, revoked)
    assert trust.remove_key(fingerprint, None).action == "masked", "theirs stays"
    with pytest.raises(TrustError, match="was revoked by its owner, and is not added"):
        trust.add_key(old, None)


def test_where_else_a_removed_key_is_trusted(trust: Trust, system: Path, local: Path, signers) -> None:
    alice, mallory, revoked = key(trust, signers, "alice", "mallory", "revoked")
    theirs = put(system, "root.d", alice.fingerprint, signers.public("alice"))
    ours = [trust.add_key(alice, prefix).path for prefix in ("example.com", NAME, "example.org")]
    trust.add_key(mallory, "example.com")
    assert trust.remove_key(alice.fingerprint, "example.com", dry_run=True).still == (
        ("example.com/busybox", ours[1]),
        (None, str(theirs)),
    )
    put(local, "prefix.d/example.org", "1" * 40, b"key").chmod(0o666)  # nothing is trusted there
    put(local, "root.d", alice.fingerprint, b"")
    assert trust.remove_key(alice.fingerprint, NAME).still == (("example.com", ours[0]),), "masked is not trusted"
    trust.add_key(revoked, NAME)
    put(local, "prefix.d/example.com", revoked.fingerprint, signers.public("revoked") + signers.revocation)
    assert trust.remove_key(revoked.fingerprint, NAME).still == ()


def test_short_references(trust: Trust, local: Path) -> None:
    for tail in "AB":
        put(local, "root.d", "1" * 39 + tail, b"key")
    with pytest.raises(AmbiguousReferenceError):
        trust.remove_key("1" * 10, None)
    with pytest.raises(TrustError, match="too short"):
        trust.remove_key("1111", None)


# --- listing ---


def test_the_listing_says_what_counts(trust: Trust, system: Path, local: Path, signers) -> None:
    print_of = signers.fingerprints
    put(system, "root.d", print_of["alice"], signers.public("alice"))
    put(local, "root.d", print_of["alice"], b"")
    put(system, f"prefix.d/{NAME}", print_of["old"], signers.public("old"))
    put(local, f"prefix.d/{NAME}", print_of["old"].lower(), signers.public("old", armor=False))
    put(local, "prefix.d/example.com", print_of["expired"], signers.public("expired"))
    put(local, "prefix.d/example.com", print_of["revoked"], signers.public("revoked") + signers.revocation)
    put(local, "prefix.d/example.org", print_of["machine"], signers.public("mallory"))
    put(local, "prefix.d/example.net", print_of["machine"], signers.public("machine")).chmod(0o666)
    put(local, "host.d", print_of["mallory"], signers.public("mallory"))
    found = {
        (key.prefix or key.scope, key.fingerprint, key.path.startswith(str(local))): key
        for key in trust.trusted_keys()
    }
    states = {where: key.state for where, key in found.items()}
    assert states == {
        ("root", print_of["alice"], False): "masked",
        ("root", print_of["alice"], True): "mask",
        (NAME, print_of["old"], False): "replaced",
        (NAME, print_of["old"], True): "trusted",
        ("example.com", print_of["expired"], True): "expired",
        ("example.com", print_of["revoked"], True): "revoked",
        ("example.org", print_of["machine"], True): "refused",
        ("example.net", print_of["machine"], True): "refused",
        ("host", print_of["mallory"], True): "unlisted",
    }
    assert found[NAME, print_of["old"], True].users == ("old <old@example.com>",)
    assert "another key than its name" in (found["example.org", print_of["machine"], True].problem or "")
    assert next(iter(states))[0] == "root", "what signs everything comes first"
    listed = Trust((print_of["mallory"],), (str(local),), "/nonexistent").trusted_keys()
    assert [key.state for key in listed if key.scope == "host"] == ["trusted"]


def test_a_keystore_that_cannot_be_trusted_is_in_the_listing(trust: Trust, local: Path, signers) -> None:
    put(local, "root.d", signers.fingerprints["alice"], signers.public("alice"))
    (local / "root.d").chmod(0o777)
    (row,) = trust.trusted_keys()
    assert (row.state, row.scope) == ("refused", "root")
    assert "users other than root can write it" in (row.problem or "")


# --- what came in by a key ---


def test_a_signer_counts_until_it_is_removed_or_revoked(trust: Trust, local: Path, signers) -> None:
    (fresh,) = key(trust, signers, "revoked")
    trust.add_key(fresh, NAME)
    for since in (LONG_SINCE, "2999-01-01T00:00:00Z"):
        assert trust.lapse(NAME, fresh.fingerprint, since) is None
        assert trust.lapse("example.com/other", fresh.fingerprint, since) is not None
    trust.add_key(trust.parse_keys(signers.public("revoked") + signers.revocation, "x")[0], NAME)
    assert trust.lapse(NAME, fresh.fingerprint, LONG_SINCE) is not None
    assert trust.lapse(NAME, fresh.fingerprint, timestamp()) is not None, "the revocation may be the later one"
    assert trust.lapse(NAME, fresh.fingerprint, LONG_SINCE) == "revoked"
    (local / "prefix.d" / NAME / fresh.fingerprint).unlink()
    assert trust.lapse(NAME, fresh.fingerprint, "2999-01-01T00:00:00Z") is not None
    assert trust.lapse(NAME, fresh.fingerprint, LONG_SINCE) == "unknown"


def counted_gpg(directory: Path, monkeypatch: pytest.MonkeyPatch, first: str = ":") -> Callable[[], int]:
    """Puts a program before GnuPG that notes its imports, and runs ``first`` before each. Returns their count."""
    gpg = shutil.which("gpg")
    (directory / "bin").mkdir()
    program, notes = directory / "bin/gpg", directory / "imports"
    notes.touch()
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *--import*) echo import >> {notes}; {first};; esac\nexec {gpg} "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}/bin:{os.environ['PATH']}")
    return lambda: len(notes.read_text().splitlines())


def test_gnupg_is_asked_once_of_a_key_file(
    trust: Trust, local: Path, signers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starting it takes longer than a pod's start. A file that changes is asked of again."""
    imports = counted_gpg(tmp_path, monkeypatch)
    fingerprint = signers.fingerprints["revoked"]
    file = put(local, "root.d", fingerprint, signers.public("revoked"))
    time.sleep(0.15)  # a file that has just been written may be written again within the same tick
    for _ in range(3):
        assert trust.lapse(NAME, fingerprint, LONG_SINCE) is None
    assert imports() == 1
    # Nothing but the content differs, as far as times can be set.
    status = file.stat()
    file.write_bytes(signers.public("revoked") + signers.revocation)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    time.sleep(0.15)
    for _ in range(3):
        assert trust.lapse(NAME, fingerprint, LONG_SINCE) is not None
    assert imports() == 2
    # What others could have written, or nobody understands, says nothing.
    (known,) = (tmp_path / "state" / "revocations").iterdir()
    truth = known.read_bytes()
    for forged, mode in ((truth.replace(b"true", b"false"), 0o622), (b"{", 0o600), (b"[]", 0o600)):
        known.write_bytes(forged)
        known.chmod(mode)
        assert trust.lapse(NAME, fingerprint, LONG_SINCE) is not None
        known.chmod(0o600)
    assert imports() == 5
    known.unlink()
    known.mkdir()
    assert trust.lapse(NAME, fingerprint, LONG_SINCE) is not None, "nor does it matter that it cannot be written"


def test_what_was_read_of_a_file_that_had_just_changed_is_not_kept(
    trust: Trust, local: Path, signers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long GnuPG takes: what is written within the tick after the reading leaves the same stamps."""
    counted_gpg(tmp_path, monkeypatch, "sleep 0.3")
    # Nobody can give a file its ctime: the clock is what is set, to when the file was written.
    file = put(local, "root.d", signers.fingerprints["revoked"], signers.public("revoked"))
    ahead = time.time() - file.stat().st_ctime
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - ahead)
    assert trust.lapse(NAME, signers.fingerprints["revoked"], LONG_SINCE) is None
    assert not (tmp_path / "state" / "revocations").exists()


def test_a_key_that_has_run_out_does_not_unsay_what_it_signed(trust: Trust, local: Path, signers) -> None:
    put(local, "root.d", signers.fingerprints["expired"], signers.public("expired"))
    assert trust.lapse(NAME, signers.fingerprints["expired"], "2020-01-01T06:00:00Z") is None


def test_a_host_key_counts_until_it_is_struck_off_or_revoked(local: Path, signers, tmp_path: Path) -> None:
    fingerprint = signers.fingerprints["revoked"]
    put(local, "host.d", fingerprint, signers.public("revoked"))
    listed = Trust((fingerprint,), (str(local),), str(tmp_path / "state"))
    assert listed.still_trusts_host_key(fingerprint, LONG_SINCE)
    other = Trust(("A" * 40,), (str(local),), str(tmp_path / "state"))
    assert not other.still_trusts_host_key(fingerprint, LONG_SINCE)
    put(local, "host.d", fingerprint, signers.public("revoked") + signers.revocation)
    assert not listed.still_trusts_host_key(fingerprint, LONG_SINCE)


def test_the_listing_tells_of_what_counts_for_nothing(trust: Trust, local: Path, signers) -> None:
    alice = signers.public("alice")
    put(local, "root.d", "publisher.asc", alice)
    put(local, "prefix.d/Example.COM", signers.fingerprints["alice"], alice)
    (local / "prefix.d/example.com" / ("A" * 40)).mkdir(parents=True)
    found = {key.path.removeprefix(f"{local}/"): (key.state, key.problem) for key in trust.trusted_keys()}
    assert {state for state, _ in found.values()} == {"refused"}
    assert "named by a key's fingerprint" in found["root.d/publisher.asc"][1]
    assert (
        "no image can be called Example.COM" in found[f"prefix.d/Example.COM/{signers.fingerprints['alice']}"][1]
    )
    assert "named by a key's fingerprint" in found[f"prefix.d/example.com/{'A' * 40}"][1]
