"""Logs as the core reads them from a stager's files."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kurma_core.errors import PodError
from kurma_core.formats import cri_log
from kurma_core.formats.cri_log import Filter
from kurma_core.formats.rotated_log import LogChain
from kurma_core.models.streams import LogText
from kurma_core.pods.inside.logs import LogReader
from tests.kit.waiting import until


def parse_line(app: str, line: bytes) -> LogText:
    return cri_log.parse_line(app, line, LogText)


def texts(app: str, data: bytes) -> Iterator[LogText]:
    return cri_log.texts(app, data, LogText, set())


def tail(found: list[LogText], count: int | None) -> Iterator[LogText]:
    return cri_log.tail(found, count, LogText)


def write(directory: Path, name: str, text: bytes) -> None:
    path = directory / "pod" / "logs" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as stream:
        stream.write(text)


def test_a_line_and_its_parts() -> None:
    assert parse_line("a", b"2026-01-01T00:00:00.000000001Z stderr P half \xff line") == LogText(
        "a", "2026-01-01T00:00:00.000000001Z", "stderr", True, b"half \xff line"
    )
    assert parse_line("a", b"T stdout F ").text == b""
    assert parse_line("a", b"not ours") == LogText("a", "", "stdout", False, b"not ours")


def test_several_apps_are_merged_by_time(tmp_path: Path) -> None:
    write(tmp_path, "a.log", b"2026-01-01T00:00:01Z stdout F a1\n2026-01-01T00:00:03Z stdout F a2\n")
    write(tmp_path, "b.log", b"2026-01-01T00:00:02Z stderr F b1\n")
    with LogReader(str(tmp_path), [("a", "a.log"), ("b", "b.log"), ("c", "c.log")]) as reader:
        assert [(line.app, line.text) for line in reader.present()] == [("a", b"a1"), ("b", b"b1"), ("a", b"a2")]
        assert list(reader.present()) == []
        write(tmp_path, "b.log", b"2026-01-01T00:00:04Z stdout F half")
        assert list(reader.present()) == []
        write(tmp_path, "b.log", b" and half\n")
        assert [line.text for line in reader.present()] == [b"half and half"]


def test_more_than_one_chunk(tmp_path: Path) -> None:
    line = b"2026-01-01T00:00:01Z stdout F " + b"x" * 100_000 + b"\n"
    write(tmp_path, "a.log", line * 30)
    with LogReader(str(tmp_path), [("a", "a.log")]) as reader:
        found = b"\n".join(each.text for each in reader.present())
        assert [len(each) for each in found.split(b"\n")] == [100_000] * 30


@pytest.mark.parametrize("raw", [False, True])
def test_a_line_that_does_not_end_is_not_kept_in_memory(tmp_path: Path, raw: bool) -> None:
    """It comes in parts, of the time and stream of its beginning; nothing of it is lost."""
    path = tmp_path / "a.log"
    line = b"abcdefg\n"[:7] * 1_500_000
    path.write_bytes(b"T1 stderr F " + line + b"\nT2 stdout F next\n")
    file = cri_log.LogFile(str(path), "a", LogText, raw=raw)
    found = [*file.read_all(), *file.rest()]
    file.close()
    parts = [each for each in found if each.partial]
    assert len(parts) > 3
    assert max(len(each.text) for each in found) < 4 << 20
    whole = b"".join(each.text if each.partial else each.text + b"\n" for each in found)
    if raw:
        assert whole == path.read_bytes()
    else:
        assert whole == line + b"\nnext\n"
        assert {(each.at, each.stream) for each in found[:-1]} == {("T1", "stderr")}
        assert found[-1] == LogText("a", "T2", "stdout", False, b"next")


def test_following_ends_with_the_descriptor_and_loses_nothing(tmp_path: Path) -> None:
    write(tmp_path, "a.log", b"T stdout F 1\n")
    ended, end = os.pipe()
    seen: list[bytes] = []

    def writer() -> None:
        until(lambda: len(seen) == 1)
        write(tmp_path, "a.log", b"T stdout F 2\n")
        until(lambda: len(seen) == 2)
        write(tmp_path, "a.log", b"T stdout F 3\n")
        os.close(end)

    thread = threading.Thread(target=writer)
    thread.start()
    with LogReader(str(tmp_path), [("a", "a.log")]) as reader:
        seen.extend(line.text for line in reader.follow(ended))
    thread.join()
    os.close(ended)
    assert seen == [b"1", b"2", b"3"]


def test_half_a_line_that_is_taken_back_is_not_shown(tmp_path: Path) -> None:
    """As a writer does whose disk is full, while somebody follows."""
    one, two = b"T stdout F one\n", b"T stdout F a longer line, with the second one in it\n"
    write(tmp_path, "a.log", one + b"T stdout F ha")
    with LogReader(str(tmp_path), [("a", "a.log")]) as reader:
        assert [line.text for line in reader.present()] == [b"one"]
        os.truncate(tmp_path / "pod" / "logs" / "a.log", len(one))
        write(tmp_path, "a.log", two)
        assert [line.text for line in reader.present()] == [b"a longer line, with the second one in it"]
        write(tmp_path, "a.log", b"2026-01-01T00:0")
        assert list(reader.present()) == []
        os.truncate(tmp_path / "pod" / "logs" / "a.log", len(one + two))
        assert list(reader.present()) == []
        assert list(reader.rest()) == []


def test_a_link_for_a_log_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "pod" / "logs").mkdir(parents=True)
    os.symlink("/etc/passwd", tmp_path / "pod" / "logs" / "a.log")
    with (
        LogReader(str(tmp_path), [("a", "a.log")]) as reader,
        pytest.raises(PodError, match="cannot read the log"),
    ):
        list(reader.present())


def test_a_stager_without_logs_has_its_output_shown(tmp_path: Path) -> None:
    """G8"""
    (tmp_path / "stager").mkdir()
    (tmp_path / "stager" / "output").write_bytes(b"one\ntwo")
    with LogReader(str(tmp_path), [("a", "a.log")]) as reader:
        assert [(line.text, line.partial) for line in reader.rest()] == [(b"one", False), (b"two", True)]


def one_by_one(data: bytes) -> list[LogText]:
    return [parse_line("a", line) for line in data.split(b"\n")[:-1]]


def split(found: list[LogText]) -> list[LogText]:
    return [
        text._replace(text=line)
        for text in found
        for line in ([text.text] if text.partial else text.text.split(b"\n"))
    ]


ENTRY = st.tuples(
    st.sampled_from([b"T1 stdout F ", b"T1 stderr F ", b"T2 stdout F ", b"T2 stdout P ", b"T1 stdout X ", b""]),
    st.sampled_from([b"", b" ", b"x", b"T1 stdout F ", b"T2 stdout F y", b"y" * 5000]),
)


@given(st.lists(st.tuples(ENTRY, st.integers(1, 40)), max_size=12))
def test_lines_that_come_together_are_the_same_lines(entries: list[tuple[tuple[bytes, bytes], int]]) -> None:
    data = b"".join((head + text + b"\n") * count for (head, text), count in entries)
    assert split(list(texts("a", data))) == one_by_one(data)


def test_lines_of_one_moment_come_together() -> None:
    data = b"".join(b"T%d stdout F line %d\n" % (number // 800, number) for number in range(8000))
    found = list(texts("a", data))
    assert split(found) == one_by_one(data)
    assert len(found) < 100


def test_many_moments_take_no_longer() -> None:
    """Each of two lines, the worst that a stager could write: nothing is looked through again and again."""
    data = b"".join(b"T%d stdout F %d\n" % (number // 2, number) for number in range(200_000))
    begun = time.process_time()
    assert sum(text.text.count(b"\n") + 1 for text in texts("a", data)) == 200_000
    assert time.process_time() - begun < 5


def lines(*parts: tuple[str, bool]) -> list[LogText]:
    return [LogText("a", "", "stdout", partial, text.encode()) for text, partial in parts]


def test_tail_counts_whole_lines() -> None:
    given = lines(("1", False), ("2a", True), ("2b", False), ("3", False))
    assert [line.text for line in tail(given, 2)] == [b"2a", b"2b", b"3"]
    assert list(tail(given, 0)) == []
    assert list(tail(given, None)) == given


def test_filter_by_time_and_stream() -> None:
    line = LogText("a", "2026-01-01T00:00:10.5Z", "stdout", False, b"")
    at = 1767225610_000_000_000  # 2026-01-01T00:00:10Z
    assert Filter(at, None)(line)
    assert Filter(at + 500_000_000, None)(line)
    assert not Filter(at + 500_000_001, None)(line)
    assert not Filter(None, "stderr")(line)


def turn(directory: Path, name: str, count: int) -> None:
    """As a stager turns a log: NAME.1 is the newest of the old."""
    logs = directory / "pod" / "logs"
    for number in range(count - 1, 0, -1):
        newer = logs / (name if number == 1 else f"{name}.{number - 1}")
        if newer.exists():
            newer.rename(logs / f"{name}.{number}")


def numbers(found: list[LogText]) -> list[int]:
    return [int(line.text) for line in found]


def test_turned_files_are_read_from_the_oldest(tmp_path: Path) -> None:
    for number in range(5):
        write(tmp_path, "a.log", b"T stdout F %d\n" % number)
        turn(tmp_path, "a.log", 4)
    write(tmp_path, "a.log", b"T stdout F 5\n")
    with LogReader(str(tmp_path), [("a", "a.log")]) as reader:
        assert numbers(list(reader.present())) == [2, 3, 4, 5]
        write(tmp_path, "a.log", b"T stdout F 6\n")
        turn(tmp_path, "a.log", 4)
        write(tmp_path, "a.log", b"T stdout F 7\n")
        turn(tmp_path, "a.log", 4)
        write(tmp_path, "a.log", b"T stdout F 8\n")
        assert numbers(list(reader.present())) == [6, 7, 8]
        assert list(reader.present()) == []


def wait_held(directory: Path, name: str) -> None:
    """Until this process has opened the file."""
    path = next(directory.rglob(name))
    inode, end = path.stat().st_ino, time.monotonic() + 20
    while True:
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/self/fd/{fd}").st_ino == inode:
                    return
        assert time.monotonic() < end
        time.sleep(0.002)


def test_a_slow_reader_loses_nothing_to_turns(tmp_path: Path) -> None:
    """Files that are turned away and deleted while the reader is busy are read all the same."""
    write(tmp_path, "a.log", b"T stdout F 0\n")
    ended, end = os.pipe()
    seen: list[int] = []
    with LogReader(str(tmp_path), [("a", "a.log")]) as reader:
        follow = reader.follow(ended)
        seen.append(int(next(follow).text))
        for number in range(1, 30):  # the reader stands still meanwhile
            turn(tmp_path, "a.log", 3)
            write(tmp_path, "a.log", b"T stdout F %d\n" % number)
            wait_held(tmp_path, "a.log")  # its helper looks, however busy the machine is
        os.close(end)
        seen += numbers(list(follow))
    os.close(ended)
    assert seen == list(range(30))


def test_a_gap_is_told(tmp_path: Path) -> None:
    write(tmp_path, "a.log", b"T stdout F 0\n")
    with LogReader(str(tmp_path), [("a", "a.log")]) as reader:
        assert numbers(list(reader.present())) == [0]
        for number in range(1, 6):  # nobody looks meanwhile
            turn(tmp_path, "a.log", 3)
            write(tmp_path, "a.log", b"T stdout F %d\n" % number)
        found = list(reader.present())
        assert b"output is missing here" in found[0].text
        assert numbers(found[1:]) == [3, 4, 5]


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    gc.collect()  # what earlier tests have left is not closed meanwhile
    before = len(os.listdir("/proc/self/fd"))
    with LogReader(str(tmp_path), [("a", "a.log")]) as reader:
        for number in range(40):
            write(tmp_path, "a.log", b"T stdout F %d\n" % number)
            turn(tmp_path, "a.log", 3)
            list(reader.present())
        assert len(os.listdir("/proc/self/fd")) < before + 8
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_app_executed_anew_has_another_log(tmp_path: Path) -> None:
    write(tmp_path, "a.log", b"T stdout F 1\n")
    status = tmp_path / "pod" / "status.json"
    status.write_text('{"apps": {"a": {"pid": 1, "log": "a.log"}}}')
    with LogReader(str(tmp_path), [("a", "a.log")]) as reader:
        assert numbers(list(reader.present())) == [1]
        write(tmp_path, "a.1.log", b"T stdout F 2\n")
        status.write_text('{"apps": {"a": {"pid": 2, "log": "a.1.log"}}}')
        assert numbers(list(reader.rest())) == [2]


def test_what_is_held_for_a_slow_reader_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "pod" / "logs").mkdir(parents=True)
    chain = LogChain(str(tmp_path / "pod" / "logs" / "a.log"), held_bytes=4000)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(30):
        turn(tmp_path, "a.log", 3)
        write(tmp_path, "a.log", b"%d" % (number % 10) * 1000)
        chain.look()
        assert len(os.listdir("/proc/self/fd")) <= before + 8
    found = []
    while data := chain.read():
        found.append((data[:1], chain.gap))
        chain.gap = False
    chain.close()
    assert found == [(b"0", False), (b"6", True), (b"7", False), (b"8", False), (b"9", False)]
