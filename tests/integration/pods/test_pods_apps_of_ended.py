"""Apps of pods that have ended: statuses, times, an end that no process saw, and removal (C9, C10)."""

import os
import signal

import pytest

from kurma_core.errors import AppNotFoundError
from tests.kit.waiting import until

pytestmark = pytest.mark.root


def statuses(house, pod):
    return {app.name: app for app in house.client.pod(pod.uuid).apps}


def test_removed_after_the_end(house):
    record, _ = house.run({"one": "echo one; exit 3", "two": "echo two"}, net="none", name="over")
    before = statuses(house, record)
    assert [(app.exit_code, app.reason) for app in before.values()] == [(3, "exited"), (0, "exited")]
    assert all(app.created_at == record.created_at < app.started_at <= app.finished_at for app in before.values())
    house.client.app_rm("over", "one")
    found = house.client.pod("over")
    assert [app.name for app in found.apps] == ["two"]
    assert (found.state, found.exit_code) == ("stopped", 3)
    assert {name.partition(".")[0] for name in os.listdir(house.path(record, "pod/logs"))} == {"two"}
    with pytest.raises(AppNotFoundError):
        house.client.app_rm("over", "one", force=True)
    again, output = house.start("over")
    assert (again.state, [app.name for app in again.apps]) == ("stopped", ["two"])
    assert "two" in output
    assert "one" not in output


@pytest.mark.full
def test_an_end_that_no_process_saw(house):
    """The owner and the stager are killed at once, as by the loss of power."""
    run = house.launch({"main": "exec sleep 1000"}, net="none")
    stager = house.client.pod(run.uuid).stager_pid
    run.kill()
    os.kill(stager, signal.SIGKILL)
    until(lambda: house.client.pod(run.uuid).state == "errored", "the pod's end")
    (app,) = house.client.pod(run.uuid).apps
    assert (app.exited, app.reason, app.exit_code) == (True, "unknown", None)
    assert app.created_at < app.started_at < app.finished_at
    house.client.app_rm(run.uuid, "main")
    assert house.client.pod(run.uuid).apps == ()
