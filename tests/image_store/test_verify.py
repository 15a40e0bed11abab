"""S2: verification finds any tampering, in what was extracted, kept or rendered."""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kurma_core.errors import KurmaError, StoreError
from kurma_core.image_store import ImageStore
from kurma_core.models.image import ImageRecord
from tests.kit.archives import directory, file, hardlink, image, stage_and_commit, symlink

Tamper = Callable[[str], None]


def rewrite(path: str, content: bytes) -> None:
    """Change a file's content, and hide it as well as one can: same size, same times."""
    status = os.stat(path)
    with open(path, "r+b") as target:
        target.write(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace_file(path: str, content: bytes) -> None:
    status = os.stat(path)
    os.unlink(path)
    with open(path, "wb") as target:
        target.write(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def relink(path: str, target: str) -> None:
    os.unlink(path)
    os.symlink(target, path)


def add_file(path: str) -> None:
    with open(path, "wb"):
        pass


def unseen(path: str, tamper: Callable[[], object]) -> None:
    """Do it, and put the directory's times back."""
    status = os.stat(path)
    tamper()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


TAMPERING: dict[str, tuple[Tamper, str]] = {
    "content": (lambda root: rewrite(f"{root}/etc/passwd", b"evil"), "etc/passwd"),
    "another file": (lambda root: replace_file(f"{root}/etc/passwd", b"root"), "etc"),
    "longer": (lambda root: rewrite(f"{root}/etc/passwd", b"longer than it was"), "etc/passwd"),
    "mode": (lambda root: os.chmod(f"{root}/bin/tool", 0o4755), "bin/tool"),
    "mode there and back": (
        lambda root: (rewrite(f"{root}/bin/tool", b"evil"), os.chmod(f"{root}/bin/tool", 0o755))[1],
        "bin/tool",
    ),
    "attribute": (lambda root: os.setxattr(f"{root}/bin/tool", "user.evil", b"1"), "bin/tool"),
    "attribute of a directory": (lambda root: os.setxattr(f"{root}/etc", "user.evil", b"1"), "etc"),
    "added file": (lambda root: add_file(f"{root}/etc/new"), "etc"),
    "added directory": (lambda root: os.mkdir(f"{root}/etc/new"), "etc"),
    "added file, the time put back": (
        lambda root: unseen(f"{root}/etc", lambda: add_file(f"{root}/etc/new")),
        "etc/new' was added",
    ),
    "added directory, the time put back": (
        lambda root: unseen(f"{root}/etc", lambda: os.mkdir(f"{root}/etc/new")),
        "etc/new' was added",
    ),
    "removed file, the time put back": (
        lambda root: unseen(f"{root}/etc", lambda: os.unlink(f"{root}/etc/passwd")),
        "etc/passwd' is missing",
    ),
    "link, the time put back": (
        lambda root: unseen(root, lambda: relink(f"{root}/link", "bin/evil")),
        "link",
    ),
    "removed file": (lambda root: os.unlink(f"{root}/etc/passwd"), "etc"),
    "removed directory": (lambda root: os.rmdir(f"{root}/empty"), ""),
    "link": (lambda root: relink(f"{root}/link", "bin/evil"), ""),
    "renamed": (lambda root: os.rename(f"{root}/etc/passwd", f"{root}/etc/shadow"), "etc"),
    "root's mode": (lambda root: os.chmod(root, 0o777), "/"),
}


OWNERS: dict[str, tuple[Tamper, str]] = {
    "owner": (lambda root: os.chown(f"{root}/etc/passwd", 12, -1), "etc/passwd"),
    "group of a link": (lambda root: os.chown(f"{root}/link", -1, 12, follow_symlinks=False), "link"),
    "capability": (
        lambda root: os.setxattr(f"{root}/bin/tool", "security.capability", b"\x01\0\0\x02" + bytes(16)),
        "bin/tool",
    ),
    "device in place of a file": (
        lambda root: (os.unlink(f"{root}/etc/passwd"), os.mknod(f"{root}/etc/passwd", 0o20644, os.makedev(1, 3)))[
            1
        ],
        "etc",
    ),
    "hard link within": (lambda root: os.link(f"{root}/bin/tool", f"{root}/bin/sudo"), "bin"),
}


@pytest.fixture
def stored(store: ImageStore) -> ImageRecord:
    archive = image(
        directory("rootfs/bin"),
        directory("rootfs/etc"),
        directory("rootfs/empty"),
        file("rootfs/bin/tool", b"tool", mode=0o755),
        hardlink("rootfs/bin/zother", "rootfs/bin/tool"),
        file("rootfs/etc/passwd", b"root"),
        symlink("rootfs/link", "bin/tool"),
    )
    return stage_and_commit(store, archive)


@pytest.mark.parametrize("deep", [False, True])
def test_untouched(deep: bool, store: ImageStore, stored: ImageRecord) -> None:
    store.verify(stored.id, deep=deep)
    store.verify(stored.id, deep=deep)


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("how", TAMPERING)
def test_tampering_is_found(how: str, deep: bool, store: ImageStore, stored: ImageRecord) -> None:
    tamper, where = TAMPERING[how]
    (layer,) = store.layers(stored.id)
    tamper(layer.path)
    with pytest.raises(StoreError, match="damaged") as caught:
        store.verify(stored.id, deep=deep)
    assert where in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.root
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("how", OWNERS)
def test_tampering_with_owners_is_found(how: str, deep: bool, store: ImageStore, stored: ImageRecord) -> None:
    tamper, where = OWNERS[how]
    tamper(store.layers(stored.id)[0].path)
    with pytest.raises(StoreError, match="damaged") as caught:
        store.verify(stored.id, deep=deep)
    assert where in str(caught.value)


@pytest.mark.full
@pytest.mark.root
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("how", [*TAMPERING, *OWNERS])
def test_tampering_with_a_rendered_tree_is_found(
    how: str, deep: bool, store: ImageStore, stored: ImageRecord
) -> None:
    """A copy, which shares no file with what was extracted."""
    import shutil

    origin = store.layers(stored.id)[0].path
    tree = store.cache.tree("key", lambda path: shutil.copytree(origin, path, symlinks=True, dirs_exist_ok=True))
    store.verify(tree.id, deep=deep)
    tamper, where = {**TAMPERING, **OWNERS}[how]
    tamper(tree.path)
    with pytest.raises(StoreError, match="damaged") as caught:
        store.verify(tree.id, deep=deep)
    assert where in str(caught.value)
    store.verify(stored.id, deep=deep)


def test_hard_links_are_no_tampering_but_hide_none(
    store: ImageStore, stored: ImageRecord, tmp_path: object
) -> None:
    (layer,) = store.layers(stored.id)
    os.link(f"{layer.path}/etc/passwd", f"{tmp_path}/elsewhere")
    store.verify(stored.id)
    store.verify(stored.id)
    rewrite(f"{tmp_path}/elsewhere", b"evil")
    with pytest.raises(StoreError, match="'etc/passwd' has other content"):
        store.verify(stored.id)


def test_a_verification_does_not_hide_what_it_found(store: ImageStore, stored: ImageRecord) -> None:
    (layer,) = store.layers(stored.id)
    rewrite(f"{layer.path}/etc/passwd", b"evil")
    for _ in range(2):
        with pytest.raises(StoreError):
            store.verify(stored.id)


def test_a_forged_record_does_not_survive_the_deep_way(store: ImageStore, stored: ImageRecord) -> None:
    import hashlib

    (layer,) = store.layers(stored.id)
    rewrite(f"{layer.path}/etc/passwd", b"evil")
    path = f"{os.path.dirname(layer.path)}/files"
    with open(path) as record:
        lines = record.read()
    old, new = (hashlib.sha256(content).hexdigest() for content in (b"root", b"evil"))
    status = os.stat(f"{layer.path}/etc/passwd")
    forged = []
    for line in lines.splitlines():
        if line.endswith("etc/passwd"):
            fields = line.split(" ", 10)
            fields[7] = str(status.st_ctime_ns)
            line = " ".join(fields).replace(old, new)
        forged.append(line)
    with open(path, "w") as record:
        record.write("\n".join(forged) + "\n")
    store.verify(stored.id)  # the shallow way believes its record
    with pytest.raises(StoreError, match="'etc/passwd' is not what the archive holds"):
        store.verify(stored.id, deep=True)


def forge(path: str, old: str, new: str) -> None:
    """Change a record as somebody does who can write to the store."""
    with open(path) as record:
        lines = record.read()
    assert old in lines
    with open(path, "w") as record:
        record.write(lines.replace(old, new))


def test_a_link_that_took_the_place_of_another(store: ImageStore, stored: ImageRecord) -> None:
    """As long, as old, and even the same inode, which a file system may give again."""
    (layer,) = store.layers(stored.id)
    path = f"{layer.path}/link"
    was = os.lstat(path)
    unseen(layer.path, lambda: relink(path, "bin/evil"))
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns), follow_symlinks=False)
    forge(f"{os.path.dirname(layer.path)}/files", f" {was.st_ino} ", f" {os.lstat(path).st_ino} ")
    with pytest.raises(StoreError, match="'link' has another target"):
        store.verify(stored.id)


