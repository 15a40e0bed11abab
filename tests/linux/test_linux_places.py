"""Places to mount on: whatever links a tree holds, and however deep they lead, nothing outside is touched (V3)."""

import errno
import os
import resource
import stat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kurma_testing.graphs import examples

from kurma_core.linux import beneath
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
    # Nobody else removes trees as deep as these.
    top = os.open(tmp_path, os.O_PATH)
    beneath.remove_tree(top, "root")
    os.close(top)


def where(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def place(fd, path, *, directory=True):
    """The place's path and what it replaced, by itself and as the kernel has it."""
    owner = (os.getuid(), os.getgid())
    found = mount_targets.make_place(fd, path, directory=directory, owner=owner)
    where_root = os.readlink(f"/proc/self/fd/{fd}")
    assert where(found.fd) == where_root + found.path.rstrip("/")
    return found.path, list(found.replaced)


def test_make_dirs_makes_exact_modes_whatever_the_umask(root):
    directory, fd = root
    old = os.umask(0o077)
    try:
        assert where(mount_targets.make_dirs(fd, "a/b/c", 0o751, os.getuid(), os.getgid())) == f"{directory}/a/b/c"
        os.close(mount_targets.make_dirs(fd, "a/b/c", 0o700, os.getuid(), os.getgid()))
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
        mount_targets.make_dirs(fd, path)
    assert caught.value.errno == code
    assert [entry.name for entry in (directory.parent / "outside").iterdir()] == ["secret"]


def test_mount_targets_follow_links_inside_only(root):
    directory, fd = root
    (directory / "abs").symlink_to("/run/lock")
    (directory / "up").symlink_to("../../outside")
    (directory / "loop").symlink_to("loop")
    assert where(mount_targets.make_mount_target(fd, "/abs/x", directory=True)) == f"{directory}/run/lock/x"
    assert where(mount_targets.make_mount_target(fd, "/up/x", directory=True)) == f"{directory}/outside/x"
    assert where(mount_targets.make_mount_target(fd, "/../../y", directory=True)) == f"{directory}/y"
    assert where(mount_targets.make_mount_target(fd, "abs/f", directory=False)) == f"{directory}/run/lock/f"
    with pytest.raises(OSError) as caught:
        mount_targets.make_mount_target(fd, "loop/x", directory=True)
    assert caught.value.errno == errno.ELOOP
    assert not (directory.parent / "outside" / "x").exists()


def test_a_file_in_the_way_becomes_a_directory(root):
    directory, fd = root
    (directory / "data").write_text("in the way")
    assert where(mount_targets.make_mount_target(fd, "data/sub", directory=True)) == f"{directory}/data/sub"
    assert stat.S_IMODE((directory / "data").stat().st_mode) == 0o755


def test_a_file_is_mounted_on_a_file(root):
    directory, fd = root
    (directory / "there").write_text("kept")
    os.close(mount_targets.make_mount_target(fd, "there", directory=False))
    assert (directory / "there").read_text() == "kept"
    (directory / "dir").mkdir()
    with pytest.raises(IsADirectoryError):
        mount_targets.make_mount_target(fd, "dir", directory=False)


def test_where_a_place_is_and_what_it_replaced(root):
    directory, fd = root
    (directory / "sub").mkdir()
    for name in ("file", "sub/file"):
        (directory / name).write_text("in the way")
    (directory / "link").symlink_to("/sub/../sub/./file")
    (directory / "dangling").symlink_to("../new/../newer")
    os.mkfifo(directory / "fifo")
    assert place(fd, "/") == ("/", [])
    assert place(fd, "sub//./x/..") == ("/sub", [])
    assert place(fd, "link/a/b") == ("/sub/file/a/b", ["/sub/file"])
    assert place(fd, "file") == ("/file", ["/file"])
    assert place(fd, "fifo/x") == ("/fifo/x", ["/fifo"])
    assert place(fd, "dangling") == ("/newer", [])
    assert (directory / "new").is_dir(), "as a process would have needed it"
    assert place(fd, "a/b/file", directory=False) == ("/a/b/file", [])
    assert place(fd, "../../../..") == ("/", [])


@pytest.mark.full
def test_the_longest_paths(root):
    """Names of 255 bytes, paths of 4095, and by links longer ones than any process could name."""
    directory, fd = root
    name = "n" * 255
    assert place(fd, f"/{name}/{name}")[0] == f"/{name}/{name}"
    with pytest.raises(OSError, match="name too long"):
        place(fd, f"/{name}x")
    deep = "/d" * 2000
    before = len(os.listdir("/proc/self/fd"))
    found = mount_targets.make_place(fd, deep, directory=True, owner=(os.getuid(), os.getgid()))
    assert found.path == deep
    os.close(found.fd)
    (directory / "first").symlink_to("d" + "/d" * 1999)
    for turn in ("/first", "/first/first", "/first/first/first"):
        if turn != "/first":
            at = mount_targets.make_place(
                fd, os.path.dirname(turn), directory=True, owner=(os.getuid(), os.getgid())
            )
            os.symlink("e/" * 1500, "first", dir_fd=at.fd)
            os.close(at.fd)
        far = mount_targets.make_place(fd, turn + "/x", directory=True, owner=(os.getuid(), os.getgid()))
        assert far.path.count("/") == {1: 2001, 2: 3501, 3: 5001}[turn.count("/")]
        os.close(far.fd)
    assert len(os.listdir("/proc/self/fd")) == before
    # It need not know a path to go back on it.
    back = mount_targets.make_place(fd, "/first/first/first" + "/.." * 1300 + "/y", directory=True, owner=(0, 0))
    assert back.path.count("/") == 5000 - 1300 + 1
    os.close(back.fd)


def test_few_descriptors_are_enough(root):
    _, fd = root
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd"))) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 6, hard))
    try:
        found = mount_targets.make_place(
            fd, "/d" * 300 + "/.." * 20, directory=True, owner=(os.getuid(), os.getgid())
        )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found.path == "/d" * 280
    os.close(found.fd)


NAMES = st.sampled_from(["a", "b", "c", "d"])
PARTS = st.lists(NAMES | st.just("..") | st.just("."), min_size=1, max_size=5)
TREES = st.lists(st.tuples(st.lists(NAMES, min_size=1, max_size=3), PARTS, st.booleans()), max_size=6)


@settings(max_examples=examples(50), deadline=None)
@given(TREES, PARTS)
def test_any_links_at_all(tmp_path_factory, links, path):
    """What is found or made is what a process with that root finds under the same path afterwards."""
    top = tmp_path_factory.mktemp("any")
    root = top / "root"
    root.mkdir()
    for name, target, absolute in links:
        link = root.joinpath(*name)
        if any(parent.is_symlink() for parent in link.parents):
            continue
        try:
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(("/" if absolute else "") + "/".join(target))
        except OSError:
            continue  # another one is in its place
    fd = os.open(root, os.O_PATH)
    try:
        found = mount_targets.make_place(fd, "/".join(path), directory=True, owner=(os.getuid(), os.getgid()))
    except OSError as error:
        assert error.errno == errno.ELOOP  # noqa: PT017 - one of two ways
        os.close(fd)
    else:
        assert os.path.samestat(os.fstat(found.fd), os.lstat(f"{root}{found.path}"))
        assert os.path.samestat(os.fstat(found.fd), inside(fd, "/".join(path)))
        os.close(found.fd)
        os.close(fd)
    assert os.listdir(top) == ["root"]


def inside(fd, path):
    """What a path leads to in a process whose root this is."""
    opened = beneath.open_in_root(fd, path, os.O_PATH)
    try:
        return os.fstat(opened)
    finally:
        os.close(opened)
