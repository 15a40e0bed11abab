"""This machine's key, and what may run with the host's power (K5)."""

from __future__ import annotations

import os
import resource
import shutil
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kurma_core.errors import TrustError
from kurma_core.trust import Trust


@pytest.fixture
def state(tmp_path: Path) -> str:
    """Too long for the name of a socket in it."""
    path = tmp_path / ("long" * 25)
    path.mkdir()
    return str(path)


@pytest.fixture
def trust(state: str) -> Trust:
    return Trust((), (), state)


def test_by_a_process_that_has_many_descriptors(trust: Trust) -> None:
    """As a daemon of some hundred pods has them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    taken = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    try:
        assert trust.machine_key()
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_made_once_and_private(trust: Trust, state: str) -> None:
    fingerprint = trust.machine_key()
    assert trust.machine_key() == Trust((), (), state).machine_key() == fingerprint
    assert stat.S_IMODE(os.stat(f"{state}/keys").st_mode) == 0o700
    listing = subprocess.run(
        ["gpg", "--homedir", f"{state}/keys", "--with-colons", "--list-keys"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert [line.split(":")[9] for line in listing if line.startswith("fpr:")] == [fingerprint]
    key = next(line.split(":") for line in listing if line.startswith("pub:"))
    assert (key[16], key[6]) == ("ed25519", ""), "an ed25519 key that never expires"
    assert not os.path.exists(f"{state}/keys/S.gpg-agent")


@pytest.mark.parametrize("key", ["machine_key()", "build_key.fingerprint()"])
def test_two_processes_make_one_key(state: str, key: str) -> None:
    program = f"from kurma_core.trust import Trust; print(Trust((), (), {state!r}).{key})"
    with ThreadPoolExecutor(3) as pool:
        done = list(
            pool.map(
                lambda _: subprocess.run(
                    [sys.executable, "-c", program], capture_output=True, text=True, check=True
                ),
                range(3),
            )
        )
    assert len({one.stdout for one in done}) == 1


def test_a_key_that_was_made_and_not_recorded_is_taken(trust: Trust, state: str) -> None:
    fingerprint = trust.machine_key()
    os.unlink(f"{state}/keys/fingerprint")
    os.unlink(f"{state}/keys/public.asc")
    assert trust.machine_key() == fingerprint
    assert b"PUBLIC KEY" in Path(state, "keys/public.asc").read_bytes()


def test_signs_large_files_whole(trust: Trust, archive: Path) -> None:
    with archive.open("r+b") as file:
        file.truncate(40 << 20)
    signature = trust.sign(str(archive))
    assert signature.startswith(b"-----BEGIN PGP SIGNATURE-----")
    assert trust.verify_own(str(archive), signature) == trust.machine_key()
    with archive.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"x")
    with pytest.raises(TrustError, match="does not fit"):
        trust.verify_own(str(archive), signature)


def test_nothing_stays_but_the_key(trust: Trust, archive: Path, place) -> None:
    signature = trust.sign(str(archive))
    trust.verify_own(str(archive), signature)
    assert place.left() == []


def test_the_key_of_images_built_here_is_another(trust: Trust, state: str, archive: Path, tmp_path: Path) -> None:
    """It counts neither for the host nor as a publisher's, wherever its public half lies (19.3)."""
    key = trust.build_key.fingerprint()
    assert key != trust.machine_key()
    assert Trust((), (), state).build_key.fingerprint() == key
    assert stat.S_IMODE(os.stat(f"{state}/build_key").st_mode) == 0o700
    signature = trust.build_key.sign(str(archive))
    assert trust.verify_own(str(archive), signature, trust.build_key) == key
    for check in (trust.verify_own, trust.verify_host_image):
        with pytest.raises(TrustError, match=key):
            check(str(archive), signature)
    for place in ("root.d", "host.d"):
        (tmp_path / "store" / place).mkdir(parents=True)
        shutil.copy(trust.build_key.public_key(), tmp_path / "store" / place / key)
    known = Trust((), (str(tmp_path / "store"),), state)
    assert known.keys_for("example.com/web") == {}
    assert known.lapse("example.com/web", key, "2026-01-01T00:00:00Z") == "unknown"
    with pytest.raises(TrustError, match=key):
        known.verify_host_image(str(archive), signature)
    listed = Trust((known.machine_key(), key), (str(tmp_path / "store"),), state)
    with pytest.raises(TrustError, match=r"lists .* the key of images built here"):
        listed.host_keys()


