"""A3, A4, S1 with real privilege: owners, devices, capabilities, set-user-ID, a full disk, and overlay itself."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
import struct
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kurma_core.appc.image import ImageManifest
from kurma_core.errors import StoreError
from kurma_core.image_store import ImageStore
from kurma_core.image_store.builder import build_archive
from tests.kit.archives import (
    LOCAL,
    MANIFEST,
    directory,
    file,
    hardlink,
    image,
    member,
    nothing_left_behind,
    stage_and_commit,
    symlink,
    tar,
)
from tests.kit.host import small_file_system

pytestmark = pytest.mark.root

#: CAP_NET_BIND_SERVICE, permitted and effective, as `setcap cap_net_bind_service=ep` writes it.
CAPABILITY = struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0)


def test_owners_modes_and_devices(store: ImageStore) -> None:
    record = stage_and_commit(
        store,
        image(
            directory("rootfs/home", uid=1000, gid=1000, mode=0o2750),
            file("rootfs/home/su", mode=0o6755, uid=0, gid=5),
            file("rootfs/home/far", uid=3_000_000_000, gid=2**22),
            file("rootfs/home/locked", mode=0),
            member("rootfs/null", tarfile.CHRTYPE, devmajor=1, devminor=3, mode=0o666),
            member("rootfs/disk", tarfile.BLKTYPE, devmajor=259, devminor=70000, mode=0o660, gid=6),
            member("rootfs/fifo", tarfile.FIFOTYPE, mode=0o622, uid=7),
            symlink("rootfs/link", "/etc/passwd", uid=9, gid=10),
            hardlink("rootfs/null2", "rootfs/null"),
        ),
    )
    (layer,) = store.layers(record.id)

    def status(name: str) -> tuple[str, int, int]:
        found = os.lstat(f"{layer.path}/{name}")
        return stat.filemode(found.st_mode), found.st_uid, found.st_gid

    assert status("home") == ("drwxr-s---", 1000, 1000)
    assert status("home/su") == ("-rwsr-sr-x", 0, 5)
    assert status("home/far") == ("-rw-r--r--", 3_000_000_000, 2**22)
    assert status("home/locked") == ("----------", 0, 0)
    assert status("null") == ("crw-rw-rw-", 0, 0)
    assert status("disk") == ("brw-rw----", 0, 6)
    assert status("fifo") == ("prw--w--w-", 7, 0)
    assert status("link") == ("lrwxrwxrwx", 9, 10)
    assert os.lstat(f"{layer.path}/null").st_rdev == os.makedev(1, 3)
    assert os.lstat(f"{layer.path}/disk").st_rdev == os.makedev(259, 70000)
    assert os.lstat(f"{layer.path}/null2").st_ino == os.lstat(f"{layer.path}/null").st_ino
    store.verify(record.id, deep=True)


def test_capabilities_survive_the_change_of_owner(store: ImageStore, tmp_path: object) -> None:
    os.makedirs(f"{tmp_path}/rootfs")
    for name in ("ping", "other"):
        with open(f"{tmp_path}/rootfs/{name}", "wb"):
            pass
        os.chown(f"{tmp_path}/rootfs/{name}", 33, 33)
        os.chmod(f"{tmp_path}/rootfs/{name}", 0o4755)
    os.setxattr(f"{tmp_path}/rootfs/ping", "security.capability", CAPABILITY)
    os.setxattr(f"{tmp_path}/rootfs/ping", "trusted.note", b"kept")
    os.setxattr(f"{tmp_path}/rootfs/other", "security.selinux", b"system_u:object_r:bin_t:s0\0")
    out = io.BytesIO()
    image_id = build_archive(f"{tmp_path}/rootfs", MANIFEST, out)
    stage_and_commit(store, out.getvalue())
    (layer,) = store.layers(image_id)
    assert os.getxattr(f"{layer.path}/ping", "security.capability") == CAPABILITY
    assert os.getxattr(f"{layer.path}/ping", "trusted.note") == b"kept"
    assert os.listxattr(f"{layer.path}/other") == []
    assert stat.filemode(os.stat(f"{layer.path}/ping").st_mode) == "-rwsr-xr-x"
    store.verify(image_id, deep=True)
    os.removexattr(f"{layer.path}/ping", "security.capability")
    with pytest.raises(StoreError, match="'ping' has other attributes"):
        store.verify(image_id)


def test_gnu_tar_and_kurma_extract_alike(store: ImageStore, tmp_path: object) -> None:
    """A real tree of this machine, packed by GNU tar with all it has."""
    source = "/usr/share/doc/tar"
    os.makedirs(f"{tmp_path}/image")
    subprocess.run(["cp", "-a", source, f"{tmp_path}/image/rootfs"], check=True)
    subprocess.run(
        ["cp", "-a", "/usr/bin/passwd", "/usr/bin/tar", "/dev/full", f"{tmp_path}/image/rootfs"], check=True
    )
    with open(f"{tmp_path}/image/manifest", "w") as manifest:
        manifest.write('{"acKind": "ImageManifest", "acVersion": "0.8.11", "name": "example.com/doc"}')
    command = ["tar", "--format=posix", "--xattrs", "-C", f"{tmp_path}/image", "-czf", "-", "rootfs", "manifest"]
    record = stage_and_commit(store, subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    (layer,) = store.layers(record.id)
    listing = ["find", ".", "-printf", r"%P %M %U %G %s %T@ %l\n"]
    ours, theirs = (
        sorted(subprocess.run(listing, cwd=path, check=True, stdout=subprocess.PIPE).stdout.splitlines())
        for path in (layer.path, f"{tmp_path}/image/rootfs")
    )
    directories = {line.split(b" ")[0] for line in ours if line.split(b" ")[1].startswith(b"d")}

    def without_directory_sizes(lines: list[bytes]) -> list[list[bytes]]:
        fields = [line.split(b" ") for line in lines]
        return [each[:4] + each[5:] if each[0] in directories else each for each in fields]

    assert without_directory_sizes(ours) == without_directory_sizes(theirs)


# --- a full disk -------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_file_system(tmp_path / "small", "size=4m") as path:
        yield path


def test_full_disk(small_disk: Path, tmp_path: object) -> None:
    store = ImageStore(f"{small_disk}/images")
    os.mkdir(f"{tmp_path}/outside")
    archive = image(file("rootfs/big", os.urandom(3 << 20)), file("rootfs/more", os.urandom(3 << 20)))
    with nothing_left_behind(store, f"{tmp_path}/outside"):
        with pytest.raises(StoreError, match="no space left on device") as caught:
            stage_and_commit(store, archive)
    assert "\n" not in str(caught.value)
    assert caught.value.hint is not None
    # The room is there again.
    record = stage_and_commit(store, image(file("rootfs/small", os.urandom(1 << 20))))
    store.verify(record.id, deep=True)


def test_full_disk_for_a_layer_and_a_tree(small_disk: Path) -> None:
    store = ImageStore(f"{small_disk}/images")
    archive = tar([file("big", os.urandom(5 << 20))])
    with pytest.raises(StoreError, match="no space left"):
        store.add_layer(io.BytesIO(archive), f"sha256:{hashlib.sha256(archive).hexdigest()}")
    assert os.listdir(store.path("tmp")) == os.listdir(store.path("layers")) == []

    def build(path: str) -> None:
        with open(f"{path}/big", "wb") as out:
            out.write(os.urandom(5 << 20))

    with pytest.raises(OSError, match="No space left"):
        store.cache.tree("key", build)
    assert os.listdir(store.path("tmp")) == os.listdir(store.path("trees")) == []


def test_every_moment_of_a_full_disk(small_disk: Path) -> None:
    """With ever so little more room each time, it fails cleanly until it succeeds."""
    store = ImageStore(f"{small_disk}/images")
    store.prepare()
    archive = image(*[file(f"rootfs/f{number}", os.urandom(5000)) for number in range(20)])
    outcomes = []
    for room in range(4096, 1 << 19, 20480):
        with open(f"{small_disk}/ballast", "wb") as ballast:
            free = os.statvfs(small_disk)
            os.posix_fallocate(ballast.fileno(), 0, free.f_bavail * free.f_frsize - room)
        fits = _fits(store, archive)
        outcomes.append(fits)
        assert bool(store.list()) == fits
        os.unlink(f"{small_disk}/ballast")
        assert os.listdir(store.path("tmp")) == []
        for record in store.list():
            store.verify(record.id, deep=True)
        if outcomes[-1]:
            break
    assert outcomes[-1]
    assert len(outcomes) > 3


def _fits(store: ImageStore, archive: bytes) -> bool:
    try:
        stage_and_commit(store, archive)
    except StoreError as error:
        if error.data["errno"] != errno.ENOSPC:
            raise
        return False
    return True


# --- the merged view, against the kernel's own -------------------------------------------------------------------


def test_merged_view_is_what_overlay_shows(store: ImageStore, tmp_path: object) -> None:
    layers = [
        [
            directory("etc"),
            file("etc/a", b"0"),
            file("etc/b", b"0"),
            directory("gone"),
            file("gone/x"),
            directory("var", mode=0o1777),
            file("var/old"),
            symlink("lib", "usr/lib"),
        ],
        [
            directory("etc", mode=0o700),
            file("etc/.wh.a", b""),
            file(".wh.gone", b""),
            directory("var", mode=0o1777),
            file("var/.wh..wh..opq", b""),
            file("var/new"),
            directory("lib"),
            file("lib/so"),
        ],
        [
            directory("gone", mode=0o711),
            file("gone/back", b"2"),
            directory("etc", mode=0o700),
            file("etc/a", b"2"),
        ],
    ]
    keys = []
    for members in layers:
        archive = tar(members)
        keys.append(store.add_layer(io.BytesIO(archive), f"sha256:{hashlib.sha256(archive).hexdigest()}"))
    record = store.add_layered(ImageManifest.parse(MANIFEST), tuple(keys), LOCAL)
    lowers = []
    for number, layer in enumerate(store.layers(record.id)):
        path = f"{tmp_path}/lower{number}"
        subprocess.run(["cp", "-a", layer.path, path], check=True)
        for removed in layer.removed:
            if not os.path.lexists(f"{path}/{removed}"):
                os.mknod(f"{path}/{removed}", stat.S_IFCHR, os.makedev(0, 0))
        for opaque in layer.opaque:
            os.setxattr(f"{path}/{opaque}", "trusted.overlay.opaque", b"y")
        lowers.append(path)
    merged = f"{tmp_path}/merged"
    os.mkdir(merged)
    options = f"lowerdir={':'.join(reversed(lowers))}"
    subprocess.run(["mount", "-t", "overlay", "-o", options, "kurma-test", merged], check=True)
    try:
        shown = io.BytesIO()
        # The root directory is the store's own in every layer; all below it is the layers'.
        os.utime(f"{tmp_path}", (0, 0))
        build_archive(merged, store.manifest(record.id), shown)
    finally:
        subprocess.run(["umount", merged], check=True)
    exported = io.BytesIO()
    store.export(record.id, exported)
    assert _members(exported) == _members(shown)


def _members(archive: io.BytesIO) -> list[tuple[object, ...]]:
    archive.seek(0)
    with tarfile.open(fileobj=archive) as reader:
        return [
            (info.name, info.mode, info.type, info.linkname, info.size, info.mtime)
            for info in reader.getmembers()
            if info.name not in ("manifest", "rootfs")
        ]


# --- without privilege -------------------------------------------------------------------------------------------


WITHOUT_ROOT = """
import os, sys
from kurma_core.errors import KurmaError
from kurma_core.image_store import ImageStore

def stage(root):
    store = ImageStore(root)
    try:
        with open(sys.argv[1] + "/image.aci", "rb") as file, store.stage_archive(file):
            pass
    except KurmaError as error:
        print(type(error).__name__, error, error.hint, sep="|")
    print(os.listdir(store.path("tmp")))

stage(sys.argv[1] + "/root's")  # also loads all modules, which somebody else might not be able to read
os.setgid(65534)
os.setuid(65534)
stage(sys.argv[1] + "/nobody's")
"""


def test_without_root_it_says_so() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        os.chmod(place, 0o777)
        with open(f"{place}/image.aci", "wb") as out:
            out.write(image(file("rootfs/f", uid=0)))
        command = [sys.executable, "-c", WITHOUT_ROOT, place]
        result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    assert result.stdout.splitlines() == [
        "[]",
        "PrivilegeError|cannot put an image into the store: operation not permitted|run as root",
        "[]",
    ]
