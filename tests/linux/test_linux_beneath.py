import errno
import os
import stat
import threading

import pytest

from kurma_core.errors import Cancelled
from kurma_core.linux import beneath, libc
from kurma_core.trees import mount_targets


@pytest.fixture
def root(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    directory = tmp_path / "root"
    directory.mkdir()
    fd = os.open(directory, os.O_PATH)
    yield directory, fd
    os.close(fd)


def read(fd):
    with os.fdopen(fd) as file:
        return file.read()


def where(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


@pytest.mark.parametrize("path", ["../outside/secret", "sub/../../outside/secret", "out/secret", "abs/secret"])
def test_open_beneath_refuses_every_way_out(root, path):
    directory, fd = root
    (directory / "sub").mkdir()
    (directory / "out").symlink_to("../outside")
    (directory / "abs").symlink_to(directory.parent / "outside")
    for symlinks in (False, True):
        with pytest.raises(OSError) as caught:
            beneath.open_beneath(fd, path, os.O_RDONLY, symlinks=symlinks)
        assert caught.value.errno in (errno.EXDEV, errno.ELOOP)
        assert caught.value.filename == path


def test_open_beneath_follows_inner_links_only_when_asked(root):
    directory, fd = root
    (directory / "file").write_text("inner")
    (directory / "link").symlink_to("file")
    assert read(beneath.open_beneath(fd, "/link", os.O_RDONLY, symlinks=True)) == "inner"
    with pytest.raises(OSError) as caught:
        beneath.open_beneath(fd, "link", os.O_RDONLY)
    assert caught.value.errno == errno.ELOOP


def test_open_in_root_stays_inside(root):
    directory, fd = root
    (directory / "etc").mkdir()
    (directory / "etc" / "x").write_text("inner")
    (directory / "abs").symlink_to("/etc/x")
    (directory / "up").symlink_to("../../../../etc/x")
    assert read(beneath.open_in_root(fd, "abs", os.O_RDONLY)) == "inner"
    assert read(beneath.open_in_root(fd, "/../up", os.O_RDONLY)) == "inner"


def test_a_racing_swap_for_a_link_never_leads_out(root):
    directory, fd = root
    (directory / "d").mkdir()
    (directory / "d" / "secret").write_text("inner")
    (directory / "l").symlink_to("../outside")
    renameat2, exchange = {"x86_64": 316, "aarch64": 276}[os.uname().machine], 2
    stop = threading.Event()

    def swap():
        while not stop.is_set():
            libc.syscall(renameat2, -100, bytes(directory / "d"), -100, bytes(directory / "l"), exchange)

    thread = threading.Thread(target=swap)
    thread.start()
    seen: set[object] = set()
    made: set[str] = set()
    try:
        for _ in range(2000):
            for how in (beneath.open_beneath, beneath.open_in_root):
                try:
                    seen.add(read(how(fd, "d/../d/secret", os.O_RDONLY)))
                except OSError as error:
                    seen.add(error.errno)
            made.add(where(mount_targets.make_mount_target(fd, "d/made", directory=True)))
    finally:
        stop.set()
        thread.join()
    assert "secret" not in seen
    assert {"inner", errno.ENOENT} <= seen, "the race was not run"
    assert made <= {f"{directory}/d/made", f"{directory}/l/made", f"{directory}/outside/made"}
    assert not (directory.parent / "outside" / "made").exists()


def deep_tree(directory):
    """Directories one in the other, each with a file, whose path is longer than the kernel permits."""
    at = os.open(directory, os.O_PATH)
    os.mkdir("deep", dir_fd=at)
    top = at
    at = os.open("deep", os.O_PATH, dir_fd=at)
    os.close(top)
    for _ in range(3000):
        os.mkdir("d", dir_fd=at)
        deeper = os.open("d", os.O_PATH, dir_fd=at)
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=deeper))
        os.close(at)
        at = deeper
    os.close(at)


def test_remove_tree_of_any_depth_and_missing(root):
    directory, fd = root
    deep_tree(directory)
    before = len(os.listdir("/proc/self/fd"))
    beneath.remove_tree(fd, "deep")
    beneath.remove_tree(fd, "deep")
    assert list(directory.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before


def files_below(path, then=lambda: None):
    """The number of files and directories that the walk finds. :param then: called after the first file."""
    first = [then]

    def count(status):
        if stat.S_ISREG(status.st_mode) and first:
            first.pop()()
        return 1

    return beneath.bytes_below(str(path), count)


def test_bytes_below_of_any_depth_and_missing(root):
    directory, fd = root
    deep_tree(directory)
    before = len(os.listdir("/proc/self/fd"))
    assert files_below(directory) == 2 + 2 * 3000
    assert files_below(directory / "missing") == 0
    assert len(os.listdir("/proc/self/fd")) == before
    beneath.remove_tree(fd, "deep")


def test_bytes_below_follows_no_link_that_replaces_a_directory(root):
    directory, _ = root
    for name in ("a", "b"):
        (directory / name).mkdir()
        (directory / name / "file").touch()
    (directory.parent / "outside" / "more").touch()

    def replace():
        """The walk has listed both directories, and is in one of them: replaces the other."""
        for name in ("a", "b"):
            (directory / name).rename(directory.parent / name)
            (directory / name).symlink_to("../outside")

    assert files_below(directory, replace) == 3
    assert (directory / "a" / "secret").exists()


def test_bytes_below_ends_where_a_directory_is_moved_away(root):
    directory, _ = root
    (directory / "a" / "b").mkdir(parents=True)
    (directory / "a" / "b" / "file").touch()
    moved = directory.parent / "outside" / "b"
    before = len(os.listdir("/proc/self/fd"))
    assert files_below(directory, lambda: (directory / "a" / "b").rename(moved)) == 4
    assert len(os.listdir("/proc/self/fd")) == before


def test_bytes_below_that_is_cancelled_leaves_no_descriptor(root):
    directory, _ = root
    (directory / "a").mkdir()
    inode = (directory / "a").stat().st_ino

    def count(status):
        if status.st_ino == inode:
            raise Cancelled("the caller has gone")
        return 1

    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(Cancelled):
        beneath.bytes_below(str(directory), count)
    assert len(os.listdir("/proc/self/fd")) == before


def test_remove_tree_follows_no_link(root):
    directory, fd = root
    (directory / "tree").mkdir()
    (directory / "tree" / "out").symlink_to("../../outside")
    beneath.remove_tree(fd, "tree")
    (directory / "out").symlink_to("../outside")
    beneath.remove_tree(fd, "out")
    assert (directory.parent / "outside" / "secret").read_text() == "secret"
    for name in ("..", ".", "", "a/b"):
        with pytest.raises(OSError) as caught:
            beneath.remove_tree(fd, name)
        assert caught.value.errno == errno.EINVAL
