"""A5: somebody else writes to the directory while an archive is extracted to it: nothing is done outside of it."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kurma_core.errors import ArchiveError, HostError, HostileArchiveError, StoreError
from kurma_core.image_store import Limits, extract_image
from kurma_core.image_store import extractor as extraction
from kurma_core.image_store.extract_image import extract
from kurma_core.image_store.tar_entries import BLOCK, CHARACTER, DIRECTORY, FIFO, FILE, HARDLINK, SYMLINK, Entry
from tests.kit.archives import directory, everything_below, file, hardlink, image, member

pytestmark = pytest.mark.root


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "outside"
    path.mkdir(mode=0o755)
    (path / "f").write_bytes(b"untouched")
    return path


@pytest.fixture
def root(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    path = tmp_path / "root"
    path.mkdir()
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    yield path, fd
    os.close(fd)


def looks(path: Path) -> object:
    """Of a directory and all below it."""
    return everything_below(str(path)), os.stat(path).st_mode, os.stat(path).st_uid


#: What comes after the directory ``d`` was swapped for a link to one outside.
LATER = {
    "a file": Entry(b"d/evil", FILE),
    "a file that is there": Entry(b"d/f", FILE),
    "a directory": Entry(b"d/evil", DIRECTORY, mode=0o777),
    "a fifo": Entry(b"d/evil", FIFO),
    "a link": Entry(b"d/evil", SYMLINK, target=b"/"),
    "a hard link to what is there": Entry(b"h", HARDLINK, target=b"d/f"),
    "the end": Entry(b"other", FILE),
}


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("later", LATER)
def test_a_directory_is_swapped_for_a_link(
    later: str, held: bool, root: tuple[Path, int], outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is held open is where it is; any other is opened anew, by a way without links."""
    path, fd = root
    if not held:
        monkeypatch.setattr(extraction, "_OPEN", 2)
    before = looks(outside)
    entry = LATER[later]
    with extraction.Extractor(fd, lambda _: iter(()), Limits(), replace=False) as extractor:
        extractor.add(Entry(b"d", DIRECTORY, mode=0o777, uid=12, gid=34, mtime=5), [b"d"])
        extractor.add(Entry(b"d/f", FILE), [b"d", b"f"])
        for name in (b"e", b"g"):
            extractor.add(Entry(name, DIRECTORY), [name])
            extractor.add(Entry(name + b"/f", FILE), [name, b"f"])
        (path / "d").rename(path / "was")
        (path / "d").symlink_to(outside)
        with contextlib.suppress(OSError) if held else pytest.raises(OSError, match="symbolic links"):
            with contextlib.suppress(HostileArchiveError):
                extractor.add(entry, entry.name.split(b"/"))
            extractor.finish()
    assert looks(outside) == before


def test_what_somebody_has_put_there_is_not_used(root: tuple[Path, int], outside: Path) -> None:
    path, fd = root
    (path / "d").mkdir()
    (path / "f").symlink_to(outside / "f")
    (path / "l").symlink_to(outside)
    before = looks(outside)
    with extraction.Extractor(fd, lambda _: iter(()), Limits(), replace=False) as extractor:
        for entry in (Entry(b"d/f", FILE), Entry(b"f", FILE), Entry(b"l", DIRECTORY), Entry(b"l/x", FILE)):
            with pytest.raises(HostileArchiveError):
                extractor.add(entry, entry.name.split(b"/"))
    assert looks(outside) == before
    assert os.listdir(path / "d") == []


