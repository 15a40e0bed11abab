"""The journal of events: one for all processes, whose numbers go on; bounded, and never a reason to fail."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kurma_core import journal as module
from kurma_core.journal import Cursor, Journal


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(str(tmp_path))


def told(journal: Journal, *kinds: str) -> None:
    for kind in kinds:
        journal.tell("pod", kind, "u", "n")


def seen(cursor: Cursor) -> list[tuple[int, str]]:
    return [(event.seq, event.kind) for event in cursor.read()]


def test_events_are_numbered_and_read_from_any_number_on(journal: Journal) -> None:
    assert (journal.last(), seen(Cursor(journal, 0))) == (0, [])
    journal.tell("pod", "stopped", "uuid", "web", {"exitCode": 3}, "2024-05-31T12:00:00Z")
    told(journal, "running", "removed")
    (first, *_) = Cursor(journal, 0).read()
    assert first.to_json() == {
        "seq": 1,
        "at": "2024-05-31T12:00:00Z",
        "subject": "pod",
        "kind": "stopped",
        "id": "uuid",
        "name": "web",
        "detail": {"exitCode": 3},
    }
    assert module.Event.from_json(first.to_json()) == first
    assert seen(Cursor(journal, 1)) == [(2, "running"), (3, "removed")]
    assert journal.last() == 3


def test_a_cursor_goes_on_where_it_was(journal: Journal) -> None:
    told(journal, "prepared")
    now, first = Cursor(journal, None), Cursor(journal, 0)
    assert seen(now) == []
    assert seen(first) == [(1, "prepared")]
    told(journal, "starting")
    assert seen(now) == seen(first) == [(2, "starting")]
    assert seen(now) == seen(first) == []


def test_a_number_of_another_journal_is_the_beginning(journal: Journal) -> None:
    told(journal, "prepared", "starting")
    assert seen(Cursor(journal, 99)) == [(1, "prepared"), (2, "starting")]


def test_a_full_file_is_put_aside_and_nothing_is_told_twice_or_lost(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FULL", 1000)
    cursor = Cursor(journal, None)
    numbers = []
    for count in range(40):
        told(journal, "running")
        if count % 3 == 0:
            numbers += [number for number, _ in seen(cursor)]
    numbers += [number for number, _ in seen(cursor)]
    assert numbers == list(range(1, 41))
    assert sorted(os.listdir(journal.directory)) in (["events", "events.1"], ["events.1"])
    sizes = [os.stat(f"{journal.directory}/{name}").st_size for name in os.listdir(journal.directory)]
    assert max(sizes) < 1300
    late = [number for number, _ in seen(Cursor(journal, 0))]
    assert late == list(range(late[0], 41))
    assert len(late) >= 5
    assert journal.last() == 40


def test_half_a_line_harms_nobody(journal: Journal) -> None:
    told(journal, "prepared")
    with open(f"{journal.directory}/events", "ab") as file:
        file.write(b'{"seq": 2, "at": ')
    told(journal, "running")
    assert seen(Cursor(journal, 0)) == [(1, "prepared"), (2, "running")]


def test_processes_at_once_lose_nothing(journal: Journal) -> None:
    program = f"""
from kurma_core.journal import Journal
journal = Journal({str(Path(journal.directory).parent)!r})
for _ in range(100):
    journal.tell("pod", "running", "u", "n")
"""
    many = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(4)]
    assert [one.wait(60) for one in many] == [0] * 4
    assert [number for number, _ in seen(Cursor(journal, 0))] == list(range(1, 401))


def test_what_cannot_be_written_is_lost_and_harms_nothing(tmp_path: Path) -> None:
    nowhere = Journal(str(tmp_path / "gone"))
    told(nowhere, "running")
    assert not (tmp_path / "gone").exists()
    full = Journal(str(tmp_path))
    os.mkdir(full.directory)
    os.symlink("/dev/full", f"{full.directory}/events")
    told(full, "running")
    assert full.last() == 0


def test_whoever_was_stopped_with_the_lock_in_hand_holds_nobody_up(journal: Journal) -> None:
    told(journal, "prepared")
    fd = os.open(f"{journal.directory}/events", os.O_RDWR)
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    begin = time.monotonic()
    told(journal, "starting")
    assert time.monotonic() - begin < 1
    os.close(fd)
    told(journal, "running")
    assert seen(Cursor(journal, 0)) == [(1, "prepared"), (2, "running")]


def test_a_detail_that_is_too_long_is_left_out(journal: Journal) -> None:
    journal.tell("pod", "errored", "u", "n", {"reason": "x" * 100_000})
    (event,) = Cursor(journal, 0).read()
    assert (event.kind, event.detail) == ("errored", {})


def test_a_watch_tells_of_the_first_event_and_of_each(journal: Journal) -> None:
    with contextlib.closing(journal.watch()) as watch:
        for kind in ("prepared", "running"):
            assert watch.drain() == 0
            told(journal, kind)
            assert select.select([watch], [], [], 60)[0]
            while watch.drain():  # the event may come as several changes
                select.select([watch], [], [], 0.1)


def test_an_event_costs_a_pod_next_to_nothing(journal: Journal) -> None:
    """A tenth of a millisecond is what a start has for one; here with room for a busy machine."""
    told(journal, *["running"] * 50)
    begin = time.process_time()
    told(journal, *["running"] * 500)
    assert (time.process_time() - begin) / 500 < 0.0003


def test_it_is_lines_that_people_can_read(journal: Journal) -> None:
    told(journal, "running")
    (line,) = Path(f"{journal.directory}/events").read_text().splitlines()
    assert json.loads(line)["kind"] == "running"
    assert os.stat(f"{journal.directory}/events").st_mode & 0o777 == 0o600
    assert os.stat(journal.directory).st_mode & 0o777 == 0o700
