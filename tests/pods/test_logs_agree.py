"""The core's reading of a log and the stager's ``logs`` call-in: the same results, over one family (G9)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kurma_stager_default.inside.callins import logs
from kurma_stager_default.inside.streams import app_log
from kurma_testing.graphs import examples

from kurma_core.formats import cri_log
from kurma_core.formats.timestamps import moment, stamp
from kurma_core.models.streams import LogText
from kurma_core.pods.inside.logs import LogReader

EPOCH = 1_767_225_600_000_000_000  # 2026-01-01T00:00:00Z
SECOND = 1_000_000_000

CHUNK = st.one_of(
    st.binary(min_size=1, max_size=30),
    st.sampled_from([b"\n", b"line\n", b"two\nlines\n", b"a part ", b"end\n", b"\0\r\n\xff", b"y" * 300, b"\n\n"]),
)
WRITES = st.lists(st.tuples(st.sampled_from([app_log.STDOUT, app_log.STDERR]), CHUNK), max_size=25)


def written(directory: Path, writes: list[tuple[bytes, bytes]], size: int) -> None:
    """One write a second, from EPOCH on."""
    (directory / "pod/logs").mkdir(parents=True)
    log = app_log.AppLog(str(directory / "pod/logs/a.log"), size, 1000)
    clock = [EPOCH + number * SECOND for number in range(len(writes))]
    real = app_log.time.time_ns
    try:
        for (stream, data), now in zip(writes, clock, strict=True):
            app_log.time.time_ns = lambda now=now: now
            log.write(stream, data)
    finally:
        app_log.time.time_ns = real
    log.close()


def by_core(directory: Path, tail: int | None, since: int | None, stream: str | None) -> bytes:
    """As ``kurma logs`` prints it, both streams to one place."""
    with LogReader(str(directory), [("a", "a.log")]) as reader:
        wanted = cri_log.Filter(since, stream)
        found = list(cri_log.tail(filter(wanted, reader.rest()), tail, LogText))
    return b"".join(text.text + (b"" if text.partial else b"\n") for text in found)


def by_call_in(directory: Path, words: list[str], monkeypatch: pytest.MonkeyPatch) -> bytes:
    monkeypatch.setattr(logs, "_LOGS", str(directory / "pod/logs"))
    out = os.memfd_create("out")
    try:
        logs.show(logs.Wanted(words), {"log": "a.log", "exited": True}, out)
        return os.pread(out, 1 << 24, 0)
    finally:
        os.close(out)


def model(
    writes: list[tuple[bytes, bytes]], tail: int | None, since: int | None, stream: str | None
) -> list[tuple[str, bytes]]:
    """The lines as they began, chosen; each with what it ends in."""
    lines: list[tuple[str, int, bytearray]] = []
    begun: dict[str, bytearray] = {}
    for number, (at, data) in enumerate(writes):
        name = at.decode()
        for piece in _split(data):
            line = begun.pop(name, None)
            if line is None:
                line = bytearray()
                lines.append((name, EPOCH + number * SECOND, line))
            line += piece
            if not piece.endswith(b"\n"):
                begun[name] = line
    chosen = [
        (name, bytes(line))
        for name, at, line in lines
        if stream in (None, name) and (since is None or at >= since)
    ]
    return chosen if tail is None else chosen[max(0, len(chosen) - tail) :]


def _split(data: bytes) -> list[bytes]:
    *whole, rest = data.split(b"\n")
    return [line + b"\n" for line in whole] + ([rest] if rest else [])


@settings(max_examples=examples(60), deadline=None)
@given(
    writes=WRITES,
    size=st.sampled_from([0, 60, 300]),
    tail=st.none() | st.integers(0, 30),
    since=st.none() | st.integers(-2, 50).map(lambda half: EPOCH + half * SECOND // 2),
    stream=st.sampled_from([None, "stdout", "stderr"]),
)
def test_both_print_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    writes: list[tuple[bytes, bytes]],
    size: int,
    tail: int | None,
    since: int | None,
    stream: str | None,
) -> None:
    directory = tmp_path_factory.mktemp("pod")
    written(directory, writes, size)
    words = ["a"]
    words += [] if tail is None else ["--tail", str(tail)]
    words += [] if since is None else ["--since", stamp(since).decode()]
    words += [] if stream is None else [f"--stream={stream}"]
    with pytest.MonkeyPatch.context() as monkeypatch:
        printed = by_call_in(directory, words, monkeypatch)
    assert printed == by_core(directory, tail, since, stream)
    expected = model(writes, tail, since, stream)
    if stream is not None:
        assert printed == b"".join(line for _, line in expected)
    else:
        assert sorted(printed) == sorted(b"".join(line for _, line in expected))


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-01-31T12:00:00Z", 1769860800 * SECOND),
        ("2026-01-31T12:00:00.5Z", 1769860800 * SECOND + 500_000_000),
        ("2026-01-31T12:00:00.000000001Z", 1769860800 * SECOND + 1),
        ("2026-01-31T13:30:00+01:30", 1769860800 * SECOND),
        ("2026-01-31t04:00:00-08:00", 1769860800 * SECOND),
        ("2026-01-31 12:00Z", 1769860800 * SECOND),
        ("2024-02-29T00:00:00Z", 1709164800 * SECOND),
        ("1500000000", 1500000000 * SECOND),
        ("1500000000.25", 1500000000 * SECOND + 250_000_000),
        ("0", 0),
        ("10m", EPOCH - 600 * SECOND),
        ("1h30m", EPOCH - 5400 * SECOND),
        ("1.5h", EPOCH - 5400 * SECOND),
        ("250ms", EPOCH - 250_000_000),
        ("1d", EPOCH - 86400 * SECOND),
        ("1s1us1ns", EPOCH - SECOND - 1001),
    ],
)
def test_times_that_are_understood(text: str, at: int) -> None:
    assert moment(text, EPOCH) == at


@pytest.mark.parametrize(
    "text",
    ["", " ", "now", "10", "2026-01-31"],
)
def test_a_time_alone(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bare number is seconds since the epoch, a day alone its first moment here; a word is none."""
    import time

    monkeypatch.setenv("TZ", "UTC-2")
    time.tzset()
    try:
        if text.isdigit():
            assert moment(text) == 10 * SECOND
        elif "-" in text:
            assert moment(text) == moment("2026-01-30T22:00:00Z")
        else:
            with pytest.raises(ValueError, match=text or "^$"):
                moment(text)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "text",
    [
        *("yesterday", "10x", "-10m", "m", "1e3", "1.2.3", ".", "٣", "1m ", "10 m", "0x10", "nan", "inf"),
        *("2026-13-01T00:00:00Z", "2026-02-29T00:00:00Z", "2026-01-31T24:00:00Z", "2026-01-31T12:60:00Z"),
        *("2026-01-31T12:00:61Z", "2026-01-31T12:00:00.Z", "2026-01-31T", "2026-01-31T12Z", "2026-1-31"),
        *("2026-01-31T12:00:00+25:00", "2026-01-31T12:00:00+0100", "1969-12-31T00:00:00Z", "99999999999999"),
        *("9" * 5000, "9" * 40 + "h", "2026-01-31T12:00:00.5.5Z", "2026/01/31"),
    ],
)
def test_times_that_are_none(text: str) -> None:
    """Both refuse them, and exit with 2."""
    from kurma_core.cli import values
    from kurma_core.errors import UsageError

    with pytest.raises(logs.UsageError, match="is not a time"):
        logs.Wanted(["a", "--since", text])
    with pytest.raises(UsageError, match="is not a time") as caught:
        values.since(text)
    assert caught.value.exit_code == 2


def test_times_of_other_stagers(tmp_path: Path) -> None:
    """With fewer digits, or another zone, as the CRI format allows."""
    logs = tmp_path / "pod/logs"
    logs.mkdir(parents=True)
    logs.joinpath("a.log").write_bytes(
        b"2026-01-01T00:00:00Z stdout F whole second\n"
        b"2026-01-01T00:00:00.5Z stdout F half\n"
        b"2026-01-01T01:00:00.75+01:00 stdout F elsewhere\n"
        b"2026-01-01T01:00:00.2+01:00 stdout F elsewhere, before\n"
        b"2026-01-01T00:00:01Z stdout F next\n"
    )
    assert by_core(tmp_path, None, EPOCH + 400_000_000, None) == b"half\nelsewhere\nnext\n"
