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
from kurma_core.errors import UsageError
from kurma_core.models.pod import PodRecord
from tests.kit.waiting import until


def test_columns_are_as_wide_as_they_must_be_and_empty_cells_are_dashes() -> None:
    rows = [{"a": "x", "b": ""}, {"a": "longer", "b": "y"}]
    columns = [("A", lambda row: row["a"]), ("BEE", lambda row: row["b"])]
    assert list(output.table(rows, columns)) == ["A       BEE", "x       -", "longer  y"]
    assert list(output.table(rows, columns, legend=False)) == ["x       -", "longer  y"]
    assert list(output.table([], columns, legend=False)) == []


COLUMNS: list[output.Column] = [
    ("A", lambda row: row["a"]),
    ("END", lambda row: row["end"], (2, -6)),
    ("LAST", lambda row: row["last"], (3, 5)),
    ("GONE", lambda row: row["gone"], (1, 0)),
]
WIDE = {"a": "always", "end": "docker://job:v1", "last": "8080:80,8443:443", "gone": "default=10.1.0.2"}


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (0, "always  docker://job:v1  8080:80,8443:443  default=10.1.0.2"),
        (59, "always  docker://job:v1  8080:80,8443:443  default=10.1.0.2"),
        (58, "always  docker://job:v1  8080:80,8443:443"),
        (40, "always  \u2026cker://job:v1  8080:80,8443:443"),
        (30, "always  \u2026ob:v1  8080:80,8443:\u2026"),
        (5, "always  \u2026ob:v1  8080\u2026"),
    ],
)
def test_columns_give_way_on_a_narrow_terminal(width: int, line: str) -> None:
    """By their numbers: one is left out, one loses its beginning, one its end; the first never does."""
    assert list(output.table([WIDE], COLUMNS, legend=False, width=width)) == [line]
    heading = next(output.table([WIDE], COLUMNS, width=width)).split()
    assert heading == ["A", "END", "LAST", "GONE"][: 3 + (width in (0, 59))]


def test_the_words_of_a_column_continue_on_further_lines() -> None:
    """19.2. A column that was left out leaves its room to the others; a word that is too long is broken."""
    columns: list[output.Column] = [
        ("A", lambda row: row["a"]),
        ("GONE", lambda row: row["gone"], (2, 0)),
        ("WORDS", lambda row: row["words"], (1, 16, "wraps")),
    ]
    row = {"a": "x", "gone": "0123456789", "words": "a note of several words, and /a/path/as/long/as/this"}
    assert list(output.table([row], columns, width=24)) == [
        "A  WORDS",
        "x  a note of several",
        "   words, and /a/path/as",
        "   /long/as/this",
    ]
    assert list(output.table([row], columns, legend=False)) == [f"x  0123456789  {row['words']}"]


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{.name}}", "web"),
        ("<{{ .a.b }}>{{.none}}", "<1>"),
        (r"{{.yes}}\t{{.list}}\n", "true\tx,y\n"),
        ("{{json .list}} {{json .none}}", '["x", "y"] null'),
        ("{{.labels}} {{.labels.tier}}{{.labels.none}}", "tier=front front"),
        ("{{.objects.port}} {{.objects.1.port}} {{.objects.7.port}}", "80,81 81 "),
        ("{{.objects}}", '[{"port": 80}, {"port": 81}]'),
    ],
)
def test_templates(template: str, text: str) -> None:
    item = {
        "name": "web",
        "a": {"b": 1},
        "none": None,
        "yes": True,
        "list": ["x", "y"],
        "labels": {"tier": "front"},
        "objects": [{"port": 80}, {"port": 81}],
    }
    assert list(output.Template(template).lines([item], None)) == [text]


def test_templates_are_checked_by_the_declaration_of_the_value() -> None:
    """Also if there is no item, or the item lacks the optional value."""
    for good in (
        "{{.apps.web.exitReason}}",
        "{{.networks.0.ports.hostPort}}",
        "{{.labels.any}}",
        "{{.restart.next}}",
    ):
        assert list(output.Template(good).lines([], PodRecord)) == []
    for wrong, near in (
        ("{{.nme}}", "name"),
        ("{{.Name}}", "name"),
        ("{{.apps.web.stat}}", "apps.web.statusText"),
    ):
        with pytest.raises(UsageError, match=f"did you mean {{{{.{near}}}}}"):
            list(output.Template(wrong).lines([], PodRecord))
    for wrong in ("{{.ports}}", "{{.apps.web.zzz}}"):  # no key is near
        with pytest.raises(UsageError) as caught:
            list(output.Template(wrong).lines([], PodRecord))
        assert "did you mean" not in caught.value.message
    for malformed in ("{{.a", "{{range .a}}", "{{a}}", "{{}}"):
        with pytest.raises(UsageError, match="malformed"):
            output.Template(malformed)


def test_tables_of_templates() -> None:
    template = output.Template(r"table {{.exitCode}}\t{{.name}}")
    rows = [{"exitCode": 3, "name": "a"}, {"exitCode": None, "name": "b"}]
    assert list(template.lines(rows, None)) == ["EXIT CODE  NAME", "3          a", "           b"]
    assert list(template.lines(rows, None, legend=False)) == ["3  a", "   b"]


