"""Tables, sizes, ages, progress and log lines as people and tools see them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import subprocess
import sys
import tty

import pytest
import yaml

from kurma_core.cli import output
from kurma_core.cli.progress import Bar
from kurma_core.cli.session import Session


def test_columns_are_as_wide_as_they_must_be_and_empty_cells_are_dashes() -> None:
    rows = [{"a": "x", "b": ""}, {"a": "longer", "b": "y"}]
    columns = [("A", lambda row: row["a"]), ("BEE", lambda row: row["b"])]
    assert list(output.table(rows, columns)) == ["A       BEE", "x       -", "longer  y"]
    assert list(output.table(rows, columns, legend=False)) == ["x       -", "longer  y"]
    assert list(output.table([], columns, legend=False)) == []


def test_control_characters_of_strangers_do_not_reach_the_terminal() -> None:
    rows = list(output.table(["\x1b[2Jevil\nname"], [("N", lambda row: row)], legend=False))
    assert rows == ["\\x1b[2Jevil\\nname"]


@pytest.mark.parametrize("terminal", [True, False])
def test_documents_of_strangers_at_a_terminal_and_elsewhere(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    """Exact bytes for a program; for a person what shows them, and moves nothing."""
    evil = '{\n\t"name": "\x1b]0;x\x07\x9b2J\x7f\u202e\r"}\n'.encode() + b"\xff\n"
    reader, writer = pty.openpty() if terminal else os.pipe()
    if terminal:
        tty.setraw(writer)
    with open(writer, "w", encoding="utf-8") as out:
        monkeypatch.setattr("sys.stdout", out)
        session = Session({"dir": None, "config": None, "host": None, "debug": False})
        session.document(evil)
        session.line("gone: \x1b[2J")
        session.format = "json"
        session.show({"a": "\x9b"}, str)
    got = b""
    with contextlib.suppress(OSError):  # so a terminal ends
        while more := os.read(reader, 4096):
            got += more
    os.close(reader)
    if terminal:
        shown = b'{\n\t"name": "\\x1b]0;x\\x07\\x9b2J\\x7f\\u202e\\r"}\n\\xff\n'
        assert got == shown + b'gone: \\x1b[2J\n{\n  "a": "\\x9b"\n}\n'
    else:
        assert got == evil + b"gone: \x1b[2J\n" + '{\n  "a": "\x9b"\n}\n'.encode()


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (12_345_678, "12.3 MB"),
        (999_999, "1.0 MB"),
        (5 * 10**12, "5.0 TB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert output.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "just now"),
        (1, "1 second ago"),
        (90, "90 seconds ago"),
        (120, "2 minutes ago"),
        (3600, "60 minutes ago"),
        (7200, "2 hours ago"),
        (86400, "1 day ago"),
        (3 * 86400, "3 days ago"),
    ],
)
def test_ages(seconds: int, text: str) -> None:
    now = 1_700_000_000.0
    from datetime import UTC, datetime

    at = datetime.fromtimestamp(now - seconds, UTC).isoformat().replace("+00:00", "Z")
    assert output.ago(at, now) == text


def test_an_age_of_no_time_is_shown_as_it_stands() -> None:
    assert output.ago(None) == ""
    assert output.ago("yesterday") == "yesterday"


@pytest.mark.parametrize("written", ["2026-01-31T12:00:00Z", "2026-01-31T12:00:00.123456Z"])
def test_moments_are_shown_to_the_second(written: str) -> None:
    assert output.to_second(written) == "2026-01-31T12:00:00Z"
    assert output.moment(written).startswith("2026-01-31T12:00:00Z (")
    assert output.moment("yesterday. or so") == "yesterday. or so"


def test_json_and_yaml_say_the_same() -> None:
    value = {"b": [1, {"c": None}], "a": ("x",), "é": 1.5}
    assert json.loads(output.formatted("json", value)) == yaml.safe_load(output.formatted("yaml", value))
    assert list(json.loads(output.formatted("json", value))) == ["b", "a", "é"]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_bar_tells_share_size_speed_and_time_left_and_goes_away() -> None:
    out, clock = io.StringIO(), Clock()
    bar = Bar(out, clock)
    bar.start("busybox.aci", 10_000_000)
    bar.advance(1000)
    assert out.getvalue() == ""  # too early to draw
    clock.now += 1
    bar.advance(2_499_000)
    line = out.getvalue()
    assert line.startswith("\rbusybox.aci  [#")
    assert " 25%  2.5 MB / 10.0 MB  2.5 MB/s  0:03 left" in line
    bar.finish()
    assert out.getvalue().endswith("\r\x1b[K")


def test_what_was_there_before_says_nothing_of_the_speed() -> None:
    out, clock = io.StringIO(), Clock()
    bar = Bar(out, clock)
    bar.start("busybox.aci", 10_000_000)
    bar.skip(8_000_000)
    clock.now += 1
    bar.advance(500_000)
    assert " 85%  8.5 MB / 10.0 MB  500.0 kB/s  0:03 left" in out.getvalue()


def test_the_bar_without_a_total_tells_what_came() -> None:
    out, clock = io.StringIO(), Clock()
    bar = Bar(out, clock)
    bar.start("stream", None)
    clock.now += 2
    bar.advance(4_000_000)
    assert "stream  4.0 MB  2.0 MB/s" in out.getvalue()


@pytest.mark.parametrize("width", [10, 20, 40, 60, 80, 200])
def test_the_bar_never_reaches_the_terminals_edge(width: int) -> None:
    clock = Clock()
    bar = Bar(io.StringIO(), clock)
    bar.start("x" * 100, 10**9)
    clock.now += 1
    bar.advance(10**8)
    assert len(bar.text(width)) < width


def test_no_bar_is_drawn_where_standard_error_is_no_terminal() -> None:
    program = (
        "from kurma_core.cli.session import Session\n"
        "print(Session({'dir': None, 'config': None, 'host': None, 'debug': False}).progress())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"


def test_a_bar_is_drawn_on_a_terminal() -> None:
    program = (
        "from kurma_core.cli.session import Session\n"
        "print(Session({'dir': None, 'config': None, 'host': None, 'debug': False}).progress() is not None)"
    )
    leader, follower = os.openpty()
    try:
        done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=follower, check=True)
    finally:
        os.close(leader)
        os.close(follower)
    assert done.stdout == b"True\n"


def test_a_note_is_written_in_one_piece_and_once(monkeypatch):
    """Several threads note, and several steps meet one failure."""

    class Pieces(list):
        write = list.append

        def flush(self):
            pass

    pieces = Pieces()
    session = Session({"dir": None, "config": None, "host": None, "debug": False})
    monkeypatch.setattr("sys.stderr", pieces)
    for _ in range(2):
        session.settings.note("a plugin is broken")
    session.note("anything")
    session.note("anything")
    assert [piece for piece in pieces if piece] == [
        "kurma: a plugin is broken\n",
        "kurma: anything\n",
        "kurma: anything\n",
    ]
