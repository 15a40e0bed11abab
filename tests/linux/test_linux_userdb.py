"""Users and groups of an image (H6)."""

import os
import time

import pytest

from kurma_core.trees import user_database

PASSWD = """\
root:x:0:0:root:/root:/bin/sh
# comment
alice:x:1000:100:Alice:/home/alice:/bin/ash
77:x:5:6::/numeric:
broken:x:notanumber:0::/:
short:x:8
bare:x:9:10
+nis
"""
GROUP = "root:x:0:\nusers:x:100:alice\n88:x:7:\nwheel:x:10:root,alice\nbroken:x:z:alice\n"


@pytest.fixture
def root(tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text(PASSWD)
    (tmp_path / "etc/group").write_text(GROUP)
    fd = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def user(root, text):
    found = user_database.find_user(root, text)
    return found.uid, found.gid, found.name, found.home, found.shell


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("alice", (1000, 100, "alice", "/home/alice", "/bin/ash")),
        ("1000", (1000, 100, "alice", "/home/alice", "/bin/ash")),
        ("77", (5, 6, "77", "/numeric", None)),
        ("4711", (4711, 0, None, None, None)),
        ("", (0, 0, "root", "/root", "/bin/sh")),
        ("bare", (9, 10, "bare", None, None)),
        ("4294967294", (4294967294, 0, None, None, None)),
    ],
)
def test_users(root, text, expected):
    """A name first, even one that is all digits; then a number."""
    assert user(root, text) == expected


@pytest.mark.parametrize("text", ["bob", "broken", "short", "-1", "1x", "4294967295", "9" * 4000, "\u0665"])
def test_no_such_user(root, text):
    with pytest.raises(LookupError):
        user_database.find_user(root, text)


def test_groups(root):
    assert user_database.find_group(root, "users") == 100
    assert user_database.find_group(root, "88") == 7
    assert user_database.find_group(root, "12") == 12
    assert user_database.groups_of(root, "alice") == [100, 10]
    with pytest.raises(LookupError):
        user_database.find_group(root, "staff")


def test_a_path_means_its_owner(root, tmp_path):
    os.symlink("/etc/passwd", tmp_path / "link")
    status = os.stat(tmp_path / "etc/passwd")
    found = user_database.find_user(root, "/link")
    assert (found.uid, found.gid) == (status.st_uid, status.st_gid)
    assert user_database.find_group(root, "/link") == status.st_gid
    with pytest.raises(FileNotFoundError):
        user_database.find_user(root, "/etc/none")


def test_links_lead_nowhere_outside(root, tmp_path):
    """An image whose /etc/passwd is a link sees its own file behind it, or none; never the host's."""
    os.unlink(tmp_path / "etc/passwd")
    os.symlink("../../../../../../etc/hostname", tmp_path / "etc/passwd")
    (tmp_path / "etc/hostname").write_text("mallory:x:12:13::/:\n")
    assert user_database.find_user(root, "mallory").uid == 12
    os.unlink(tmp_path / "etc/hostname")
    with pytest.raises(LookupError):
        user_database.find_user(root, "root")


@pytest.mark.parametrize("kind", ["fifo", "directory", "missing"])
def test_what_is_no_file_is_not_read(root, tmp_path, kind):
    """A FIFO in the place holds nobody up."""
    os.unlink(tmp_path / "etc/passwd")
    if kind == "fifo":
        os.mkfifo(tmp_path / "etc/passwd")
    elif kind == "directory":
        os.mkdir(tmp_path / "etc/passwd")
    assert user(root, "5") == (5, 0, None, None, None)


def test_a_monstrous_file_is_refused(root, tmp_path):
    with open(tmp_path / "etc/passwd", "r+b") as file:
        file.truncate(17 << 20)
    with pytest.raises(OSError, match="too many"):
        user_database.find_user(root, "root")


@pytest.mark.parametrize(
    "line",
    [
        "x:y:\u00b2:0::/:",  # a digit to Python, and yet no number
        "x:y:\u0665:0::/:",
        "x:y:" + "9" * 5000 + ":0::/:",
        "x:y:4294967295:0::/:",
        "x:y:-1:0::/:",
        "#x:y:0:0::/:",
        "+x:y:0:0::/:",
    ],
)
def test_a_line_that_no_user_can_have_is_none(root, tmp_path, line):
    """A stranger's file: what is wrong in it is passed over, not fallen over."""
    (tmp_path / "etc/passwd").write_text(f"{line}\nx:y:3:4::/home/x:\n")
    (tmp_path / "etc/group").write_text(f"{line}\nx:y:6:x\n")
    assert user(root, "x") == (3, 4, "x", "/home/x", None)
    assert user_database.find_group(root, "x") == 6
    assert user_database.groups_of(root, "x") == [6]


def test_odd_names_and_bytes(root, tmp_path):
    (tmp_path / "etc/passwd").write_text("x:y:0:4294967296::/:\nx:y:3:4::/:\n")
    assert user(root, "x")[:2] == (3, 4)
    (tmp_path / "etc/passwd").write_bytes(b"\xff\xfe:x:1:1::/\xff:\nlast:x:2:3::/:/bin/sh:more:and more")
    assert user(root, "last") == (2, 3, "last", "/", "/bin/sh")
    assert user(root, os.fsdecode(b"\xff\xfe"))[:2] == (1, 1)
    for text in ("\ud800", "a:x", "x:2", "last\n", "\0"):
        with pytest.raises(LookupError):
            user_database.find_user(root, text)


def test_a_million_lines_hold_nobody_up(root, tmp_path):
    (tmp_path / "etc/passwd").write_text("a\n" * 4_000_000 + "last:x:7:8::/:\n" + ":" * 4_000_000)
    (tmp_path / "etc/group").write_text("g:x:9:" + "last," * 1_000_000 + "last\n")
    began = time.process_time()
    assert user(root, "last")[:2] == (7, 8)
    assert user(root, "7")[:2] == (7, 8)
    assert user(root, "12345")[:2] == (12345, 0)
    assert user_database.groups_of(root, "last") == [9]
    assert time.process_time() - began < 2
