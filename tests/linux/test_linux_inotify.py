"""Waiting for files to change."""

import os
import select

from kurma_core.linux.inotify import IN_CREATE, Watch


def readable(watch):
    return bool(select.select([watch], [], [], 0.1)[0])


def test_a_change_wakes_until_it_is_drained(tmp_path):
    watch = Watch(str(tmp_path))
    assert not readable(watch)
    (tmp_path / "new").touch()
    assert readable(watch)
    assert watch.drain() & IN_CREATE
    assert not readable(watch)
    watch.close()


def test_nothing_is_watched_once_it_is_forgotten(tmp_path):
    (tmp_path / "other").mkdir()
    watch = Watch(str(tmp_path))
    watch.add(str(tmp_path / "other"), IN_CREATE)
    (tmp_path / "other").rmdir()
    watch.forget()
    watch.drain()
    (tmp_path / "new").touch()
    assert not readable(watch)
    watch.forget()
    os.fstat(watch.fileno())
    watch.close()
