"""S1: the power is cut at every step: what the disk held then is mounted again, and looked at."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kurma_core.appc.image import ImageManifest
from kurma_core.image_store import ImageStore
from kurma_core.value import replace
from tests.kit.archives import LOCAL, file, image, stage_and_commit, tar

pytestmark = [pytest.mark.root, pytest.mark.full]

FIRST = image(file("rootfs/a", b"a" * 70_000), name="example.com/first")
SECOND = image(file("rootfs/b", b"b" * 70_000), name="example.com/second")
LAYER = tar([file("c", b"c" * 30_000)])


def tree(store: ImageStore) -> None:
    store.cache.tree("key", lambda path: Path(path, "f").write_bytes(b"f" * 10_000))


def layered(store: ImageStore) -> None:
    key = store.add_layer(io.BytesIO(LAYER), f"sha256:{hashlib.sha256(LAYER).hexdigest()}")
    document = {"acKind": "ImageManifest", "acVersion": "0.8.11", "name": "example.com/layered"}
    store.add_layered(ImageManifest.parse(document), (key,), LOCAL)


CHANGES: dict[str, Callable[[ImageStore], object]] = {
    "an image comes in": lambda store: stage_and_commit(store, SECOND),
    "it comes in again": lambda store: stage_and_commit(store, FIRST, replace(LOCAL, locator="file:///again")),
    "an image of layers comes in": layered,
    "an image is removed": lambda store: store.remove(store.find("example.com/first").id),
    "the store is swept": lambda store: store.gc((), 0),
    "a tree is rendered": tree,
}


@contextmanager
def mounted(disk: str, place: str) -> Iterator[str]:
    """Without a commit of its own accord: what lasts is what was synced."""
    subprocess.run(["mount", "-o", "loop,commit=10000,data=ordered", disk, place], check=True)
    try:
        yield f"{place}/images"
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("change", CHANGES)
def test_the_power_is_cut(change: str, tmp_path: Path) -> None:
    disk, place = str(tmp_path / "disk"), str(tmp_path / "mounted")
    os.mkdir(place)
    with open(disk, "wb") as out:
        out.truncate(12 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-O", "^resize_inode", disk], check=True)
    cuts: list[str] = []

    def step(name: str) -> None:
        copy = str(tmp_path / f"cut-{len(cuts)}")
        shutil.copyfile(disk, copy)
        cuts.append(name)

    with mounted(disk, place) as root:
        store = ImageStore(root)
        first = stage_and_commit(store, FIRST).id
        store = ImageStore(root, step=step)
        CHANGES[change](store)
        after = set(store.ids())
        step("the end")
    assert len(cuts) > 2
    for number, name in enumerate(cuts):
        with mounted(str(tmp_path / f"cut-{number}"), place) as root:
            found = ImageStore(root)
            listed, damaged = found.scan()
            assert damaged == (), name
            for one in listed:
                found.verify(one.id, deep=True)
            ids = {one.id for one in listed}
            assert ids in ({first}, after) or "swept" in change or "removed" in change, name
            if name in ("done", "the end") and "comes in" in change:
                assert ids == after, f"lost after {name}"
                assert len(found.get(first).provenance) == (2 if "again" in change else 1)
            for each in os.listdir(found.path("trees")):
                found.verify(each, deep=True)
            found.gc(ids, -1)
            assert os.listdir(found.path("tmp")) == [], name
            stage_and_commit(found, FIRST)
            found.verify(first, deep=True)
