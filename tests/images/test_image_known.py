"""What is remembered of a locator only saves work: whatever is wrong with it, the image is fetched anew (S5)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kurma_core.images.locator_cache import KnownImage, LocatorCache

LINUX = "linux/amd64"


def test_kept_by_locator_and_platform(tmp_path: Path) -> None:
    known = LocatorCache(str(tmp_path / "locators"))
    assert known.get("a", LINUX) is None
    entry = KnownImage("sha512-1", "key", 100.0, 10, "https")
    known.put("a", LINUX, entry)
    assert known.get("a", LINUX) == entry
    assert known.get("a", "linux/aarch64") is None
    assert known.get("b", LINUX) is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"version": 3}', b'{"version": 2, "locator": "other"}']
)
def test_damage_is_as_if_nothing_were_known(tmp_path: Path, content: bytes) -> None:
    known = LocatorCache(str(tmp_path))
    known.put("a", LINUX, KnownImage("sha512-1", None, 0.0))
    (file,) = tmp_path.iterdir()
    file.write_bytes(content)
    assert known.get("a", LINUX) is None
    assert known.images("") == set()


def test_forgotten_with_its_image(tmp_path: Path) -> None:
    known = LocatorCache(str(tmp_path))
    known.put("a", LINUX, KnownImage("sha512-1", None, 0.0))
    known.put("built:b", "", KnownImage("sha512-2", None, 0.0))
    assert known.images("built:") == {"sha512-2"}
    known.forget({"sha512-1"})
    assert known.get("a", LINUX) is None
    assert known.get("built:b", "") is not None


def test_fresh() -> None:
    entry = KnownImage("sha512-1", None, 100.0, 10)
    assert entry.fresh(105.0)
    assert not entry.fresh(110.0)
    assert not entry.fresh(99.0), "a clock that was set back proves nothing"


def test_what_a_killed_writer_left_is_swept(tmp_path: Path) -> None:
    known = LocatorCache(str(tmp_path))
    known.put("a", LINUX, KnownImage("sha512-1", None, 0.0))
    (tmp_path / "0123.999999999.tmp").write_bytes(b"{")
    (tmp_path / f"4567.{os.getpid()}.tmp").write_bytes(b"{")
    (found,) = known.sweep(dry_run=True)
    assert (found.kind, found.name, found.size) == ("leftover", "0123.999999999.tmp", 4096)
    assert known.sweep(dry_run=False) == [found]
    assert known.sweep(dry_run=False) == []
    assert (tmp_path / f"4567.{os.getpid()}.tmp").exists(), "its writer is alive"
    assert known.get("a", LINUX) is not None
