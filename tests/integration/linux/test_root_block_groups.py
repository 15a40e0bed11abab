"""What many files are made in is spread over an ext4 file system: pods, and images that are put into the store."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kurma_stager_rkt.pod_directories import Places

from kurma_core.image_store.durable import WorkDirectory
from kurma_core.image_store.store import ImageStore
from kurma_core.linux.files import spread
from kurma_core.pods.record.pod_store import PodStore

pytestmark = pytest.mark.root

_GROUPS = 16


@pytest.fixture
def top(tmp_path: Path) -> Iterator[Path]:
    """An ext4 of 16 block groups."""
    image, top = tmp_path / "image", tmp_path / "top"
    with image.open("wb") as out:
        out.truncate(_GROUPS * 8 << 20)
    subprocess.run(
        ["mkfs.ext4", "-q", "-b", "1024", "-g", "8192", "-O", "^flex_bg,^resize_inode", image], check=True
    )
    top.mkdir()
    subprocess.run(["mount", "-o", "loop", image, top], check=True)
    try:
        yield top
    finally:
        subprocess.run(["umount", top], check=True)


def group(path: str) -> int:
    """The block group of its inode."""
    status = os.statvfs(path)
    return (os.stat(path).st_ino - 1) * _GROUPS // status.f_files


def pods(top: Path) -> str:
    directory, lock = PodStore(str(top)).reserve(str(uuid.uuid4()))
    os.close(lock)
    return directory.path


def pods_of_rkt(top: Path) -> str:
    place = Places(str(top)).make(str(uuid.uuid4()))
    path: str = place.path
    place.close()
    return path


def layers(top: Path) -> str:
    store = ImageStore(str(top))
    store.prepare()
    with WorkDirectory(store.path("tmp")) as work:
        kept = f"{work.path}-kept"
        os.rename(work.path, kept)
    return kept


@pytest.mark.parametrize("make", [pods, pods_of_rkt, layers])
def test_each_has_a_block_group_of_its_own(top: Path, make: Callable[[Path], str]) -> None:
    made = [make(top / "state") for _ in range(_GROUPS)]
    assert len({group(path) for path in made}) > _GROUPS // 4


def test_what_is_made_in_it_stays_together(top: Path) -> None:
    path = pods(top / "state")
    for number in range(20):
        (Path(path) / str(number)).touch()
    assert {group(f"{path}/{number}") for number in range(20)} == {group(path)}


def test_directories_of_one_that_is_not_spread_stay_with_it(top: Path) -> None:
    """Else the others would show nothing."""
    (top / "one").mkdir()
    for number in range(_GROUPS):
        (top / "one" / str(number)).mkdir()
    assert len({group(str(path)) for path in (top / "one").iterdir()}) == 1


def test_other_file_systems_have_none(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "kurma-test", tmp_path], check=True)
    try:
        spread(str(tmp_path))
        spread(str(tmp_path / "missing"))
        (tmp_path / "file").touch()
        spread(str(tmp_path / "file"))
    finally:
        subprocess.run(["umount", tmp_path], check=True)
