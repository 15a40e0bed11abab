"""A6: an image's root filesystem in a directory that somebody names: all of it, or nothing."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import stat
import struct
from pathlib import Path

import pytest
from kurma_testing.trees import read_tree, shared_names

from kurma_core.appc.image import ImageManifest
from kurma_core.errors import (
    ArchiveError,
    HostError,
    HostileArchiveError,
    ImageNotFoundError,
    ManifestError,
    StoreError,
)
from kurma_core.image_store import ImageStore, Limits
from kurma_core.image_store.extract_image import extract, extract_stored
from tests.kit.archives import (
    LOCAL,
    MANIFEST,
    directory,
    file,
    hardlink,
    image,
    manifest_member,
    member,
    stage_and_commit,
    symlink,
    tar,
)
from tests.kit.host import small_file_system

pytestmark = pytest.mark.root

CAPABILITY = struct.pack("<5I", 0x02000001, 1 << 10, 0, 0, 0)
#: u::rw-, u:1000:rw-, g::r--, m::rw-, o::---
ACL = struct.pack(
    "<I" + "HHI" * 5, 2, 1, 6, 2**32 - 1, 2, 6, 1000, 4, 4, 2**32 - 1, 16, 6, 2**32 - 1, 32, 0, 2**32 - 1
)
EVERYTHING = image(
    directory("rootfs/d", mode=0o1777, uid=5, gid=6),
    file("rootfs/d/setuid", b"x" * 100_000, mode=0o4755, uid=3_000_000, gid=2**31),
    file("rootfs/late", b"", pax_headers={"mtime": "1600000000.123456789"}, uid=0, gid=0),
    hardlink("rootfs/d/again", "rootfs/d/setuid"),
    symlink("rootfs/link", "../etc/passwd", uid=7, gid=7),
    member("rootfs/fifo", b"6", mode=0o620, uid=0, gid=0),
    member("rootfs/null", b"3", devmajor=1, devminor=3, mode=0o666, uid=0, gid=0),
    file("rootfs/caf\udce9", b"name", uid=0, gid=0),
    file(
        "rootfs/attributes",
        mode=0o660,
        uid=0,
        gid=0,
        pax_headers={
            "SCHILY.xattr.user.note": "v",
            "SCHILY.xattr.security.capability": CAPABILITY.decode("utf-8", "surrogateescape"),
            "SCHILY.acl.access": "user::rw-,user:1000:rw-,group::r--,mask::rw-,other::---",
        },
    ),
)


def snapshot(top: Path | str) -> object:
    """Everything about a tree but which inodes it is made of."""
    whole = read_tree(str(top))
    shared = {frozenset(names) for names in shared_names(whole)}
    return shared, whole


def test_everything_is_kept(store: ImageStore, tmp_path: Path) -> None:
    """From an archive and from the store: the tree that the store has, and that the archive says."""
    stored = stage_and_commit(store, gzip.compress(EVERYTHING))
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    os.mkdir(second, 0o755)
    assert extract(io.BytesIO(EVERYTHING), first, Limits()) == stored.id
    extract_stored(store, stored.id, second)
    there = snapshot(store.layers(stored.id)[0].path)
    assert snapshot(first) == snapshot(second) == there
    root = Path(first)
    status = (root / "d/setuid").lstat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, status.st_nlink) == (
        0o4755,
        3_000_000,
        2**31,
        2,
    )
    assert (root / "d/setuid").samefile(root / "d/again")
    assert (root / "late").stat().st_mtime_ns == 1_600_000_000_123_456_789
    assert (stat.S_IMODE((root / "d").stat().st_mode), (root / "d").stat().st_uid) == (0o1777, 5)
    assert (os.readlink(root / "link"), (root / "link").lstat().st_uid) == ("../etc/passwd", 7)
    assert stat.S_ISFIFO((root / "fifo").stat().st_mode)
    assert (root / "null").stat().st_rdev == os.makedev(1, 3)
    assert b"caf\xe9" in os.listdir(os.fsencode(first))
    assert os.getxattr(root / "attributes", "user.note") == b"v"
    assert os.getxattr(root / "attributes", "security.capability") == CAPABILITY
    assert os.getxattr(root / "attributes", "system.posix_acl_access") == ACL


def test_of_an_image_made_of_layers(store: ImageStore, tmp_path: Path) -> None:
    layers = (
        tar([directory("d"), file("d/gone"), file("d/stays", b"x" * 300_000)]),
        tar([directory("d"), file("d/.wh.gone"), file("new")]),
    )
    keys = [
        store.add_layer(io.BytesIO(content), f"sha256:{hashlib.sha256(content).hexdigest()}") for content in layers
    ]
    stored = store.add_layered(ImageManifest.parse(MANIFEST), tuple(keys), LOCAL)
    extract_stored(store, stored.id, str(tmp_path / "out"))
    assert sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*")) == [
        "d",
        "d/stays",
        "new",
    ]
    # One that stops in the middle ends the other side, too.
    store.limits = Limits(total_size=100_000)
    with pytest.raises(HostileArchiveError):
        extract_stored(store, stored.id, str(tmp_path / "more"))
    store.limits = Limits()
    with open(store.layers(stored.id)[0].path + "/d/stays", "ab") as changed:
        changed.write(b"more")
    with pytest.raises(StoreError, match="damaged"):
        extract_stored(store, stored.id, str(tmp_path / "more"))
    assert not (tmp_path / "more").exists()


def test_a_damaged_image_is_not_handed_out(store: ImageStore, tmp_path: Path) -> None:
    stored = stage_and_commit(store, EVERYTHING)
    archive = store.archive_path(stored.id)
    assert archive is not None
    Path(archive).write_bytes(image(file("rootfs/other")))
    with pytest.raises(StoreError, match="damaged: what was extracted"):
        extract_stored(store, stored.id, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    with pytest.raises(ImageNotFoundError):
        extract_stored(store, "sha512-" + "0" * 128, str(tmp_path / "out"))


def test_only_into_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    for target, words in (("full", "not empty"), ("file", "not a directory"), ("no/where", "no such file")):
        with pytest.raises(HostError, match=f"{target}: cannot be extracted to: .*{words}"):
            extract(io.BytesIO(EVERYTHING), str(tmp_path / target), Limits())
    assert sorted(os.listdir(tmp_path)) == ["file", "full"]
    assert os.listdir(tmp_path / "full") == ["file"]


HOSTILE = {
    "truncated": (EVERYTHING[:-2048], ArchiveError),
    "through a link": (image(symlink("rootfs/a", "/etc"), file("rootfs/a/passwd")), HostileArchiveError),
    "upwards": (image(file("rootfs/../../evil")), HostileArchiveError),
    "no manifest": (tar([directory("rootfs", mode=0o700), file("rootfs/f")]), ArchiveError),
    "a bad manifest": (
        tar([directory("rootfs"), file("rootfs/f"), directory("rootfs/d", mode=0), manifest_member(name="")]),
        ManifestError,
    ),
    "more after the end": (EVERYTHING + b"more" * 128, ArchiveError),
    "an attribute of the root": (
        tar([directory("rootfs", mode=0o4711, pax_headers={"SCHILY.xattr.user.x": "y"}), file("rootfs/f")]),
        ArchiveError,
    ),
}


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("case", HOSTILE)
def test_what_fails_leaves_nothing(case: str, there: bool, tmp_path: Path) -> None:
    archive, error = HOSTILE[case]
    target = tmp_path / "out"
    if there:
        target.mkdir(mode=0o750)
        os.chown(target, 12, 34)
    before = snapshot(target) if there else None
    with pytest.raises(error):
        extract(io.BytesIO(archive), str(target), Limits())
    assert os.listdir(tmp_path) == (["out"] if there else [])
    assert not there or snapshot(target) == before


def test_a_full_disk(tmp_path: Path) -> None:
    with small_file_system(tmp_path / "small", "size=64k") as small:
        with pytest.raises(HostError, match=r"out: cannot be extracted to: no space"):
            extract(io.BytesIO(EVERYTHING), f"{small}/out", Limits())
        assert os.listdir(small) == []
