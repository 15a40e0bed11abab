"""The daemon's log: for people, for the journal, for programs."""

import json
import logging
import os
import subprocess
import sys

import pytest

from kurma_core.daemon.process import log
from kurma_core.errors import HostError

SAYS = """
import logging, os, sys
from kurma_core.daemon.process import log
status = os.fstat(2)
environment = {"JOURNAL_STREAM": sys.argv[3] or f"{status.st_dev}:{status.st_ino}"}
log.set_up(sys.argv[1], sys.argv[2], environment, sys.argv[4] or None)
assert not environment
logger = logging.getLogger("kurmad")
logger.debug("a detail")
with log.about(request="GET /v1/pods"):
    logger.info("words \\udcff")
logger.error("pod %s: oh", "u", extra={"pod": "u"})
try:
    raise ValueError("x")
except ValueError:
    logger.exception("a mistake")
"""


def said(level="info", format="plain", journal="1:1", file=""):
    command = [sys.executable, "-c", SAYS, level, format, journal, file]
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stdout == b""
    return done.stderr.decode().splitlines()


def test_for_people():
    lines = said()
    assert [line.split(" ", 1)[1] for line in lines[:3]] == [
        "kurmad: words \\udcff",
        "kurmad: error: pod u: oh",
        "kurmad: error: a mistake",
    ]
    assert lines[0].split()[0].endswith("Z")
    assert lines[-1] == "ValueError: x"
    assert any("a detail" in line for line in said("debug"))
    assert not any("words" in line for line in said("warning"))


def test_for_the_journal():
    """Each line has its priority: the lines of a trace, too."""
    lines = said(journal="")
    assert lines[:3] == ["<6>words \\udcff", "<3>pod u: oh", "<3>a mistake"]
    assert all(line.startswith("<3>") for line in lines[2:])


def test_each_line_of_a_service_has_its_name():
    """C1."""
    record = logging.LogRecord(log.SERVICE + "one", logging.WARNING, "", 0, "two\nlines", (), None)
    first, second = log.Plain(priorities=False).format(record).splitlines()
    assert first.endswith("Z kurmad: warning: service one: two")
    assert second == first.replace("two", "lines")
    assert log.Plain(priorities=True).format(record) == "<4>service one: two\n<4>service one: lines"


def test_for_programs():
    first, second, third = map(json.loads, said(format="json"))
    assert (first["level"], first["request"]) == ("info", "GET /v1/pods")
    assert first["time"].endswith("Z")
    assert {name: second[name] for name in ("level", "message", "pod")} == {
        "level": "error",
        "message": "pod u: oh",
        "pod": "u",
    }
    assert "request" not in second
    assert third["trace"].endswith("ValueError: x")


@pytest.mark.parametrize("format", ["plain", "json"])
def test_no_passwords(format):
    """Of addresses: as they are, and as part of another; and nothing else goes."""
    script = """
import logging
from kurma_core.daemon.process import log
log.set_up("info", "FORMAT", {})
with log.about(request="DELETE /v1/images/https://me:hunter2@example.com"):
    logging.info("initial image %s: no", "https://me:hunter2@example.com/a.aci?b@c")
logging.info("root asks for DELETE /v1/images/https%3A%2F%2Fme%3Ahunter2%40example.com%2Fa")
try:
    raise ValueError("docker://me:hunter2@busybox@sha256:12 and docker://busybox@sha256:34")
except ValueError:
    logging.exception("mail me@example.com")
"""
    command = [sys.executable, "-c", script.replace("FORMAT", format)]
    text = subprocess.run(command, capture_output=True, check=True, text=True).stderr
    assert "hunter2" not in text
    assert "initial image https://example.com/a.aci?b@c: no" in text
    assert "DELETE /v1/images/https%3A%2F%2Fexample.com%2Fa" in text
    assert "ValueError: docker://busybox@sha256:12 and docker://busybox@sha256:34" in text
    assert "mail me@example.com" in text


def test_a_file_is_standard_error_and_is_turned_over(tmp_path, monkeypatch):
    path = tmp_path / "log"
    script = SAYS.replace(
        "logger = ",
        'log.SIZE = 0; logging.getLogger().handlers[0]._limit = 1000; os.write(2, b"others\\n"); logger = ',
    ).replace('logger.debug("a detail")', '[logger.info("x" * 100) for _ in range(20)]')
    subprocess.run([sys.executable, "-c", script, "info", "plain", "1:1", str(path)], check=True)
    assert path.stat().st_size <= 1000
    older = tmp_path / "log.1"
    assert 800 <= older.stat().st_size <= 1000
    assert sorted(one.name for one in tmp_path.iterdir()) == ["log", "log.1"]
    assert path.stat().st_mode & 0o777 == 0o600
    again = said(file=str(path))  # what stands there already counts
    assert again == []
    assert "others" not in path.read_text()


def test_nobody_reads_any_more():
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-c", SAYS + "\nprint('lives')", "info", "plain", "1:1", ""]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=write)
    os.close(write)
    assert (done.returncode, done.stdout) == (0, b"lives\n")


def test_levels_are_those_of_logging():
    with pytest.raises(OSError, match="No such file"):
        log.LogFile("/nowhere/log")