def test_filters() -> None:
    filters: output.Filters = {
        "n": lambda item, value: str(item["n"]) == value,
        "label": lambda item, value: output.has_label(item["labels"], value),
    }
    items = [{"n": 1, "labels": {"a": "x", "b": ""}}, {"n": 2, "labels": {"a": "y"}}]

    def kept(*wanted: str) -> list[int]:
        return [item["n"] for item in output.kept(items, wanted, filters)]

    assert kept() == [1, 2]
    assert kept("n=1", "n=2") == [1, 2]
    assert kept("label=a", "label=b") == [1]
    assert kept("n=2", "label=a=x") == []
    assert kept("label=b=") == [1]
    with pytest.raises(UsageError, match="no key 'm'"):
        kept("m=1")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59, "59s"), (60, "1m"), (7300, "2h"), (86400 * 9, "9d")]
)
def test_ages_in_one_word(seconds: int, text: str) -> None:
    assert output.age("2024-01-01T00:00:00+00:00", now=1704067200 + seconds) == text
    assert (output.age(""), output.age("then")) == ("", "then")


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
    clock.now += 2
    bar.advance(2_499_000)
    line = out.getvalue()
    assert line.startswith("\rbusybox.aci  [#")
    assert " 25%  2.5 MB / 10.0 MB  1.2 MB/s  0:06 left" in line
    narrow = bar.text(54)
    assert narrow.startswith("\u2026")
    assert narrow.endswith("  0:06 left")
    assert len(narrow) < 54
    bar.finish()
    assert out.getvalue().endswith("\r\x1b[K")


def test_what_was_there_before_says_nothing_of_the_speed() -> None:
    out, clock = io.StringIO(), Clock()
    bar = Bar(out, clock)
    bar.start("busybox.aci", 10_000_000)
    bar.skip(8_000_000)
    clock.now += 2
    bar.advance(1_000_000)
    assert " 90%  9.0 MB / 10.0 MB  500.0 kB/s  0:02 left" in out.getvalue()


#: Bytes per tenth of a second: steady, starting slowly, and with pauses of the server's.
RATES = {
    "steady": [300_000] * 200,
    "slow start": [20_000] * 20 + [400_000] * 150,
    "bursts": [900_000, 0, 0] * 70,
}


@pytest.mark.parametrize("rates", RATES.values(), ids=list(RATES))
def test_the_estimate_is_true_from_the_beginning(rates: list[int]) -> None:
    """None in the first two seconds; after a fifth of the work, right within a factor of two (19.3)."""
    clock, total = Clock(), sum(rates)
    bar = Bar(io.StringIO(), clock)
    bar.start("image", total)
    done = 0
    for tenth, count in enumerate(rates, 1):
        clock.now += 0.1
        bar.advance(count)
        done += count
        left = len(rates) / 10 - tenth / 10
        minutes, _, seconds = bar.text(200).removesuffix(" left").rpartition("  ")[2].partition(":")
        if tenth < 20:
            assert "left" not in bar.text(200)
        elif 0.2 <= done / total < 1 and left > 2:
            assert 0.5 <= (int(minutes) * 60 + int(seconds)) / left <= 2, (tenth, bar.text(200))


def test_the_last_percent_is_not_the_end() -> None:
    """What has come is still to be stored: the bar says so, and for how long (19.3)."""
    clock = Clock()
    bar = Bar(io.StringIO(), clock)
    bar.start("image", 1000, "download")
    clock.now += 2
    bar.advance(999)
    assert " 99%  999 B / 1.0 kB" in bar.text(80)
    assert "0:01 left" in bar.text(80)
    bar.advance(1)
    clock.now += 7
    assert bar.text(80) == "image  storing  0:07"


def test_files_are_counted() -> None:
    clock = Clock()
    bar = Bar(io.StringIO(), clock)
    bar.start("removing files", 4000, "files")
    clock.now += 3
    assert bar.text(80) == "removing files  0:03"
    bar.advance(1000)
    assert bar.text(80).endswith("]   25%  1000 / 4000 files  0:09 left")
    bar.start("measuring", None, "files")
    bar.advance(12)
    assert bar.text(80) == "measuring  12 files"


def test_an_interrupted_download_is_kept_and_other_work_is_not() -> None:
    bar = Bar(io.StringIO(), Clock())
    for kind, done, kept in (
        ("download", 0, False),
        ("download", 5, True),
        ("download", 10, False),
        ("bytes", 5, False),
        ("files", 5, False),
    ):
        bar.kept = False
        bar.start("image", 10, kind)
        bar.advance(done)
        bar.finish()
        assert bar.kept is kept, (kind, done)


def test_the_drawing_thread_runs_at_once_and_ends_with_the_bar() -> None:
    """Python 3.11 crashes if it ends while a thread begins, or while one writes (19.3)."""
    out, before = io.StringIO(), set(sys._current_frames())
    bar = Bar(out, ticking=True)
    bar.start("removing files", None, "files")
    (thread,) = set(sys._current_frames()) - before
    until(lambda: "removing files" in out.getvalue(), "a line though nothing is reported")
    bar.close()
    assert out.getvalue().endswith("\r\x1b[K")
    shown = out.getvalue()
    bar.start("more files", None, "files")
    bar.advance(1)
    until(lambda: thread not in sys._current_frames(), "its end")
    assert out.getvalue() == shown


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