def test_a_damaged_record(trust: Trust, state: str) -> None:
    trust.machine_key()
    Path(state, "keys/fingerprint").write_text("")
    with pytest.raises(TrustError, match="damaged") as caught:
        trust.machine_key()
    assert caught.value.hint is not None


def test_a_state_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrustError, match="cannot make this machine's key"):
        Trust((), (), str(tmp_path / "file")).machine_key()


# --- images with host privilege ---------------------------------------------------------------------------------


def test_this_machines_key_is_the_default(trust: Trust, archive: Path) -> None:
    assert trust.verify_host_image(str(archive), trust.sign(str(archive))) == trust.machine_key()
    assert trust.host_keys() == (trust.machine_key(),)


def test_another_key_is_refused_with_the_line_to_add(trust: Trust, archive: Path, signers) -> None:
    mallory = signers.fingerprints["mallory"]
    with pytest.raises(TrustError, match=mallory) as caught:
        trust.verify_host_image(str(archive), signers.sign(archive, "mallory"), what="example.com/stager")
    assert str(caught.value).startswith("example.com/stager: cannot run with host privilege")
    assert caught.value.hint is not None
    assert f"trusted_host_keys: [{mallory}]" in caught.value.hint


def test_keys_trusted_for_images_are_not_for_the_host(state: str, tmp_path: Path, archive: Path, signers) -> None:
    """Nothing but the configuration can add to them."""
    alice = signers.fingerprints["alice"]
    for place in ("root.d", "host.d"):
        signers.put("alice", tmp_path / "keys", place)
    signature = signers.sign(archive, "alice")
    with pytest.raises(TrustError, match="does not list"):
        Trust((), (str(tmp_path / "keys"),), state).verify_host_image(str(archive), signature)
    listed = Trust((alice.lower(),), (str(tmp_path / "keys"),), state)
    assert listed.verify_host_image(str(archive), signature) == alice


def test_listing_keys_leaves_this_machines_out_unless_listed(state: str, archive: Path, signers) -> None:
    own = Trust((), (), state)
    signature = own.sign(str(archive))
    alice = signers.fingerprints["alice"]
    with pytest.raises(TrustError, match=own.machine_key()):
        Trust((alice,), (), state).verify_host_image(str(archive), signature)
    both = Trust((alice, own.machine_key()), (), state)
    assert both.verify_host_image(str(archive), signature) == own.machine_key()


def test_a_listed_key_whose_public_half_is_missing(state: str, tmp_path: Path, archive: Path, signers) -> None:
    alice, keys = signers.fingerprints["alice"], tmp_path / "keys"
    trust = Trust((alice,), (str(keys),), state)
    with pytest.raises(TrustError, match="in no keystore") as caught:
        trust.verify_host_image(str(archive), signers.sign(archive, f"{alice}!"))
    assert caught.value.hint == f"gpg --armor --export {alice} > {keys}/host.d/{alice}"
    by_sub_key = signers.sign(archive, "alice")
    with pytest.raises(TrustError, match="does not list") as caught:
        trust.verify_host_image(str(archive), by_sub_key)
    assert f"{keys}/host.d/{alice}" in str(caught.value.hint)
    signers.put("alice", keys, "host.d")
    assert trust.verify_host_image(str(archive), by_sub_key) == alice


def test_an_unsigned_or_changed_image(trust: Trust, archive: Path) -> None:
    signature = trust.sign(str(archive))
    with pytest.raises(TrustError, match=r"no signature.*host privilege"):
        trust.verify_host_image(str(archive), None)
    archive.write_bytes(b"other")
    with pytest.raises(TrustError, match=r"does not fit.*host privilege"):
        trust.verify_host_image(str(archive), signature)
