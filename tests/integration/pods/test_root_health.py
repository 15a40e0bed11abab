"""Health checks of real apps: run by hand, recorded, shown, and waited for (21.5)."""

import json
import os
import threading
from pathlib import Path

import pytest

from kurma_core.errors import KurmaError, PodStateError, UsageError
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.models.health import HEALTH_CHECK
from tests.kit.house import both_ways
from tests.kit.images import shell
from tests.kit.waiting import until

pytestmark = pytest.mark.root

SLEEP = "exec sleep 1000"


def checked(script=SLEEP, **check):
    """An app with a health check."""
    return {"app": shell(script), "healthCheck": {"retries": 1, **check}}


def health(client, pod, app="main"):
    (found,) = [one.health for one in client.pod(pod.uuid).apps if one.name == app]
    return found


def test_a_check_is_run_in_the_app_and_recorded(house):
    command = "echo from $PWD; echo bad >&2; test -e /tmp/well"
    with house.running({"main": checked(command=command), "other": SLEEP}) as pod:
        client, since = house.client, house.client.here.journal.last()
        assert client.pod(pod.uuid).health == health(client, pod).status == "starting"
        done = client.healthcheck(pod.uuid)
        assert (done.app, done.result.exit_code, done.result.output) == ("main", 1, "from /\nbad\n")
        assert done.health == health(client, pod)
        assert (done.health.status, done.health.failing_streak) == ("unhealthy", 1)
        house.enter(pod.uuid, "touch", "/tmp/well", app="main")
        assert client.healthcheck(pod.uuid, "main").result.exit_code == 0
        assert client.healthcheck(pod.uuid, "main").health.status == "healthy"
        assert [one.health for one in client.summaries()] == ["healthy"]
        assert len(health(client, pod).results) == 3
        told = [(one.name, one.kind, one.detail["failingStreak"]) for one in client.events(since, subject=["app"])]
        assert told == [("main", "unhealthy", 1), ("main", "healthy", 0)]
        with pytest.raises(UsageError, match=r"app other of pod .* has no health check"):
            client.healthcheck(pod.uuid, "other")
    with pytest.raises(PodStateError, match="cannot check the health of pod"):
        client.healthcheck(pod.uuid)
    # The pod keeps the results of the last checks, so that people find the reason of its end.
    assert len(health(client, pod).results) == 3
    assert client.pod(pod.uuid).health is None


def test_a_check_that_hangs_is_killed_with_all_that_it_has_started(house):
    with house.running({"main": checked(command="sleep 1009 & exec sleep 1009", timeout=0.5)}) as pod:
        result = house.client.healthcheck(pod.uuid).result
        assert result.exit_code is None
        assert "did not end within 0.5 s" in result.output
        commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in CgroupTree(f"kurma/{pod.uuid}").pids()]
        assert not any(b"1009" in words for words in commands)


def test_output_without_end_is_cut(house):
    with house.running({"main": checked(command="yes | head -c 1000000; exit 0")}) as pod:
        result = house.client.healthcheck(pod.uuid).result
        assert (result.exit_code, len(result.output)) == (0, 4096)
        assert os.path.getsize(house.path(pod, "health.json")) < 10_000


def test_a_program_that_is_missing_is_a_failure(house):
    with house.running({"main": checked(command=["/no/such"])}) as pod:
        result = house.client.healthcheck(pod.uuid).result
        assert (result.exit_code, "/no/such" in result.output) == (127, True)


@both_ways
def test_wait_for_a_health(house, way):
    pod = house.launch({"main": checked(command="test -e /tmp/well")}, host=None if way == "kurmad" else "local")
    waited = []
    with house.connect() as client:
        thread = threading.Thread(target=lambda: waited.append(client.wait(pod.uuid, condition="healthy")))
        thread.start()
        house.client.healthcheck(pod.uuid)
        house.enter(pod.uuid, "touch", "/tmp/well")
        house.client.healthcheck(pod.uuid)
        thread.join(60)
        assert [one.health for one in waited] == ["healthy"]
        failed = []

        def end():
            try:
                client.wait(pod.uuid, condition="unhealthy")
            except KurmaError as error:
                failed.append(error)

        thread = threading.Thread(target=end)
        thread.start()
        house.client.stop(pod.uuid)
        thread.join(60)
        assert "cannot become unhealthy" in failed[0].message
    pod.wait()


