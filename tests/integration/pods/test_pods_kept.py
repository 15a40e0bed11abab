"""All that a file has goes the whole way: built, fetched, exported, fetched again, rendered, run (A3, A4, N5)."""

import hashlib
import os
import struct
import subprocess

import pytest
from kurma_testing import trees
from kurma_testing.trees import Entry, directory, file

from tests.kit.images import archive, image_id, shell
from tests.kit.waiting import until

pytestmark = pytest.mark.root

NOBODY = 2**32 - 1
CAPABILITY = struct.pack("<5I", 0x02000001, 1 << 10, 0, 0, 0)
_ACL = [(1, 6, NOBODY), (2, 6, 3_000_000), (4, 4, NOBODY), (16, 6, NOBODY), (32, 0, NOBODY)]
ACL = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in _ACL)
#: Seven octal digits of a header do not hold them.
FAR = {"uid": 20_000_000, "gid": 3_000_000_000}
#: Before 1970, with a fraction.
OLD = -1_500_000_001
TRUSTED = (("trusted.note", b"=\n\0%"),)
EVERYTHING = trees.tree(
    {
        "kept": directory(mode=0o2775, xattrs=(("system.posix_acl_default", ACL),), **FAR),
        "kept/sticky": directory(mode=0o1777, mtime=OLD, xattrs=(("user.b c=d", b"v"),)),
        "kept/setuid": file(b"x" * 5000, mode=0o6755, uid=5, gid=6, identity="setuid"),
        "kept/sticky/setuid too": file(b"x" * 5000, mode=0o6755, uid=5, gid=6, identity="setuid"),
        "kept/capable": file(b"y", mode=0o755, uid=7, xattrs=(("security.capability", CAPABILITY), *TRUSTED)),
        "kept/acl": file(mode=0o660, mtime=OLD, xattrs=(("system.posix_acl_access", ACL),), **FAR),
        "kept/secret": file(b"z", mode=0),
        "kept/caf\udce9\n\\n": file(b"bytes"),
        "kept/" + "/".join(["n" * 255, "Ω" * 120, "\udcff" * 255]): file(b"long"),
        "kept/link": Entry("l", 0o777, 9, 10, OLD, TRUSTED, b"\xff" * 300, identity="link"),
        "kept/sticky/link": Entry("l", 0o777, 9, 10, OLD, TRUSTED, b"\xff" * 300, identity="link"),
        "kept/fifo": Entry("p", 0o622, mtime=OLD, xattrs=TRUSTED, **FAR),
        "kept/full": Entry("c", 0o666, 11, 12, rdev=os.makedev(1, 7), identity="full"),
        "kept/sticky/full": Entry("c", 0o666, 11, 12, rdev=os.makedev(1, 7), identity="full"),
        "kept/disk": Entry("b", 0o660, 0, 6, OLD, TRUSTED, rdev=os.makedev(259, 70000)),
    }
)
HOLE = 8 << 20


def by_kurma(root, path):
    archive(root, path, "example.com/kept")


def by_gnu_tar(root, path):
    os.mkdir(f"{root}.image")
    os.rename(root, f"{root}.image/rootfs")
    with open(f"{root}.image/manifest", "w") as out:
        out.write('{"acKind": "ImageManifest", "acVersion": "0.8.11", "name": "example.com/kept"}')
    command = ["tar", "-C", f"{root}.image", "--format=posix", "--sparse", "--xattrs", "--xattrs-include=*"]
    subprocess.run([*command, "--numeric-owner", "-cf", path, "rootfs", "manifest"], check=True)


def seen(top, hole):
    """The tree, and which names in it are one file."""
    found = trees.read_tree(top)
    # GNU tar knows no second name of a device.
    return found, {names for names in trees.shared_names(found) if not (hole and "full" in names)}


def check(top, wanted, hole):
    """:param hole: whether the sparse file was packed as one."""
    path = f"{top}/sticky/holes"
    status = os.stat(path)
    assert status.st_size == HOLE + 4
    assert not hole or status.st_blocks * 512 < HOLE // 8
    with open(path, "rb") as content:
        assert hashlib.file_digest(content, "sha256").digest() == hashlib.sha256(bytes(HOLE) + b"data").digest()
    assert seen(top, hole) == wanted


def process_of(record, word):
    """The process of this pod with this word in its command line."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as words, open(f"/proc/{pid}/cgroup") as groups:
                if words.read().split(b"\0")[-2:-1] == [word] and record.uuid in groups.read():
                    return pid
        except OSError:
            continue  # it has ended
    return ""


@pytest.mark.parametrize(("pack", "hole"), [(by_kurma, False), (by_gnu_tar, True)])
def test_everything_is_kept_up_to_the_app(house, tmp_path, pack, hole):
    images = house.client.here.images
    root, packed, exported = (f"{tmp_path}/{name}" for name in ("root", "packed.aci", "exported.aci"))
    os.mkdir(root)
    trees.write_tree(EVERYTHING, root)
    with open(f"{root}/kept/sticky/holes", "wb") as out:
        out.seek(HOLE)
        out.write(b"data")
    os.utime(f"{root}/kept/sticky", ns=(OLD, OLD))
    wanted = seen(f"{root}/kept", hole)
    assert {path.removeprefix("kept").lstrip("/") for path in EVERYTHING if path} < wanted[0].keys()
    pack(root, packed)
    kept = images.fetch(packed).id
    house.client.image_export(kept, exported)
    assert image_id(exported) == kept == image_id(packed)
    images.remove(kept)
    os.unlink(packed)
    assert images.fetch(exported).id == kept

    for place in ("", "/at/a/root"):
        dependency = {
            "imageName": "example.com/kept",
            "imageID": kept,
            **({"kurma.io/root": place} if place else {}),
        }
        top = images.fetch(_keeper(tmp_path, house.image, dependency)).id
        for renderer in ("overlay", "copy"):
            layers = images.render(top, renderer, verify=True).layers
            (layer,) = [one for one in layers if os.path.isdir(f"{one.path}{place}/kept")]
            check(f"{layer.path}{place}/kept", wanted, hole)
            with house.running({"main": {"image": top}}, renderer=renderer) as pod:
                pid = until(lambda pod=pod: process_of(pod, b"98765"), "the app")
                check(f"/proc/{pid}/root{place}/kept", wanted, hole)
        images.verify(top)
    images.verify(kept)


def _keeper(tmp_path, busybox, dependency):
    """An archive of an image that has nothing of its own but an app, and all from what it depends on."""
    empty = tmp_path / "empty"
    empty.mkdir(exist_ok=True)
    return archive(
        str(empty),
        f"{tmp_path}/app.aci",
        "example.com/keeper",
        app=shell("exec sleep 98765"),
        dependencies=[{"imageName": "example.com/busybox", "imageID": busybox}, dependency],
    )
