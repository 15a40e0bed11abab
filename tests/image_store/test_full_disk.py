"""S5: a disk that is full at any stage: one clear line with what to do, nothing lost, nothing half there."""

from __future__ import annotations

from pathlib import Path

import pytest

from kurma_core.errors import StoreError
from kurma_core.image_store import ImageStore
from kurma_core.images.locator_cache import KnownImage, LocatorCache
from tests.kit.archives import file, image, stage_and_commit
from tests.kit.host import small_file_system

pytestmark = pytest.mark.root


def told(caught: pytest.ExceptionInfo[StoreError]) -> None:
    assert "no space left on device" in caught.value.message
    assert "\n" not in caught.value.message
    assert "make room" in (caught.value.hint or "")


def test_an_image_comes_in_on_a_disk_with_ever_more_room(tmp_path: Path) -> None:
    """Full in turn for the archive, the files, the records; by bytes, then by inodes."""
    first = image(file("rootfs/f", b"first"))
    second = image(*[file(f"rootfs/f{number}", b"x" * 9000) for number in range(8)])
    for unit, sizes in (("size=%dk", range(60, 500, 16)), ("nr_inodes=%d", range(24, 60))):
        failed = 0
        for size in sizes:
            with small_file_system(tmp_path / "disk", unit % size) as place:
                store = ImageStore(f"{place}/images")
                try:
                    kept = stage_and_commit(store, first).id
                except StoreError:
                    continue  # not even the first has room
                try:
                    stage_and_commit(store, second)
                except StoreError:
                    with pytest.raises(StoreError) as caught:
                        stage_and_commit(store, second)
                    told(caught)
                    failed += 1
                    assert store.ids() == (kept,)
                    assert store.gc({kept}, -1).removed == ()
                    store.verify(kept, deep=True)
                    store.remove(kept)
                    assert store.ids() == (), "an image can be removed from a full disk"
                else:
                    break
        else:
            pytest.fail("it never had room enough")
        assert failed > 3, unit


def test_what_is_remembered_of_a_locator(tmp_path: Path) -> None:
    with small_file_system(tmp_path / "disk", "nr_inodes=3") as place:
        known = LocatorCache(f"{place}/locators")
        known.put("a", "", KnownImage("sha512-1", None, 0.0))
        with pytest.raises(StoreError) as caught:
            known.put("b", "", KnownImage("sha512-2", None, 0.0))
        told(caught)
        assert known.get("a", "") is not None