def copy_of(store: ImageStore, path: Path) -> ImageStore:
    subprocess.run(["cp", "-a", store.root, path], check=True)
    return ImageStore(str(path))


def test_a_copied_store(store: ImageStore, stored: ImageRecord, tmp_path: Path) -> None:
    """Each file has another inode. The deep check reads them all, and the records then hold the new ones."""
    copy = copy_of(store, tmp_path / "copy")
    with pytest.raises(StoreError, match="has changed since it was extracted"):
        copy.verify(stored.id)
    copy.verify(stored.id, deep=True)
    copy.verify(stored.id)


@pytest.mark.parametrize("how", TAMPERING)
def test_tampering_with_a_copied_store_is_found(
    how: str, store: ImageStore, stored: ImageRecord, tmp_path: Path
) -> None:
    tamper, where = TAMPERING[how]
    copy = copy_of(store, tmp_path / "copy")
    tamper(copy.layers(stored.id)[0].path)
    with pytest.raises(StoreError, match="damaged") as caught:
        copy.verify(stored.id, deep=True)
    assert where in str(caught.value)


@pytest.mark.root
def test_the_deep_way_reads_what_looks_untouched(store: ImageStore, stored: ImageRecord) -> None:
    """Of a copy, whose content stands in no archive: a disk that lies changes no times."""
    import hashlib
    import shutil

    origin = store.layers(stored.id)[0].path
    tree = store.cache.tree("key", lambda path: shutil.copytree(origin, path, symlinks=True, dirs_exist_ok=True))
    root, other = (hashlib.sha256(content).hexdigest() for content in (b"root", b"what it was"))
    forge(f"{os.path.dirname(tree.path)}/files", root, other)
    store.verify(tree.id)
    with pytest.raises(StoreError, match="'etc/passwd' has other content"):
        store.verify(tree.id, deep=True)