@pytest.mark.parametrize("kind", [FIFO, CHARACTER, BLOCK])
@pytest.mark.parametrize("moment", ["mknod", "chown"])
def test_a_node_is_swapped_for_a_link(
    kind: str, moment: str, root: tuple[Path, int], outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mode, owner and time are not set through it."""
    path, fd = root
    real = getattr(os, moment)

    def swapped(name: bytes, *words: object, **more: object) -> None:
        real(name, *words, **more)
        os.unlink(path / "n")
        os.symlink(outside / "f", path / "n")

    monkeypatch.setattr(os, moment, swapped)
    before = os.lstat(outside / "f")
    with extraction.Extractor(fd, lambda _: iter(()), Limits(), replace=False) as extractor:
        with pytest.raises(HostileArchiveError, match="something else was put in its place"):
            extractor.add(Entry(b"n", kind, mode=0o666, uid=7, mtime=1, device=(1, 3)), [b"n"])
    assert os.lstat(outside / "f") == before


def test_attributes_of_a_link_are_its_own(root: tuple[Path, int], outside: Path) -> None:
    path, fd = root
    link = Entry(
        b"l", SYMLINK, target=os.fsencode(outside / "f"), attributes={b"trusted.note": b"x"}, uid=7, mtime=1
    )
    before = os.lstat(outside / "f")
    with extraction.Extractor(fd, lambda _: iter(()), Limits(), replace=False) as extractor:
        extractor.add(link, [b"l"])
        extractor.finish()
    assert os.getxattr(path / "l", "trusted.note", follow_symlinks=False) == b"x"
    assert os.listxattr(outside / "f") == []
    assert os.lstat(outside / "f") == before


SWAPPING = """
import contextlib, os, sys
root, outside = sys.argv[1:]
print("ready", flush=True)
while True:
    for name in ("a", "b", "n", "f"):
        with contextlib.suppress(OSError):
            os.rename(f"{root}/{name}", f"{root}/was-{name}")
            os.symlink(outside if name in "ab" else f"{outside}/f", f"{root}/{name}")
        with contextlib.suppress(OSError):
            os.unlink(f"{root}/{name}")
            os.rename(f"{root}/was-{name}", f"{root}/{name}")
"""


@pytest.mark.full
def test_another_process_swaps_links_in(tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root, which no access rights keep out."""
    monkeypatch.setattr(extraction, "_OPEN", 2)
    members = [member("rootfs/n", tarfile.FIFOTYPE, mode=0o666, uid=7), file("rootfs/f", mode=0o4755, uid=7)]
    for one in range(30):
        members += [file(f"rootfs/a/{one}"), file(f"rootfs/b/{one}"), directory(f"rootfs/a/d{one}", uid=7)]
        members += [hardlink(f"rootfs/b/h{one}", f"rootfs/a/{one}")]
    archive = image(*members)
    target = tmp_path / "target"
    target.mkdir()
    before = looks(outside)
    command = [sys.executable, "-c", SWAPPING, str(target), str(outside)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as swapping:
        try:
            assert swapping.stdout is not None
            assert swapping.stdout.readline() == b"ready\n"
            outcomes = set()
            end = time.monotonic() + 2
            while time.monotonic() < end:
                try:
                    extract(io.BytesIO(archive), str(target), Limits())
                    outcomes.add("done")
                except (ArchiveError, HostError, StoreError, OSError) as error:
                    outcomes.add(type(error).__name__)
                for name in os.listdir(target):
                    # What the other one renames meanwhile goes the next time.
                    subprocess.run(["rm", "-rf", f"{target}/{name}"], check=False, stderr=subprocess.DEVNULL)
        finally:
            swapping.kill()
    assert outcomes & {"HostileArchiveError", "StoreError"}, "the race was not run"
    assert looks(outside) == before
    assert [os.lstat(outside / "f").st_uid, os.lstat(outside / "f").st_nlink] == [0, 1]


def test_the_directorys_owner_is_kept_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is theirs again; what they have put there meanwhile is found."""
    target = tmp_path / "target"
    target.mkdir(mode=0o755)
    os.chown(target, 12, 34)
    seen = []

    class Watched(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            seen.append((os.stat(target).st_uid, stat.S_IMODE(os.stat(target).st_mode)))
            return super().read(size)

    with pytest.raises(ArchiveError):
        extract(Watched(image(file("rootfs/f"))[:600]), str(target), Limits())
    assert set(seen) == {(0, 0o700)}
    assert (os.stat(target).st_uid, stat.S_IMODE(os.stat(target).st_mode)) == (12, 0o755)
    ours = extract_image._make_ours

    def late(root: int) -> None:
        (target / "theirs").write_text("x")
        ours(root)

    monkeypatch.setattr(extract_image, "_make_ours", late)
    with pytest.raises(HostError, match="not empty"):
        extract(io.BytesIO(image()), str(target), Limits())
    assert (os.stat(target).st_uid, stat.S_IMODE(os.stat(target).st_mode)) == (12, 0o755)
    assert os.listdir(target) == ["theirs"]
