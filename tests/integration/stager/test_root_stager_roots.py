"""Apps' roots, as overlays and as copies: the same, clean at each execution, no layer ever touched (H3)."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kurma_core.errors import StagerError
from tests.kit.images import shell

pytestmark = pytest.mark.root

STORAGES = ["overlay", "copy"]
_CAPABILITY = bytes.fromhex(
    "0100000202040000000000000000000000000000"
)  # as setcap writes it: CAP_NET_RAW, effective


def seen(path: str) -> dict[str, tuple[object, ...]]:
    """Everything that a tree is, but for when it was read."""
    found: dict[str, tuple[object, ...]] = {}
    for directory, names, files in os.walk(path):
        for name in [".", *names, *files]:
            file = os.path.join(directory, name)
            status = os.lstat(file)
            content = b""
            if stat.S_ISREG(status.st_mode):
                content = hashlib.sha256(Path(file).read_bytes()).digest()
            elif stat.S_ISLNK(status.st_mode):
                content = os.readlink(file).encode()
            attributes = {
                each: os.getxattr(file, each, follow_symlinks=False)
                for each in os.listxattr(file, follow_symlinks=False)
            }
            found[os.path.relpath(file, path)] = (
                *(status.st_mode, status.st_uid, status.st_gid, status.st_rdev, status.st_nlink, status.st_size),
                *(status.st_mtime_ns, status.st_ctime_ns, content, tuple(sorted(attributes.items()))),
            )
    return found


@pytest.fixture
def rich(tmp_path: Path) -> str:
    """A layer with everything that a file system knows."""
    top = tmp_path / "rich"
    (top / "r" / "deep" / "er").mkdir(parents=True)
    (top / "r" / "file").write_text("one")
    os.link(top / "r" / "file", top / "r" / "deep" / "same")
    os.chown(top / "r" / "file", 12, 34)
    os.chmod(top / "r" / "file", 0o6755)
    os.setxattr(top / "r" / "file", "user.note", b"\0\xff")
    os.setxattr(top / "r" / "file", "security.capability", _CAPABILITY)
    with open(top / "r" / "sparse", "wb") as file:
        file.truncate(256 << 20)
        file.seek(128 << 20)
        file.write(b"x" * 4096)
    (top / "r" / "link").symlink_to("/nowhere")
    os.lchown(top / "r" / "link", 56, 78)
    os.mkfifo(top / "r" / "fifo", 0o640)
    os.mknod(top / "r" / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(top / "r" / "socket"))
    os.chmod(top / "r" / "deep", 0o1777)
    os.setxattr(top / "r" / "deep", "user.directory", b"yes")
    for name in ("r/file", "r/sparse", "r/link", "r/fifo", "r/deep/er", "r/deep", "r", "."):
        os.utime(top / name, ns=(1, 1_234_567_890_123_456_789), follow_symlinks=False)
    return str(top)


@pytest.mark.parametrize("storage", STORAGES)
def test_a_root_has_all_that_its_layers_have(pods, busybox_root, rich, storage):
    """Seen from outside, through the app's own root: links, holes, attributes, owners, times, special files."""
    pod = pods(
        {"main": shell("sleep 1000")}, roots=[rich, busybox_root], config={"graphStorage": storage}
    ).started()
    root = f"/proc/{pod.app()['pid']}/root"
    for name in ("file", "sparse", "link", "fifo", "null", "socket", "deep", "deep/er", "deep/same"):
        there, here = os.lstat(f"{root}/r/{name}"), os.lstat(f"{rich}/r/{name}")
        fields = ("st_mode", "st_uid", "st_gid", "st_rdev", "st_nlink", "st_size", "st_mtime_ns")
        assert [getattr(there, each) for each in fields] == [getattr(here, each) for each in fields], name
    file, same = os.stat(f"{root}/r/file"), os.stat(f"{root}/r/deep/same")
    assert (file.st_ino, file.st_dev) == (same.st_ino, same.st_dev)
    assert os.getxattr(f"{root}/r/file", "security.capability") == _CAPABILITY
    assert os.getxattr(f"{root}/r/file", "user.note") == b"\0\xff"
    assert os.getxattr(f"{root}/r/deep", "user.directory") == b"yes"
    assert os.lstat(f"{root}/r/sparse").st_blocks * 512 < 1 << 20, "holes stay holes"
    with open(f"{root}/r/sparse", "rb") as content:
        content.seek(128 << 20)
        assert content.read(4097) == b"x" * 4096 + b"\0"
    assert os.readlink(f"{root}/r/link") == "/nowhere"


@pytest.mark.parametrize("storage", STORAGES)
def test_layers_stay_as_they_are(pods, busybox_root, rich, storage):
    """Whatever an app does to its files, with all the rights that it has."""
    before = {path: seen(path) for path in (rich, busybox_root)}
    script = """
        echo changed > /r/file; echo more >> /r/deep/same; chmod 0600 /r/sparse; chown 1:1 /r/fifo
        rm /r/null; mv /r/deep /r/moved; ln /r/file /r/another; touch /r /bin/busybox; rm -r /etc
        mkdir /r/deep; echo new > /r/deep/new; chmod 0711 /; rm /bin/cat; mv /bin/ls /r/; sync
        stat -c '%a %u' /r/sparse /r/fifo | tr '\\n' ' '; [ -e /etc ] || echo gone
    """
    pod = pods({"main": shell(script)}, roots=[rich, busybox_root], config={"graphStorage": storage})
    assert pod.ended() == 0, pod.output()
    assert pod.log(stream=b"stdout") == "600 0 640 1 gone\n", pod.log()
    for path, tree in before.items():
        assert seen(path) == tree


