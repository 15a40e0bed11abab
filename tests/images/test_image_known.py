"""What is remembered of a locator only saves work: whatever is wrong with it, the image is fetched anew (S5)."""

from __future__ import annotations

from pathlib import Path

import pytest

from kurma_core.images.known import Known, KnownImages

LINUX = "linux/amd64"


def test_kept_by_locator_and_platform(tmp_path: Path) -> None:
    known = KnownImages(str(tmp_path / "locators"))
    assert known.get("a", LINUX) is None
    entry = Known("sha512-1", "key", 100.0, 10)
    known.put("a", LINUX, entry)
    assert known.get("a", LINUX) == entry
    assert known.get("a", "linux/aarch64") is None
    assert known.get("b", LINUX) is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"version": 2}', b'{"version": 1, "locator": "other"}']
)
def test_damage_is_as_if_nothing_were_known(tmp_path: Path, content: bytes) -> None:
    known = KnownImages(str(tmp_path))
    known.put("a", LINUX, Known("sha512-1", None, 0.0))
    (file,) = tmp_path.iterdir()
    file.write_bytes(content)
    assert known.get("a", LINUX) is None
    assert known.images("") == set()


def test_forgotten_with_its_image(tmp_path: Path) -> None:
    known = KnownImages(str(tmp_path))
    known.put("a", LINUX, Known("sha512-1", None, 0.0))
    known.put("built:b", "", Known("sha512-2", None, 0.0))
    assert known.images("built:") == {"sha512-2"}
    known.forget("sha512-1")
    assert known.get("a", LINUX) is None
    assert known.get("built:b", "") is not None


def test_fresh() -> None:
    entry = Known("sha512-1", None, 100.0, 10)
    assert entry.fresh(105.0)
    assert not entry.fresh(110.0)
    assert not entry.fresh(99.0), "a clock that was set back proves nothing"
