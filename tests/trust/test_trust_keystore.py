"""Which keys may sign which images (K1, K2, K4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from kurma_core.trust import Trust

KEYS = {name: name * 40 for name in "ABCDEF"}


@pytest.fixture
def system(tmp_path: Path) -> Path:
    return tmp_path / "usr"


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return tmp_path / "etc"


@pytest.fixture
def trust(system: Path, local: Path, tmp_path: Path) -> Trust:
    return Trust({"docker": "digest"}, (), (str(system), str(local)), str(tmp_path / "state"))


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
    assert trust.keys_for("x") == {KEYS["A"]: str(path)}


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


def test_policy(trust: Trust) -> None:
    assert trust.policy("docker") == "digest"
    assert trust.policy("ipfs") == "signed"
