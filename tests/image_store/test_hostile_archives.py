"""A5: hostile archives are refused by name, leave nothing outside the target and nothing in the store."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile

import pytest

from kurma_core.errors import ArchiveError, HostileArchiveError
from kurma_core.image_store import ImageStore, Limits
from kurma_core.image_store.records import layer_key
from tests.kit.archives import (
    LOCAL,
    directory,
    everything_below,
    file,
    hardlink,
    image,
    manifest_member,
    member,
    nothing_left_behind,
    symlink,
    tar,
    validate,
)

DEEP = "/".join(["d"] * 300)

HOSTILE = {
    "dotdot": ([file("rootfs/../../evil")], "evil"),
    "dotdot inside": ([directory("rootfs/a"), file("rootfs/a/../../evil")], "evil"),
    "dotdot at the end": ([directory("rootfs/..")], ".."),
    "absolute": ([file("/evil")], "/evil"),
    "absolute rootfs": ([file("/rootfs/evil")], "/rootfs/evil"),
    "through a link to outside": ([symlink("rootfs/l", "{outside}"), file("rootfs/l/evil")], "rootfs/l/evil"),
    "through a relative link": ([symlink("rootfs/l", "../../.."), file("rootfs/l/evil")], "rootfs/l/evil"),
    "through a link to inside": (
        [directory("rootfs/d"), symlink("rootfs/l", "d"), file("rootfs/l/evil")],
        "rootfs/l/evil",
    ),
    "directory over a link": ([symlink("rootfs/l", "{outside}"), directory("rootfs/l")], "rootfs/l"),
    "file over a link": ([symlink("rootfs/l", "{outside}/target"), file("rootfs/l", b"evil")], "rootfs/l"),
    "rootfs is a link": (None, "rootfs"),
    "link swapped in": (
        [directory("rootfs/d"), file("rootfs/d/a"), symlink("rootfs/d", "{outside}"), file("rootfs/d/evil")],
        "rootfs/d",
    ),
    "hard link to outside": ([hardlink("rootfs/h", "{outside}/target")], "rootfs/h"),
    "hard link upwards": ([hardlink("rootfs/h", "rootfs/../../../target")], "rootfs/h"),
    "hard link to the manifest": ([hardlink("rootfs/h", "manifest")], "rootfs/h"),
    "hard link to another top": ([file("rootfs/f"), hardlink("rootfs/h", "other/f")], "rootfs/h"),
    "hard link through a link": (
        [symlink("rootfs/l", "{outside}"), hardlink("rootfs/h", "rootfs/l/target")],
        "rootfs/h",
    ),
    "hard link to a directory": ([directory("rootfs/d"), hardlink("rootfs/h", "rootfs/d")], "rootfs/h"),
    "hard link to itself": ([hardlink("rootfs/h", "rootfs/h")], "rootfs/h"),
    "link, then a hard link over it": (
        [file("rootfs/f"), symlink("rootfs/l", "{outside}/target"), hardlink("rootfs/l", "rootfs/f")],
        "rootfs/l",
    ),
    "beneath a file": ([file("rootfs/f"), file("rootfs/f/evil")], "rootfs/f/evil"),
    "beneath a fifo": ([member("rootfs/f", tarfile.FIFOTYPE), file("rootfs/f/evil")], "rootfs/f/evil"),
    "overlay attribute": (
        [directory("rootfs/d", pax_headers={"SCHILY.xattr.trusted.overlay.opaque": "y"})],
        "rootfs/d",
    ),
    "overlay redirect": (
        [directory("rootfs/d", pax_headers={"SCHILY.xattr.trusted.overlay.redirect": "/etc"})],
        "rootfs/d",
    ),
    "overlay attribute, encoded": (
        [directory("rootfs/d", pax_headers={"LIBARCHIVE.xattr.trusted%2eoverlay.opaque": "eQ"})],
        "rootfs/d",
    ),
    "overlay attribute for users": (
        [directory("rootfs/d", pax_headers={"SCHILY.xattr.user.overlay.opaque": "y"})],
        "rootfs/d",
    ),
    "whiteout device": ([member("rootfs/w", tarfile.CHRTYPE, devmajor=0, devminor=0)], "rootfs/w"),
    "impossible device": ([member("rootfs/w", tarfile.BLKTYPE, devmajor=70000, devminor=1)], "rootfs/w"),
    "file twice": ([file("rootfs/f"), file("rootfs/f")], "rootfs/f"),
    "file twice, spelt otherwise": ([file("rootfs/f"), file("rootfs/.//f")], "rootfs/.//f"),
    "directory twice": ([directory("rootfs/d"), directory("rootfs/d")], "rootfs/d"),
    "directory over a file": ([file("rootfs/d"), directory("rootfs/d")], "rootfs/d"),
    "manifest twice": ([manifest_member()], "manifest"),
    "manifest is a link": (None, "manifest"),
    "something else": ([file("extra")], "extra"),
    "something else, hidden": ([file("./.extra")], "extra"),
    "below the manifest": ([file("manifest/evil")], "manifest/evil"),
    "long name": ([file("rootfs/" + "n" * 300)], "nnn"),
    "long path": ([file("rootfs/" + "/".join(["n" * 200] * 25))], "nnn"),
    "deep": ([file(f"rootfs/{DEEP}/evil")], "rootfs/d/d"),
    "no name": ([file("rootfs/x", pax_headers={"path": ""}), file("", b"")], ""),
    "NUL in the name": ([file("x", pax_headers={"path": "rootfs/a\0b"})], "rootfs/a"),
    "NUL in a target": ([symlink("rootfs/l", "x", pax_headers={"linkpath": "a\0b"})], "rootfs/l"),
    "empty target": ([symlink("rootfs/l", "")], "rootfs/l"),
    "owner minus one": ([file("rootfs/f", uid=0xFFFFFFFF)], "rootfs/f"),
}


@pytest.fixture
def outside(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("outside")
    (path / "target").write_bytes(b"untouched")
    return str(path)


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> ImageStore:
    return ImageStore(str(tmp_path_factory.mktemp("state") / "images"))


def _archive(trick: str, outside: str) -> bytes:
    members, _ = HOSTILE[trick]
    if trick == "rootfs is a link":
        return tar([manifest_member(), symlink("rootfs", outside), file("rootfs/evil")])
    if trick == "manifest is a link":
        return tar([symlink("manifest", f"{outside}/target"), directory("rootfs")])
    assert members is not None
    for info, _ in members:
        info.linkname = info.linkname.replace("{outside}", outside)
    return image(*members)


@pytest.mark.parametrize("trick", HOSTILE)
def test_refused_by_name_and_nothing_left(trick: str, store: ImageStore, outside: str) -> None:
    archive = _archive(trick, outside)
    with nothing_left_behind(store, outside):
        with pytest.raises(ArchiveError) as caught, store.stage_archive(io.BytesIO(archive)):
            pytest.fail("a hostile archive was staged")
    assert "\n" not in str(caught.value)
    # Out of range already for the reader of extended headers, which is not the archive's entry's fault alone.
    if trick != "owner minus one":
        assert isinstance(caught.value, HostileArchiveError)
        assert HOSTILE[trick][1] in str(caught.value.data["entry"])
        assert str(caught.value.data["entry"]) in str(caught.value)


@pytest.mark.parametrize("owner", [{"uid": 0xFFFFFFFF}, {"gid": 0xFFFFFFFF}, {"uid": 1 << 40}])
def test_owners_out_of_range(owner: dict[str, int], store: ImageStore, outside: str) -> None:
    """In a header's own number; to the kernel, -1 would be: leave it as it is."""
    archive = image(file("rootfs/f", **owner), format=tarfile.GNU_FORMAT)
    with (
        nothing_left_behind(store, outside),
        pytest.raises(HostileArchiveError, match="its owner is out of range"),
    ):
        with store.stage_archive(io.BytesIO(archive)):
            pytest.fail("a hostile archive was staged")


