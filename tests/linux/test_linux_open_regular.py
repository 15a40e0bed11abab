"""A regular file of a tree that strangers fill is opened; a device, a FIFO, a link in its place never is (S5)."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from kurma_fetch_http.file_archive import local_archive
from kurma_stager_rkt import pod_processes
from kurma_stager_rkt.records import app_statuses

from kurma_core.appc.image import ImageManifest
from kurma_core.errors import KurmaError
from kurma_core.formats.rotated_log import LogChain
from kurma_core.hookspecs.renderer import ImageLayer
from kurma_core.image_store.builder import build_archive
from kurma_core.images.user_groups import ImageFiles
from kurma_core.linux import beneath
from kurma_core.linux.inotify import Watch
from kurma_core.named_files import opened
from kurma_core.pods.network import hosts_and_resolv_conf
from kurma_core.staging.stager_status import read_status_file
from kurma_core.trees import user_database

_IN_OPEN = 0x20


def _by_root(read: Callable[[int], object]) -> Callable[[Path], object]:
    def call(root: Path) -> object:
        fd = os.open(root, os.O_PATH)
        try:
            return read(fd)
        finally:
            os.close(fd)

    return call


def _users(root: Path) -> ImageFiles:
    return ImageFiles([ImageLayer("l", str(root), (), ())])


#: What reads files of images, roots, stagers and strangers: the file's place below a directory, and the reader.
READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a layer's users": (
        "etc/passwd",
        lambda root: _users(root).groups_of("app"),
    ),
    "a layer's groups": (
        "etc/group",
        lambda root: (
            (root / "etc/passwd").write_text("app:x:1:1::/:\n"),
            _users(root).groups_of("app"),
        ),
    ),
    "an app's users": ("etc/passwd", _by_root(lambda fd: user_database.find_user(fd, "0"))),
    "an app's groups": ("etc/group", _by_root(lambda fd: user_database.groups_of(fd, "app"))),
    "a stager's status": ("pod/status.json", lambda root: read_status_file(str(root))),
    "an app's log": ("app.log", lambda root: LogChain(f"{root}/app.log").look()),
    "an app's hosts": (
        "hosts",
        _by_root(lambda fd: hosts_and_resolv_conf.update(fd, "hosts", b"x # kurma\n", b"")),
    ),
    "stage1's process": ("pid", lambda root: pod_processes.pod_pid(str(root))),
    "stage1's cgroup": ("subcgroup", lambda root: pod_processes.subcgroup(str(root))),
    "stage1's exit codes": (
        "stage1/rootfs/rkt/status/a",
        lambda root: ((root / "appsinfo/a").mkdir(parents=True), app_statuses(str(root), alive=False)),
    ),
    "an archive": ("a.aci", lambda root: local_archive(f"file://{root}/a.aci")),
    "a named file": ("a.yml", lambda root: opened(f"{root}/a.yml")),
    "a tree of a new image": (
        "rootfs/dev/null",
        lambda root: build_archive(str(root / "rootfs"), ImageManifest("a"), io.BytesIO()),
    ),
}


@pytest.mark.parametrize("kind", ["fifo", "device"])
@pytest.mark.parametrize("reader", READERS)
def test_nothing_but_a_regular_file_is_opened(tmp_path: Path, reader: str, kind: str) -> None:
    path, read = READERS[reader]
    place = tmp_path / path
    place.parent.mkdir(parents=True, exist_ok=True)
    if kind == "device" and os.geteuid() != 0:
        return  # as root, in the other run; a FIFO is told by the same look
    if kind == "fifo":
        os.mkfifo(place)
    else:
        os.mknod(place, 0o20600, os.makedev(1, 3))
    watch = Watch(str(place), _IN_OPEN)
    try:
        with contextlib.suppress(KurmaError, OSError):
            read(tmp_path)
        assert watch.drain() == 0, "it was opened"
    finally:
        os.close(watch.fd)


def test_what_is_refused_and_how(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "fifo")
    root = os.open(tmp_path, os.O_PATH)
    before = len(os.listdir("/proc/self/fd"))
    try:
        for proc in (True, False):
            fd = beneath.open_regular(root, "file", proc=proc)
            assert os.read(fd, 10) == b"content"
            os.close(fd)
            for name in ("fifo", "."):
                with pytest.raises(beneath.NotRegularError, match="not a regular file"):
                    beneath.open_regular(root, name, proc=proc)
            for resolve in ({}, {"resolve": 0}):
                with pytest.raises(OSError) as caught:
                    beneath.open_regular(root, "link", os.O_RDONLY | os.O_NOFOLLOW, proc=proc, **resolve)
                assert caught.value.errno == errno.ELOOP
            os.close(beneath.open_regular(root, "link", resolve=beneath.RESOLVE_IN_ROOT, proc=proc))
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        os.close(root)


def test_a_file_that_is_swapped_for_a_fifo_all_the_time(tmp_path: Path) -> None:
    """The FIFO is not opened in between, also where the file was found regular a moment ago."""
    (tmp_path / "a").write_text("content")
    os.mkfifo(tmp_path / "b")
    watch = Watch(str(tmp_path / "b"), _IN_OPEN)
    root = os.open(tmp_path, os.O_PATH)
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            os.rename(tmp_path / "a", tmp_path / "c")
            os.rename(tmp_path / "b", tmp_path / "a")
            os.rename(tmp_path / "a", tmp_path / "b")
            os.rename(tmp_path / "c", tmp_path / "a")

    thread = threading.Thread(target=swap)
    thread.start()
    seen = set()
    try:
        for _ in range(20_000):
            try:
                os.close(beneath.open_regular(root, "a"))
                seen.add("file")
            except OSError as error:
                seen.add(type(error).__name__)
            if {"file", "NotRegularError"} <= seen and len(seen) > 2:
                break
    finally:
        stop.set()
        thread.join()
        os.close(root)
    assert {"file", "NotRegularError"} <= seen, "the race was not run"
    assert watch.drain() == 0
    os.close(watch.fd)
