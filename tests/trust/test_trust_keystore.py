"""Which keys may sign which images (K1, K2, K4)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kurma_core.errors import TrustError
from kurma_core.trust import Trust, keystore

KEYS = {name: name * 40 for name in "ABCDEF"}


@pytest.fixture
def system(tmp_path: Path) -> Path:
    return tmp_path / "usr"


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return tmp_path / "etc"


@pytest.fixture
def trust(system: Path, local: Path, tmp_path: Path) -> Trust:
    return Trust((), (str(system), str(local)), str(tmp_path / "state"))


def put(directory: Path, place: str, name: str, content: str = "key") -> Path:
    path = directory / place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def test_no_keystore_no_keys(trust: Trust) -> None:
    assert trust.keys_for("example.com/app") == {}


def test_root_keys_sign_everything_prefix_keys_their_own(trust: Trust, system: Path, local: Path) -> None:
    put(system, "root.d", KEYS["A"])
    put(system, "prefix.d/example.com", KEYS["B"].lower())
    put(local, "prefix.d/example.com/busybox", KEYS["C"])
    put(local, "prefix.d/example.org", KEYS["D"])
    put(local, "host.d", KEYS["E"])
    assert set(trust.keys_for("example.com/busybox")) == {KEYS["A"], KEYS["B"], KEYS["C"]}
    assert set(trust.keys_for("example.com/busybox/small")) == {KEYS["A"], KEYS["B"], KEYS["C"]}
    assert set(trust.keys_for("example.com")) == {KEYS["A"], KEYS["B"]}
    assert set(trust.keys_for("example.net/app")) == {KEYS["A"]}


def test_a_prefix_ends_where_a_component_ends(trust: Trust, local: Path) -> None:
    put(local, "prefix.d/example.com/busy", KEYS["A"])
    assert trust.keys_for("example.com/busybox") == {}
    assert trust.keys_for("example.community/busy") == {}
    assert set(trust.keys_for("example.com/busy")) == set(trust.keys_for("example.com/busy/x")) == {KEYS["A"]}


def test_an_empty_local_file_masks_a_system_key(trust: Trust, system: Path, local: Path) -> None:
    put(system, "prefix.d/example.com", KEYS["A"])
    put(system, "root.d", KEYS["B"])
    put(local, "prefix.d/example.com", KEYS["A"], "")
    put(local, "prefix.d/example.com", KEYS["B"], "")
    assert set(trust.keys_for("example.com/app")) == {KEYS["B"]}, "a mask holds at its own place"
    put(local, "root.d", KEYS["B"], "")
    assert trust.keys_for("example.com/app") == {}


def test_a_local_key_replaces_a_system_key(trust: Trust, system: Path, local: Path) -> None:
    put(system, "root.d", KEYS["A"])
    path = put(local, "root.d", KEYS["A"], "renewed")
    assert trust.keys_for("x") == {KEYS["A"]: (str(path),)}


def test_a_key_at_two_places_has_two_files(trust: Trust, system: Path, local: Path) -> None:
    one, other = put(system, "root.d", KEYS["A"]), put(local, "prefix.d/a", KEYS["A"])
    assert trust.keys_for("a/b") == {KEYS["A"]: (str(one), str(other))}


@pytest.mark.parametrize("target", ["/dev/null", "/nonexistent"])
def test_a_link_to_nothing_masks_too(trust: Trust, system: Path, local: Path, target: str) -> None:
    put(system, "root.d", KEYS["A"])
    (local / "root.d").mkdir(parents=True)
    (local / "root.d" / KEYS["A"]).symlink_to(target)
    assert trust.keys_for("x") == {}


@pytest.mark.parametrize("which", ["", "prefix.d", "prefix.d/a", f"prefix.d/a/{KEYS['A']}"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_where_others_may_write_nothing_is_trusted(trust: Trust, local: Path, which: str, mode: int) -> None:
    put(local, "prefix.d/a", KEYS["A"])
    path = local / which
    path.chmod(path.stat().st_mode | mode)
    with pytest.raises(TrustError, match="users other than root can write it") as caught:
        trust.keys_for("a/b")
    assert f"chmod go-w {local / which}".rstrip("/") in (caught.value.hint or "")


def test_a_link_leads_to_what_others_may_write(trust: Trust, local: Path, tmp_path: Path) -> None:
    elsewhere = put(tmp_path / "elsewhere", "x", "key")
    elsewhere.chmod(0o666)
    (local / "root.d").mkdir(parents=True)
    (local / "root.d" / KEYS["A"]).symlink_to(elsewhere)
    with pytest.raises(TrustError, match="users other than root can write it"):
        trust.keys_for("a")


@pytest.mark.root
def test_a_strangers_file_is_no_key_of_ours(trust: Trust, local: Path) -> None:
    os.chown(put(local, "root.d", KEYS["A"]), 12345, 0)
    with pytest.raises(TrustError, match="owner 12345"):
        trust.keys_for("a")


def test_what_is_no_key_is_left_alone(trust: Trust, local: Path) -> None:
    put(local, "root.d", "README")
    put(local, "root.d", KEYS["A"] + ".asc")
    (local / "root.d" / KEYS["B"]).mkdir()
    assert trust.keys_for("x") == {}


@pytest.mark.parametrize("name", ["..", "../root", "example.com/../other", "/etc", "a//b", ""])
def test_names_lead_nowhere(trust: Trust, local: Path, name: str) -> None:
    put(local, "prefix.d", KEYS["A"])
    put(local, "prefix.d/other", KEYS["B"])
    put(local, "elsewhere", KEYS["C"])
    assert trust.keys_for(name) == {}


@pytest.mark.parametrize("name", ["example.com/" + "a" * 300, "/".join(["abcdefgh"] * 500)])
def test_a_name_too_long_for_directories(trust: Trust, local: Path, name: str) -> None:
    """No key can be for it alone; one for all images is."""
    put(local, "root.d", KEYS["A"])
    put(local, f"prefix.d/{name.split('/')[0]}", KEYS["B"])
    assert set(trust.keys_for(name)) == {KEYS["A"]}
    with pytest.raises(TrustError, match="no prefix of an image's name"):
        keystore.place_of(name)


@pytest.mark.parametrize("which", ["", "root.d"])
def test_a_keystore_that_is_a_file(trust: Trust, local: Path, which: str) -> None:
    place = local / which
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("x")
    with pytest.raises(TrustError, match=f"cannot read the keystore {place}: not a directory"):
        trust.keys_for("a/b")


def test_a_file_in_a_prefixs_place(trust: Trust, local: Path) -> None:
    put(local, "prefix.d/a", KEYS["A"])
    (local / "prefix.d/a/b").write_text("no key")
    assert set(trust.keys_for("a/b")) == {KEYS["A"]}