def test_a_file_that_cannot_be_written_is_told_with_what_to_do(tmp_path):
    for path, why, hint in (
        (tmp_path / "x/y", "no such file or directory", f"mkdir -p {tmp_path}/x"),
        (tmp_path, "is a directory", "name a file that can be written; without it the log goes to standard error"),
    ):
        with pytest.raises(HostError) as caught:
            log.set_up("info", "plain", {}, str(path))
        assert caught.value.message == f"--log-file: {path}: cannot be written: {why}"
        assert caught.value.hint == hint


# --- lines that repeat ---


def written(lines):
    """The texts that are written of (seconds, level, text), and of further (logger, pod, context)."""
    found = []
    repeats = log.Repeats(lambda record: found.append((when, record.getMessage())))
    for when, level, text, *further in lines:
        logger, pod, context = further or ("kurmad", None, {})
        record = logging.LogRecord(logger, level, "", 0, "%s", (text,), None)
        record.created = 1_700_000_000 + when
        record.pod = pod
        with log.about(**context):
            if repeats.filter(record):
                found.append((when, record.getMessage()))
    return found


def test_an_error_at_each_second_is_at_most_ten_lines_in_an_hour():
    lines = written((second, logging.ERROR, "pod web cannot be taken down: busy") for second in range(3600))
    assert [when for when, _ in lines] == [0, 10, 30, 70, 150, 310, 630, 1270, 2550]
    assert lines[1][1] == "pod web cannot be taken down: busy (10 times since 2023-11-14T22:13:20.000000Z)"
    assert lines[2][1].endswith("(20 times since 2023-11-14T22:13:30.000000Z)")


def test_what_differs_is_told():
    """Other pods and reasons are other lines; processes and pauses are not."""
    busy = [(0, logging.ERROR, f"pod web{number} cannot be taken down") for number in range(5)]
    assert len(written(busy)) == 5
    tried = [(n, logging.WARNING, f"no stager waits (process {n}): tried again in {2**n} s") for n in range(5)]
    assert len(written(tried)) == 1
    assert len(written([(0, logging.WARNING, "x"), (1, logging.ERROR, "x")])) == 2


def test_what_was_done_is_always_told():
    asked = [(0, logging.INFO, "user 0, process 5 asks for POST /v1/pods")] * 3
    assert len(written(asked)) == 3


@pytest.mark.parametrize(
    "others",
    [
        [("kurmad.service.one", None, {}), ("kurmad.service.two", None, {})],
        [("kurmad", "a", {}), ("kurmad", "b", {})],
        [("kurmad", None, {"pod": "a"}), ("kurmad", None, {"pod": "b"})],
    ],
    ids=["services", "pods", "contexts"],
)
def test_the_same_words_of_others_are_told(others):
    assert len(written((second, logging.ERROR, "it is busy", *one) for one in others for second in range(3))) == 2


def test_another_client_is_not_another_line():
    asked = ({"request": "GET /v1/pods", "by": f"user 0, process {process}"} for process in range(5))
    assert len(written((0, logging.ERROR, "it is busy", "kurmad", None, context) for context in asked)) == 1


def test_another_exception_is_told():
    repeats = log.Repeats(print)
    kept = 0
    for error in (ValueError("a"), ValueError("b"), KeyError("b"), KeyError("b")):
        caught = (type(error), error, None)
        kept += repeats.filter(logging.LogRecord("kurmad", logging.ERROR, "", 0, "a mistake", (), caught))
    assert kept == 3


@pytest.mark.parametrize("level", [logging.INFO, logging.WARNING])
def test_the_last_repeats_are_counted_before_the_next_line(level):
    since = "since 2023-11-14T22:13:20.000000Z"
    for repeats, count in ((1, "once"), (2, "2 times")):
        busy = [(0, logging.ERROR, "busy")] * (1 + repeats)
        lines = written([*busy, (9, level, "too early"), (12, level, "on time"), (20, level, "later")])
        assert [text for _, text in lines] == ["busy", "too early", f"busy ({count} {since})", "on time", "later"]


def test_what_was_dropped_is_counted_at_the_end(tmp_path):
    """With its own context, and not that of the line that brings it up."""
    script = """
import logging
from kurma_core.daemon.process import log
log.set_up("info", "json", {})
with log.about(request="GET /v1/pods"):
    for _ in range(3):
        logging.getLogger("kurmad").error("busy", extra={"pod": "u"})
with log.about(request="GET /v1/info"):
    logging.info("asked")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    busy, asked, count = map(json.loads, done.stderr.splitlines())
    assert (busy["message"], asked["message"]) == ("busy", "asked")
    assert (count["message"], count["level"]) == (f"busy (2 times since {busy['time']})", "error")
    assert (count["pod"], count["request"]) == ("u", "GET /v1/pods")


def test_after_a_quiet_hour_a_line_is_new():
    lines = written([(0, logging.ERROR, "x"), (1, logging.ERROR, "x"), (3700, logging.ERROR, "x")])
    assert lines == [(0, "x"), (3700, "x (once since 2023-11-14T22:13:20.000000Z)"), (3700, "x")]
    # As is one after the clock was set back.
    assert len(written([(0, logging.ERROR, "x"), (-50, logging.ERROR, "x")])) == 2


def test_as_many_lines_as_there_are_are_not_all_remembered():
    told = []
    repeats = log.Repeats(told.append)
    for number in (0, *range(3000)):
        repeats.filter(logging.LogRecord("kurmad", logging.ERROR, "", 0, f"pod x{number}", (), None))
    assert len(repeats._lines) == 1000
    assert [record.getMessage().partition(" (")[0] for record in told] == ["pod x0"]
