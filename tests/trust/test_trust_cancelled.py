"""gpg that takes its time ends with the operation that it runs for."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kurma_core.cancellation import Cancellation, governing
from kurma_core.errors import Cancelled
from kurma_core.trust.signatures import verify


@pytest.fixture
def slow_gpg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The real one, but it verifies for ever, and writes its number down."""
    program = tmp_path / "bin" / "gpg"
    program.parent.mkdir()
    real = shutil.which("gpg")
    program.write_text(
        f"""#!/bin/sh
case "$*" in *--verify*) echo $$ >{tmp_path}/pid; exec sleep 60;; esac
exec {real} "$@"
"""
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return tmp_path / "pid"


@pytest.mark.parametrize("stream", [False, True], ids=["file", "stream"])
def test_verifying_ends(slow_gpg: Path, tmp_path: Path, stream: bool) -> None:
    (tmp_path / "signed").write_bytes(b"x")
    operation = Cancellation()
    ends: list[float] = []

    def pieces() -> Iterator[bytes]:
        while True:  # more than a pipe holds
            yield bytes(1 << 16)

    def cancel() -> None:
        while not slow_gpg.exists() or not slow_gpg.read_text().strip():
            time.sleep(0.01)
        ends.append(time.monotonic())
        operation.cancel()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    source = pieces() if stream else str(tmp_path / "signed")
    with governing(operation), pytest.raises(Cancelled):
        verify(source, b"signature", {}, what="x")
    canceller.join()
    assert time.monotonic() - ends[0] < 1
    assert not os.path.exists(f"/proc/{slow_gpg.read_text().strip()}")
