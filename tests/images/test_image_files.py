"""Archive files that people name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kurma_core.errors import HostError
from kurma_core.images.archives import opened, written


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (str(tmp_path / "pipe"), "/dev/zero", str(tmp_path)):
        with pytest.raises(HostError, match=r"not a regular file|is a directory"), opened(path):
            pass


def test_a_file_that_cannot_take_its_name_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(HostError, match="cannot be written: is a directory"), written(str(target)) as out:
        out.write(b"x")
    assert os.listdir(tmp_path) == ["target"]


def test_it_appears_whole_or_not_at_all(tmp_path: Path) -> None:

    def half() -> None:
        with written(str(tmp_path / "a")) as out:
            out.write(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        half()
    assert os.listdir(tmp_path) == []
    with written(str(tmp_path / "a")) as out:
        out.write(b"whole")
    assert (tmp_path / "a").read_bytes() == b"whole"
