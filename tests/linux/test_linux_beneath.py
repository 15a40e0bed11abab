import errno
import os
import stat
import threading

import pytest

from kurma_core.linux import beneath, libc


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
            made.add(where(beneath.make_mount_target(fd, "d/made", directory=True)))
    finally:
        stop.set()
        thread.join()
    assert "secret" not in seen
    assert {"inner", errno.ENOENT} <= seen, "the race was not run"
    assert made <= {f"{directory}/d/made", f"{directory}/l/made", f"{directory}/outside/made"}
    assert not (directory.parent / "outside" / "made").exists()


def test_make_dirs_makes_exact_modes_whatever_the_umask(root):
    directory, fd = root
    old = os.umask(0o077)
    try:
        assert where(beneath.make_dirs(fd, "a/b/c", 0o751, os.getuid(), os.getgid())) == f"{directory}/a/b/c"
        os.close(beneath.make_dirs(fd, "a/b/c", 0o700, os.getuid(), os.getgid()))
    finally:
        os.umask(old)
    assert stat.S_IMODE((directory / "a" / "b").stat().st_mode) == 0o751
    assert stat.S_IMODE((directory / "a" / "b" / "c").stat().st_mode) == 0o751


@pytest.mark.parametrize(
    ("path", "code"),
    [("link/x", errno.ELOOP), ("../x", errno.EXDEV), ("file/x", errno.ENOTDIR), ("a\0b", errno.EINVAL)],
)
def test_make_dirs_refuses(root, path, code):
    directory, fd = root
    (directory / "link").symlink_to("../outside")
    (directory / "file").write_text("")
    with pytest.raises(OSError) as caught:
        beneath.make_dirs(fd, path)
    assert caught.value.errno == code
    assert [entry.name for entry in (directory.parent / "outside").iterdir()] == ["secret"]


def test_mount_targets_follow_links_inside_only(root):
    directory, fd = root
    (directory / "abs").symlink_to("/run/lock")
    (directory / "up").symlink_to("../../outside")
    (directory / "loop").symlink_to("loop")
    assert where(beneath.make_mount_target(fd, "/abs/x", directory=True)) == f"{directory}/run/lock/x"
    assert where(beneath.make_mount_target(fd, "/up/x", directory=True)) == f"{directory}/outside/x"
    assert where(beneath.make_mount_target(fd, "/../../y", directory=True)) == f"{directory}/y"
    assert where(beneath.make_mount_target(fd, "abs/f", directory=False)) == f"{directory}/run/lock/f"
    with pytest.raises(OSError) as caught:
        beneath.make_mount_target(fd, "loop/x", directory=True)
    assert caught.value.errno == errno.ELOOP
    assert not (directory.parent / "outside" / "x").exists()


def test_a_file_in_the_way_becomes_a_directory(root):
    directory, fd = root
    (directory / "data").write_text("in the way")
    assert where(beneath.make_mount_target(fd, "data/sub", directory=True)) == f"{directory}/data/sub"
    assert stat.S_IMODE((directory / "data").stat().st_mode) == 0o755


def test_a_file_is_mounted_on_a_file(root):
    directory, fd = root
    (directory / "there").write_text("kept")
    os.close(beneath.make_mount_target(fd, "there", directory=False))
    assert (directory / "there").read_text() == "kept"
    (directory / "dir").mkdir()
    with pytest.raises(IsADirectoryError):
        beneath.make_mount_target(fd, "dir", directory=False)


def test_remove_tree_of_any_depth_and_missing(root):
    directory, fd = root
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
    before = len(os.listdir("/proc/self/fd"))
    beneath.remove_tree(fd, "deep")
    beneath.remove_tree(fd, "deep")
    assert list(directory.iterdir()) == []
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
