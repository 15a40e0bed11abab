"""Files that are replaced whole, by way of one that was made before."""

from __future__ import annotations

import os

import pytest

from kurma_core.linux.files import spare_file, use_spare


@pytest.fixture
def paths(tmp_path):
    (tmp_path / "it").write_bytes(b"old")
    return str(tmp_path / "spare"), str(tmp_path / "it")


def read(path):
    with open(path, "rb") as file:
        return file.read()


@pytest.mark.parametrize("made", [b"", b"before"])
def test_what_was_made_before_is_used_once(paths, made):
    spare, path = paths
    spare_file(spare, made)
    inode = os.stat(spare).st_ino
    use_spare(spare, path, b"{}")
    assert os.stat(path).st_ino == inode
    assert not os.path.exists(spare)
    # With a content, its place on the disk is kept: blanks fill it.
    assert read(path) == (b"{}".ljust(4096) if made else b"{}")


def test_nothing_was_made_before(paths):
    spare, path = paths
    use_spare(spare, path, b"new")
    assert read(path) == b"new"


def test_there_is_no_room_in_it(paths):
    spare, path = paths
    spare_file(spare, b"before")
    use_spare(spare, path, b"x" * 4097)
    assert read(path) == b"x" * 4097
    assert os.listdir(os.path.dirname(path)) == ["it"]


def test_a_link_in_its_place_is_not_followed(paths, tmp_path):
    spare, path = paths
    (tmp_path / "other").write_bytes(b"other")
    os.symlink("other", spare)
    with pytest.raises(OSError):
        use_spare(spare, path, b"new")
    assert (read(path), read(tmp_path / "other")) == (b"old", b"other")