def test_an_archive_that_only_grew(store: ImageStore, stored: ImageRecord) -> None:
    """It still holds what the records say, but its hash is another."""
    archive = store.archive_path(stored.id)
    assert archive is not None
    with open(archive, "ab") as file:
        file.write(bytes(512))
    with pytest.raises(StoreError, match="its archive has changed"):
        store.verify(stored.id, deep=True)


@pytest.mark.parametrize("which", ["archives/{id}.aci", "images/{id}/manifest", "layers/{id}/files"])
def test_other_files_of_the_store(which: str, store: ImageStore, stored: ImageRecord) -> None:
    path = f"{store.root}/{which.format(id=stored.id)}"
    with open(path, "r+b") as target:
        content = target.read()
        target.seek(0)
        target.write(content.replace(b"root", b"evil").replace(b"thing", b"other").replace(b"0755", b"0777"))
    with pytest.raises(KurmaError):
        store.verify(stored.id, deep=True)


def test_a_lost_layer(store: ImageStore, stored: ImageRecord) -> None:
    import shutil

    (layer,) = store.layers(stored.id)
    shutil.rmtree(os.path.dirname(layer.path))
    with pytest.raises(StoreError, match="is missing"):
        store.verify(stored.id)


def test_rendered_trees(store: ImageStore, stored: ImageRecord) -> None:
    (layer,) = store.layers(stored.id)

    def build(path: str) -> None:
        os.mkdir(f"{path}/etc")
        os.link(f"{layer.path}/etc/passwd", f"{path}/etc/passwd")

    tree = store.cache.tree("a key", build)
    store.verify(tree.id)
    store.verify(tree.id, deep=True)
    store.verify(stored.id)
    store.cache.tree("another key", build)
    store.verify(tree.id)
    os.chmod(f"{tree.path}/etc", 0o777)
    with pytest.raises(StoreError, match="'etc' has changed"):
        store.verify(tree.id)
    os.chmod(f"{tree.path}/etc", 0o755)
    rewrite(f"{tree.path}/etc/passwd", b"evil")
    for image_or_tree in (tree.id, stored.id):
        with pytest.raises(StoreError):
            store.verify(image_or_tree)


def test_what_is_damaged_is_not_exported_as_if_it_were_whole(store: ImageStore, stored: ImageRecord) -> None:
    """A4: what comes out has the image's ID, or is said not to."""
    archive = store.archive_path(stored.id)
    assert archive is not None
    with open(archive, "ab") as file:
        file.write(bytes(512))
    with pytest.raises(StoreError, match="what was exported of"):
        store.export(stored.id, io.BytesIO())
