"""What a relay reads of its caller's standard input."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kurma_core.errors import UsageError
from kurma_core.models.streams import Stdio
from kurma_core.staging import caller_streams
from kurma_core.staging.relay import CallerRelay


def test_a_directory_as_standard_input_is_told_in_one_line(tmp_path: Path) -> None:
    """And nothing is left open."""
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    before = os.listdir("/proc/self/fd")
    try:
        with pytest.raises(UsageError, match=r"^cannot read standard input: it is a directory$"):
            CallerRelay(Stdio(fd, 1, 2), wants_terminal=False)
        assert os.listdir("/proc/self/fd") == before
    finally:
        os.close(fd)


def test_nothing_is_read_of_a_descriptor_for_writing_or_a_closed_one(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    assert caller_streams.reader(fd) == -1
    os.close(fd)
    assert caller_streams.reader(fd) == -1


def test_the_mode_of_the_callers_pipe_stays_and_a_file_keeps_one_position(tmp_path: Path) -> None:
    read, write = os.pipe()
    ours = caller_streams.reader(read)
    assert (os.get_blocking(read), os.get_blocking(ours)) == (True, False)
    assert caller_streams.read(ours, 10) is None
    os.close(write)
    assert caller_streams.read(ours, 10) == b""
    (tmp_path / "in").write_text("one two")
    with open(tmp_path / "in", "rb") as file:
        of_file = caller_streams.reader(file.fileno())
        assert caller_streams.read(of_file, 3) == b"one"
        assert os.read(file.fileno(), 10) == b" two"
    for fd in (read, ours, of_file):
        os.close(fd)
