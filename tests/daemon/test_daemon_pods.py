"""Pods that the daemon owns, or looks at, as far as that goes without a pod that runs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kurma_core.daemon.pods.owned import OwnedPods
from kurma_core.daemon.pods.recovery import Recovery
from kurma_core.pods.daemon_interface import DaemonInterface
from kurma_core.pods.record.pod_store import PodStore
from kurma_core.pods.record.state import PodState
from tests.kit.waiting import until

UUID = "aaaa0000-0000-4000-8000-000000000001"


class Poll:
    """One that does not let go of what it was given."""

    def __init__(self, poll: Any) -> None:
        self._poll = poll

    def __getattr__(self, name: str) -> Any:
        return getattr(self._poll, name)

    def unregister(self, fd: int) -> None:
        self._poll.unregister(fd)
        raise OSError(9, "bad file descriptor")


@pytest.mark.parametrize("what", ["poll", "close"])
def test_who_waits_for_a_pod_hears_of_its_end_whatever_fails(what: str, caplog: pytest.LogCaptureFixture) -> None:
    owners = OwnedPods()
    owners.changed = lambda: None
    stager, closed = os.eventfd(1), []

    def close() -> None:
        closed.append(True)
        if what == "close":
            raise OSError(5, "input/output error")

    pod: Any = SimpleNamespace(
        uuid=UUID,
        directory=None,
        fileno=lambda: stager,
        tell_apps=lambda: None,
        finish=lambda: "record",
        close=close,
    )
    if what == "poll":
        owners.poller._poll = Poll(owners.poller._poll)
    owners.start()
    running = owners.take(pod)
    assert running.wait(10) == "record"  # type: ignore[comparison-overlap]
    assert closed
    assert [record.getMessage() for record in caplog.records] == [f"pod {UUID} cannot be let go of"]
    owners.close()
    os.close(stager)


def test_close_does_not_wait_for_a_planned_look(tmp_path: Path) -> None:
    """The owner is dead, and another process takes the pod down: recovery looks again until the daemon ends."""
    looks = []
    store = PodStore(str(tmp_path))
    directory, lock = store.create(UUID, "one")
    owner = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    directory.write_state(PodState("running", owner=int(owner.stdout)))
    manager: Any = SimpleNamespace(store=store)

    class Pods(DaemonInterface):
        def needs_recovery(self, uuid: str) -> bool:
            looks.append(time.monotonic())
            return False

    owners: Any = SimpleNamespace(running=lambda uuid: None)
    before = set(threading.enumerate())
    looker = Recovery(Pods(manager), owners)
    looker.start()
    until(lambda: len(looks) >= 2)
    assert looks[1] - looks[0] >= 0.5
    looker.close()
    assert set(threading.enumerate()) == before
    os.close(lock)
