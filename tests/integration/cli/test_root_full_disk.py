"""A state directory on a disk without one free block, or file: room can be made all the same (S1, S3)."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.archives import file, image

pytestmark = [pytest.mark.root, pytest.mark.full]

IMAGES = 2


def ext4(place: Path) -> tuple[str, ...]:
    disk = f"{place}.disk"
    with open(disk, "wb") as out:
        out.truncate(16 << 20)
    # Few files, so that these run out, too; nothing put aside for root.
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-N", "256", "-m", "0", disk], check=True)
    return ("-o", "loop", disk)


DISKS = {
    "ext4": ext4,
    "tmpfs": lambda _: ("-t", "tmpfs", "-o", "size=8m,nr_inodes=256", "tmpfs"),
}


@pytest.fixture(params=DISKS)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", *DISKS[request.param](place), str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.fixture
def stored(kurma: Any, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of images in a store on that disk."""
    monkeypatch.setitem(kurma.environment, "KURMA_DIR", str(disk / "state"))
    names = [f"example.com/image{number}" for number in range(IMAGES)]
    for name in names:
        path = tmp_path / "image.aci"
        path.write_bytes(image(*[file(f"rootfs/f{one}", os.urandom(9000)) for one in range(5)], name=name))
        kurma.out("image", "fetch", str(path))
        kurma.out("image", "render", "--renderer", "copy", name)
    return names


def fill(disk: Path, what: str) -> None:
    """To the last block, or the last inode; directories have no entry to spare but those that they have."""
    with contextlib.suppress(OSError):
        if what == "files":
            for number in range(10_000):
                os.close(os.open(f"{disk}/filler{number}", os.O_CREAT | os.O_WRONLY))
        with open(f"{disk}/filler", "ab", buffering=0) as out:
            while True:
                out.write(bytes(1024))
    with pytest.raises(OSError, match="No space left"):
        _one_more(disk, what)


def _one_more(disk: Path, what: str) -> None:
    with open(f"{disk}/{'more' if what == 'files' else 'filler'}", "ab", buffering=0) as out:
        out.write(bytes(1))


@pytest.mark.parametrize("what", ["blocks", "files"])
def test_room_can_be_made(kurma: Any, disk: Path, stored: list[str], what: str) -> None:
    state = disk / "state" / "images"
    fill(disk, what)
    first, *others = stored
    kurma.out("image", "rm", first)
    assert os.listdir(state / "tmp") == []
    assert len(os.listdir(state / "images")) == len(os.listdir(state / "archives")) == IMAGES - 1
    assert {len(os.listdir(state / name)) for name in ("layers", "trees")} == {IMAGES - 1}
    fill(disk, what)
    for name in others:
        kurma.out("image", "verify", name)
    report = kurma.out("image", "gc", "--grace-period", "0s")
    assert sum(line.startswith("image ") for line in report.splitlines()) == IMAGES - 1
    for name in ("tmp", "images", "archives", "layers", "trees"):
        assert os.listdir(state / name) == [], name


def test_another_disk_is_full(kurma: Any, disk: Path, tmp_path: Path) -> None:
    """It is told as such, and not as a mistake of the store's; nothing is left there."""
    path = tmp_path / "image.aci"
    path.write_bytes(
        image(*[file(f"rootfs/f{one}", os.urandom(9000)) for one in range(5)], name="example.com/away")
    )
    kurma.out("image", "fetch", str(path))
    fill(disk, "blocks")
    before = sorted(os.listdir(disk))
    for words in (
        ("export", "example.com/away", f"{disk}/out.aci"),
        ("extract", "example.com/away", f"{disk}/out"),
    ):
        done = kurma("image", *words)
        assert done.returncode == 125
        assert done.stderr.startswith(f"kurma: {words[2]}: cannot be ")
        assert "no space left on device" in done.stderr
        assert "image gc" not in done.stderr
    assert sorted(os.listdir(disk)) == before


def test_a_stager_on_a_full_disk(kurma: Any, disk: Path, stored: list[str]) -> None:
    assert stored
    fill(disk, "blocks")
    done = kurma("stager", "build", "default")
    assert done.returncode == 125
    # The plugin meets it, or the core once the plugin is done.
    assert f"{disk}/state/images" in done.stderr
    assert "no space left" in done.stderr.lower()
    assert "make room" in done.stderr
