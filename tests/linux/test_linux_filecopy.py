"""Copies into a directory that somebody else writes to meanwhile."""

import os

import pytest

from kurma_core.trees import copying


def test_a_link_put_in_the_place_of_a_copy_leads_nowhere(tmp_path, monkeypatch):
    """Between its making and its mode, a file is swapped for a link: what that points at keeps its mode."""
    for name in ("source", "target"):
        (tmp_path / name).mkdir()
    (tmp_path / "source" / "file").write_text("text")
    (tmp_path / "source" / "file").chmod(0o4777)
    victim = tmp_path / "victim"
    victim.write_text("not of the tree")
    victim.chmod(0o600)
    chown = os.chown

    def swap(name, *args, dir_fd, **more):
        chown(name, *args, dir_fd=dir_fd, **more)
        os.unlink(name, dir_fd=dir_fd)
        os.symlink(victim, name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "chown", swap)
    source, target = (os.open(tmp_path / name, os.O_RDONLY | os.O_DIRECTORY) for name in ("source", "target"))
    try:
        with pytest.raises(OSError):
            copying.Copies(target).make(source, target, (), "file")
    finally:
        os.close(source)
        os.close(target)
    assert victim.stat().st_mode & 0o7777 == 0o600
    assert not (tmp_path / "target" / "file").is_symlink()


def test_each_source_is_tried_anew(tmp_path, monkeypatch):
    """That blocks cannot be shared with one file system says nothing of the next."""
    tried = []

    def refuse(writer, request, reader):
        tried.append(os.fstat(reader).st_ino)
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(copying.fcntl, "ioctl", refuse)
    for name in ("one", "two", "target"):
        (tmp_path / name).mkdir()
    for name in ("one/a", "one/b", "two/c", "two/d"):
        (tmp_path / name).write_text(name)
    one, two, target = (os.open(tmp_path / name, os.O_RDONLY) for name in ("one", "two", "target"))
    copies = copying.Copies(target)
    for source, names in ((one, "ab"), (two, "cd")):
        copies.next_source()
        for name in names:
            copies.make(source, target, (), name)
    for fd in (one, two, target):
        os.close(fd)
    assert len(tried) == 2
    assert (tmp_path / "target/d").read_text() == "two/d"