@pytest.mark.parametrize("storage", STORAGES)
def test_each_execution_starts_clean(pods, tmp_path, storage):
    """By the restart policy, too; what an execution wrote to its root goes with the next one's start."""
    script = """
        [ -e /mark ] && echo unclean; [ -e /etc/passwd ] || echo lacking; touch /mark; rm /etc/passwd
        dd if=/dev/zero of=/large bs=1M count=8 2>/dev/null; echo ran; exit 1
    """
    pod = pods(
        {"main": shell(script)}, config={"graphStorage": storage}, app_annotations={"kurma.io/restart": "always"}
    )
    pod.started()
    end = time.monotonic() + 20
    sizes = []
    while pod.app().get("restarts", 0) < 4:
        assert time.monotonic() < end
        time.sleep(0.02)
        sizes.append(len(os.listdir(f"{pod.directory}/pod/apps/main")))
    assert max(sizes) == 1
    pod.stop()
    for number in range(4):
        name = f"main.{number}.log" if number else "main.log"
        assert pod.log(name) == "ran\n", name


@pytest.mark.parametrize("storage", STORAGES)
def test_a_read_only_root(pods, busybox_root, rich, storage):
    """Nothing of it can be changed, whoever asks; what the kernel shows can be used."""
    script = """
        for each in 'touch /new' 'rm /r/file' 'chmod 0 /r/file' 'mount -o remount,rw /' 'chown 1 /r/file'
        do $each 2>/dev/null && echo "done: $each"; done
        echo x > /dev/null && echo x > /dev/shm/x && echo usable
    """
    pod = pods(
        {"main": shell(script)}, roots=[rich, busybox_root], config={"graphStorage": storage}, read_only=True
    )
    assert pod.ended() == 0, pod.output()
    assert pod.log(stream=b"stdout") == "usable\n"


@pytest.mark.parametrize("storage", STORAGES)
def test_many_layers(pods, busybox_root, tmp_path, storage):
    """More than a page of mount options has room for; the top one wins."""
    layers = []
    for number in range(150):
        layer = tmp_path / f"layer{number}"
        (layer / "d").mkdir(parents=True)
        (layer / "d" / str(number)).write_text("")
        (layer / "d" / "top").write_text(str(number))
        layers.append(str(layer))
    pod = pods(
        {"main": shell("ls /d | wc -l; cat /d/top")},
        roots=[*layers, busybox_root],
        config={"graphStorage": storage},
    )
    assert pod.ended() == 0, pod.output()
    assert pod.log().split() == ["151", "0"]


# --- where overlay is not to be had ----------------------------------------------------------------------------


@pytest.fixture
def on_overlay(tmp_path: Path) -> Iterator[None]:
    """The pods' directory is itself an overlay, which refuses to be an overlay's upper."""
    parts = Path(f"{tmp_path}.parts")
    for name in ("lower", "upper", "work"):
        (parts / name).mkdir(parents=True)
    options = f"lowerdir={parts}/lower,upperdir={parts}/upper,workdir={parts}/work"
    subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", tmp_path], check=True)
    yield
    subprocess.run(["umount", tmp_path], check=True)


def test_a_copy_where_overlay_is_not_to_be_had(on_overlay, pods):
    """By itself, and it is told."""
    pod = pods({"main": shell("echo x > /etc/new; cat /etc/new; stat -f -c %T /")})
    assert pod.ended() == 0, pod.output()
    assert pod.log().startswith("x\n")
    (note,) = [note for note in pod.document()["notes"] if "is a copy" in note]
    assert note.startswith("app main: its root is a copy, since overlay is not to be had (")


def test_overlay_and_nothing_else(on_overlay, pods):
    """Asked for, it is not replaced behind the admin's back."""
    pod = pods({"main": shell("true")}, config={"graphStorage": "overlay"})
    with pytest.raises(StagerError, match="cannot make its root filesystem"):
        pod.started()


# --- sharing blocks --------------------------------------------------------------------------------------------


@pytest.fixture
def on_xfs(tmp_path: Path) -> Iterator[str]:
    """The pods' directory is an xfs, where files may share blocks."""
    image = f"{tmp_path}.img"
    with open(image, "wb") as out:
        out.truncate(320 << 20)
    subprocess.run(["mkfs.xfs", "-q", "-m", "reflink=1", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, tmp_path], check=True)
    yield str(tmp_path)
    subprocess.run(["umount", tmp_path], check=True)


def used(path: str) -> int:
    os.sync()
    found = os.statvfs(path)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


@pytest.mark.full
def test_copies_share_their_blocks(on_xfs, pods, busybox_root):
    """A root of 100 MB that takes next to none, and goes its own way when it is written to."""
    layer = f"{on_xfs}/layer"
    os.makedirs(f"{layer}/big")
    content = os.urandom(1 << 20)
    with open(f"{layer}/big/file", "wb") as out:
        for _ in range(100):
            out.write(content)
    before = used(on_xfs)
    script = "sha256sum /big/file | cut -c1-8; printf changed | dd of=/big/file conv=notrunc; sleep 1000"
    pod = pods({"main": shell(script)}, roots=[layer, busybox_root], config={"graphStorage": "copy"}).started()
    pod.wait_log("records out")
    assert pod.log(stream=b"stdout").strip() == hashlib.sha256(content * 100).hexdigest()[:8]
    assert used(on_xfs) - before < 16 << 20
    with open(f"{layer}/big/file", "rb") as file:
        assert file.read(1 << 20) == content