def test_a_hard_link_to_a_link_is_that_link(store: ImageStore, outside: str) -> None:
    """And no other name of what it points at."""
    target = f"{outside}/target"
    archive = image(symlink("rootfs/l", target, mtime=7), hardlink("rootfs/h", "rootfs/l"))
    before = os.stat(target)
    with store.stage_archive(io.BytesIO(archive)) as staged:
        record = staged.commit(LOCAL)
    path = store.layers(record.id)[0].path
    assert os.path.samestat(os.lstat(f"{path}/l"), os.lstat(f"{path}/h"))
    assert (os.readlink(f"{path}/h"), os.lstat(f"{path}/h").st_mtime) == (target, 7)
    after = os.stat(target)
    assert (after.st_nlink, after.st_mtime_ns, after.st_uid) == (1, before.st_mtime_ns, before.st_uid)


@pytest.mark.parametrize("trick", HOSTILE)
def test_validate_refuses_the_same(trick: str, outside: str) -> None:
    with pytest.raises(ArchiveError):
        validate(io.BytesIO(_archive(trick, outside)))


LAYER_TRICKS = {
    "dotdot": [file("../evil")],
    "dotdot after a slash": [file("/../evil")],
    "through a link": [symlink("l", "{outside}"), file("l/evil")],
    "link swapped in": [
        directory("d"),
        file("d/a"),
        symlink("d", "{outside}"),
        file("d/evil"),
    ],
    "hard link to outside": [hardlink("h", "../target")],
    "hard link through a link": [symlink("l", "{outside}"), hardlink("h", "l/target")],
    "hard link to itself": [file("h"), hardlink("h", "h")],
    "whiteout device": [member("w", tarfile.CHRTYPE, devmajor=0, devminor=0)],
    "overlay attribute": [directory("d", pax_headers={"SCHILY.xattr.trusted.overlay.opaque": "y"})],
    "whiteout of the parent": [file("d/.wh...")],
    "whiteout of itself": [file("d/.wh..")],
    "beneath a whiteout": [file(".wh.d/evil")],
    "root is a file": [file("./")],
}


