"""S3: a sweep frees what nothing needs, after a grace period, and says what and how much."""

from __future__ import annotations

import os
import time

import pytest

from kurma_core.image_store import ImageStore
from kurma_core.image_store.documents import timestamp
from kurma_core.value import replace
from tests.image_store.making import LOCAL, file, image, stage_and_commit

NOW = replace(LOCAL, fetched_at=timestamp(time.time()))


@pytest.fixture
def store(tmp_path: object) -> ImageStore:
    return ImageStore(f"{tmp_path}/images")


def usage(store: ImageStore) -> int:
    from kurma_core.image_store.durable import disk_usage

    return disk_usage(store.root)


def test_used_images_stay(store: ImageStore) -> None:
    kept = stage_and_commit(store, image(file("rootfs/a", b"a" * 100_000)))
    gone = stage_and_commit(store, image(file("rootfs/b", b"b" * 100_000)))
    before = usage(store)
    report = store.gc({kept.id}, 0, dry_run=True)
    assert [image.id for image in store.list()] == sorted([kept.id, gone.id])
    assert usage(store) == before
    done = store.gc({kept.id}, 0)
    assert (done.removed, done.freed) == (report.removed, report.freed)
    assert report.dry_run
    assert {(removal.kind, removal.name) for removal in done.removed} == {
        ("image", gone.id),
        ("archive", f"{gone.id}.aci"),
        ("layer", gone.id),
    }
    assert done.freed > 200_000
    assert before - usage(store) == done.freed
    assert [image.id for image in store.list()] == [kept.id]
    store.verify(kept.id, deep=True)


def test_grace(store: ImageStore) -> None:
    fresh = stage_and_commit(store, image(file("rootfs/a")), NOW)
    used = stage_and_commit(store, image(file("rootfs/b")))
    store.touch(used.id)
    old = stage_and_commit(store, image(file("rootfs/c")))
    report = store.gc((), 3600)
    assert [removal.name for removal in report.removed if removal.kind == "image"] == [old.id]
    assert {image.id for image in store.list()} == {fresh.id, used.id}


def test_trees_and_leftovers(store: ImageStore) -> None:
    tree = store.cache.tree("key", lambda path: os.mkdir(f"{path}/d"))
    assert os.listdir(tree.path) == ["d"]
    assert store.cache.tree("key", lambda path: pytest.fail("built twice")) == tree
    os.mkdir(store.path("tmp", "999999999-dead"))
    with open(store.path("partial", "download"), "wb") as partial:
        partial.write(b"half")
    assert store.gc({tree.id}, 3600).removed[0].kind == "leftover"
    assert os.path.isdir(tree.path)
    os.utime(store.path("trees", tree.id, "tree.json"), (1, 1))
    os.utime(store.path("partial", "download"), (1, 1))
    assert store.gc({tree.id}, 3600).removed[0].kind == "download"
    assert [removal.name for removal in store.gc((), 3600).removed] == [tree.id]
    assert os.listdir(store.path("trees")) == []


def test_a_tree_whose_building_fails_is_not_kept(store: ImageStore) -> None:
    with pytest.raises(ZeroDivisionError):
        store.cache.tree("key", lambda path: 1 // 0)  # type: ignore[arg-type, return-value]
    assert os.listdir(store.path("trees")) == []
    assert os.listdir(store.path("tmp")) == []
    assert store.cache.tree("key", lambda path: None).id.startswith("sha512-")


def test_remove(store: ImageStore) -> None:
    one = stage_and_commit(store, image(file("rootfs/a")))
    other = stage_and_commit(store, image(file("rootfs/b")))
    store.remove(one.id)
    assert [image.id for image in store.list()] == [other.id]
    assert os.listdir(store.path("archives")) == [f"{other.id}.aci"]
    assert os.listdir(store.path("layers")) == [other.id]
    assert os.listdir(store.path("tmp")) == []
