"""Logs that turn while somebody reads them: no line lost, none twice (H7)."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.house import both_ways
from tests.kit.waiting import until

pytestmark = pytest.mark.root

LINES = 200_000
_SCRIPT = f"echo ready; while [ ! -e /go/on ]; do sleep 0.01; done; seq 1 {LINES}; touch /go/done; sleep 0.3"


@pytest.fixture
def small_logs(kurma: Any, way: str) -> Iterator[Any]:
    """Commands whose pods keep little of their logs; a kurmad reads that, too."""
    before = kurma.config.read_text()

    def configure(text: str) -> None:
        kurma.config.write_text(text)
        if way == "kurmad":
            kurma.out("daemon", "reload")

    configure(json.dumps({**json.loads(before), "log": {"size": "64Ki", "count": 2}}))
    yield kurma
    configure(before)


@pytest.mark.full
@both_ways
@pytest.mark.parametrize("how", ["run", "logs"])
def test_a_reader_that_was_stopped_reads_on(small_logs: Any, tmp_path: Path, how: str) -> None:
    """Eight megabytes went by while it stood still, and the log keeps an eighth of one."""
    kurma = small_logs
    (tmp_path / "go").mkdir()
    words = ("run", "--rm", "--name", "wordy", "--net", "none", "-v", f"{tmp_path}/go:/go", "--exec", "/bin/sh")
    running = reader = kurma.popen(*words, kurma.image, "--", "-c", _SCRIPT)
    try:
        assert running.stdout.readline() == "ready\n"
        if how == "logs":
            reader = kurma.popen("logs", "--follow", "wordy")
            assert reader.stdout.readline() == "ready\n"
        reader.send_signal(signal.SIGSTOP)
        (tmp_path / "go/on").touch()
        until((tmp_path / "go/done").exists, patience=30)
        reader.send_signal(signal.SIGCONT)
        out, err = reader.communicate(timeout=30)
        assert err == ""
        assert out == "".join(f"{number}\n" for number in range(1, LINES + 1))
    finally:
        reader.send_signal(signal.SIGCONT)
        running.communicate(timeout=30)
    assert running.returncode == 0


@pytest.mark.full
@both_ways
@pytest.mark.parametrize("words", [("logs", "--follow", "quiet"), ("events", "--since", "0")])
def test_a_reader_that_goes_away_ends_it(kurma: Any, words: tuple[str, ...]) -> None:
    """Although nothing more is written."""
    options = ("run", "--rm", "--name", "quiet", "--net", "none", "--exec", "/bin/sh")
    running = kurma.popen(*options, kurma.image, "--", "-c", "echo ready; exec sleep 1000")
    try:
        assert running.stdout.readline() == "ready\n"
        follower = kurma.popen(*words)
        assert follower.stdout.readline()
        # It has nothing more to print, and waits.
        until(lambda: "S" in Path(f"/proc/{follower.pid}/stat").read_text().rpartition(")")[2].split()[0])
        time.sleep(0.3)
        follower.stdout.close()
        assert follower.wait(20) == 141, follower.stderr and follower.stderr.read()
        assert follower.stderr.read() == ""
        follower.stderr.close()
    finally:
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=30)