@pytest.mark.parametrize("trick", LAYER_TRICKS)
def test_hostile_layers(trick: str, store: ImageStore, outside: str) -> None:
    for info, _ in LAYER_TRICKS[trick]:
        info.linkname = info.linkname.replace("{outside}", outside)
        if trick == "root is a file":
            info.name, info.type = ".", tarfile.REGTYPE
    archive = tar(LAYER_TRICKS[trick])
    digest = f"sha256:{hashlib.sha256(archive).hexdigest()}"  # the one that its manifest says
    with nothing_left_behind(store, outside):
        with pytest.raises(HostileArchiveError):
            store.add_layer(io.BytesIO(archive), digest)
    assert not store.has_layer(digest)


def test_a_layer_with_another_digest_is_refused(store: ImageStore, outside: str) -> None:
    wrong = "sha256:" + "1" * 64
    with nothing_left_behind(store, outside), pytest.raises(ArchiveError, match="not the one asked for"):
        store.add_layer(io.BytesIO(tar([file("a")])), wrong)
    assert layer_key(wrong) == "sha256-" + "1" * 64


BOMBS = {
    "total size": (Limits(total_size=1 << 20), [file("rootfs/big", bytes(2 << 20))], "total_size"),
    "entries": (Limits(entries=10), [file(f"rootfs/{n}", b"") for n in range(20)], "entries"),
    "ratio": (Limits(ratio=10, ratio_from=1 << 16), [file("rootfs/big", bytes(1 << 20))], "ratio"),
    "depth": (Limits(depth=3), [file("rootfs/a/b/c")], "depth"),
    "path": (Limits(path_length=20), [file("rootfs/" + "n" * 30)], "path_length"),
    "header": (
        Limits(header_size=1000),
        [file("rootfs/f", pax_headers={"SCHILY.xattr.user.x": "x" * 2000})],
        "header_size",
    ),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs(bomb: str, tmp_path: object, outside: str) -> None:
    limits, members, limit = BOMBS[bomb]
    store = ImageStore(f"{tmp_path}/images", limits=limits)
    with nothing_left_behind(store, outside):
        with (
            pytest.raises(HostileArchiveError) as caught,
            store.stage_archive(io.BytesIO(gzip.compress(image(*members)))),
        ):
            pytest.fail("a bomb was staged")
    assert caught.value.data["limit"] == limit


def test_padding_without_end_is_a_bomb_too(tmp_path: object, outside: str) -> None:
    """No entry says its size: only the stream knows."""
    limits = Limits(total_size=1 << 20)
    store = ImageStore(f"{tmp_path}/images", limits=limits)
    archive = gzip.compress(image(file("rootfs/f")) + bytes(2 << 20))
    with nothing_left_behind(store, outside):
        with pytest.raises(HostileArchiveError, match="unpacks to more than 1048576 bytes") as caught:
            with store.stage_archive(io.BytesIO(archive)):
                pytest.fail("a bomb was staged")
    assert caught.value.data["limit"] == "total_size"


def test_a_sparse_bomb_counts_with_its_holes(tmp_path: object, outside: str) -> None:
    store = ImageStore(f"{tmp_path}/images", limits=Limits(total_size=1 << 30))
    version = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1"}
    sparse = {"GNU.sparse.map": "", "GNU.sparse.size": str(1 << 50), **version}
    archive = image(file("rootfs/hole", b"", pax_headers=sparse))
    with nothing_left_behind(store, outside), pytest.raises(HostileArchiveError, match="more than 1073741824"):
        with store.stage_archive(io.BytesIO(archive)):
            pytest.fail("a bomb was staged")


def test_large_bomb_is_stopped_early(tmp_path: object, outside: str) -> None:
    """A stream of zeros without end would take all time, and the disk, if it were unpacked before it is judged."""

    class Endless:
        read_so_far = 0

        def read(self, count: int) -> bytes:
            piece = packer.compress(bytes(1 << 22))
            while not piece:
                piece = packer.compress(bytes(1 << 22))
            self.read_so_far += len(piece)
            return piece

    import zlib

    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    head = packer.compress(image(file("rootfs/x"))[:-10240])
    stream = Endless()
    store = ImageStore(f"{tmp_path}/images", limits=Limits(ratio=200, total_size=1 << 40))
    with nothing_left_behind(store, outside), pytest.raises(ArchiveError):
        with store.stage_archive(stream):  # type: ignore[arg-type]
            pytest.fail("a bomb was staged")
    assert stream.read_so_far + len(head) < 4 << 20


def test_error_leaves_outside_alone_even_for_unreadable_names(store: ImageStore, outside: str) -> None:
    """Messages stay on one line and printable, whatever the archive calls its entries."""
    before = everything_below(outside)
    with pytest.raises(HostileArchiveError) as caught:
        with store.stage_archive(io.BytesIO(image(file("rootfs/../\x1b[31mred\nline\udcff")))):
            pytest.fail("a hostile archive was staged")
    assert str(caught.value).isprintable()
    assert everything_below(outside) == before
    assert os.listdir(store.path("tmp")) == []