def test_without_a_check_there_is_no_health_to_wait_for(house):
    with house.running(SLEEP) as pod:
        assert house.client.pod(pod.uuid).health is None
        with pytest.raises(UsageError, match=r"no app of pod .* has a health check"):
            house.client.wait(pod.uuid, condition="healthy")


def test_another_execution_begins_anew(house):
    """Also an app of the same name that comes after a removed one."""
    with house.running({"main": checked("exit 0", command="true"), "keep": SLEEP}) as pod:
        client = house.client
        until(lambda: client.pod(pod.uuid).apps[0].exited, "its end")
        assert health(client, pod) is None
        client.app_rm(pod.uuid, "main")
        client.app_add(pod.uuid, house.request({"main": checked(command="true")}), start=True)
        assert client.healthcheck(pod.uuid, "main").health.status == "healthy"
        client.app_stop(pod.uuid, "main", force=True)
        client.app_start(pod.uuid, "main")
        assert health(client, pod).status == "starting"
        client.healthcheck(pod.uuid, "main")
        client.app_stop(pod.uuid, "main", force=True)
        client.app_rm(pod.uuid, "main")
        client.app_add(pod.uuid, house.request({"main": checked(command="true")}), start=True)
        assert (health(client, pod).status, health(client, pod).results) == ("starting", ())


def test_a_damaged_record_begins_anew(house):
    with house.running({"main": checked(command="true")}) as pod:
        house.client.healthcheck(pod.uuid)
        for text in ("{", '{"version": 9, "apps": {}}', '{"version": 1, "apps": {"main": {}}}', "[]"):
            with open(house.path(pod, "health.json"), "w") as file:
                file.write(text)
            assert health(house.client, pod).status == "starting"
        assert house.client.healthcheck(pod.uuid).health.status == "healthy"


def test_the_command_line(house):
    app = checked(command="echo fine; test -e /tmp/well")
    with house.running({"main": app}, name="web") as pod:
        done = house.kurma("healthcheck", "run", "web")
        assert (done.returncode, done.stdout) == (1, "fine\n")
        assert "running (unhealthy)" in house.kurma("list").stdout
        house.enter(pod.uuid, "touch", "/tmp/well")
        assert house.kurma("healthcheck", "run", "web/main").returncode == 0
        assert house.kurma("list", "-q", "--filter", "health=healthy").stdout.strip() == pod.uuid
        assert house.kurma("list", "-q", "--filter", "health=none").stdout == ""
        (row,) = json.loads(house.kurma("list", "--format", "json", "--filter", "health=healthy").stdout)
        assert row["health"] == row["apps"]["main"]["health"]["status"] == "healthy"
        assert "running (healthy)" in house.kurma("show", "web").stdout
        assert house.kurma("wait", "--condition", "healthy", "web").returncode == 0


def test_what_cannot_be_prepared(house):
    with pytest.raises(KurmaError, match="app main: its health check: expected a command"):
        house.client.prepare(house.request({"main": {"app": shell(SLEEP), "healthCheck": {"retries": 2}}}))
    with pytest.raises(UsageError, match="cannot combine --rm with a health check that restarts"):
        house.client.prepare(house.request({"main": checked(command="true", onFailure="restart")}, ephemeral=True))
    malformed = {"app": shell(SLEEP), "annotations": [{"name": HEALTH_CHECK, "value": "{}x"}]}
    with pytest.raises(KurmaError, match=r"annotation kurma\.io/health-check"):
        house.client.prepare(house.request({"main": malformed}))
    assert house.uuids() == []
