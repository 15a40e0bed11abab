"""A credential helper that takes its time ends with the operation that asks it, and what it started too."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from kurma_fetch_docker.credential_helpers import ask_helper

from kurma_core.cancellation import Cancellation, governing
from kurma_core.errors import Cancelled
from tests.kit.waiting import until


def test_a_helper_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "docker-credential-slow"
    program.write_text(f"#!/bin/sh\nsleep 60 &\necho $! >{tmp_path}/pid\nwait\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    started = tmp_path / "pid"
    operation = Cancellation()
    ends: list[float] = []

    def cancel() -> None:
        while not started.exists() or not started.read_text().strip():
            time.sleep(0.01)
        ends.append(time.monotonic())
        operation.cancel()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with governing(operation), pytest.raises(Cancelled):
        ask_helper("slow", "r.example", "x")
    canceller.join()
    assert time.monotonic() - ends[0] < 1
    state = Path(f"/proc/{started.read_text().strip()}/stat")

    def ended() -> bool:
        try:
            return state.read_text().rpartition(")")[2].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    until(ended, "the helper's child")
