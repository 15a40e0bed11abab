"""Pods that kurmad starts again: when, how often, and when not."""

import json
import signal
import time

import pytest

from kurma_core.client.remote.http import Connection
from kurma_core.errors import KurmaError, UsageError
from kurma_core.models.pod import PodRestart
from kurma_core.pods.record.state import seconds
from tests.integration.daemon.test_root_adoption import owner, started
from tests.integration.pods.test_pods_crash import assert_nothing_left
from tests.integration.pods.test_pods_moved import reboot
from tests.kit.host import links
from tests.kit.waiting import until

pytestmark = pytest.mark.root

POLICY = "kurma.io/pod/restart"


def policy(word, name=POLICY):
    return [{"name": name, "value": word}]


def waits(house, uuid, count):
    """Once it was started so often and has ended again: when it will be started next, seconds after its end."""
    until(lambda: house.state_of(uuid).get("restart", {}) and over(house, uuid, count), f"end {count}")
    state = house.state_of(uuid)
    return seconds(state["restart"]["next"]) - seconds(state["finishedAt"])


def over(house, uuid, count):
    restart = house.client.pod(uuid).restart
    return restart.count == count and restart.next is not None


def test_always_until_it_is_stopped(kurmad, ask):
    daemon = kurmad()
    house = daemon.house
    uuid = started(daemon, "echo once; exit 0", annotations=policy("always"))
    assert waits(house, uuid, 0) > 0.9
    assert waits(house, uuid, 1) > 1.9, "twice as long"
    assert house.log(house.client.pod(uuid)) == "once\n"
    assert ask(daemon).pod(uuid).restart.policy == "always"
    # Stopped while it waits: by a command of another process, which speaks to no daemon.
    record = house.client.stop(uuid)
    assert (record.state, record.restart.next) == ("stopped", None)
    daemon.end(signal.SIGKILL)
    second = kurmad(house=house)
    time.sleep(2.5)
    assert house.state_of(uuid)["restart"]["count"] == 1
    assert house.state_of(uuid)["state"] == "stopped"
    # Somebody starts it: all begins anew.
    ask(second)
    again = house.launch(start=uuid, wait=None)
    assert again.wait() == 0
    assert 0.9 < waits(house, uuid, 0) < 3.9, "not the four seconds that were next"
    house.client.rm(uuid)
    time.sleep(1.2)
    # Other tests' daemons have written to that log before.
    assert "cannot" not in second.log.read_text().rpartition(" serves ")[2]
    assert_nothing_left(uuid)


@pytest.mark.full
def test_on_failure_across_a_daemon_that_is_killed(kurmad):
    daemon = kurmad()
    house = daemon.house
    well = started(daemon, "exit 0", annotations=policy("on-failure"))
    asked = started(
        daemon, "trap 'exit 3' TERM; echo up; while :; do sleep 0.02; done", annotations=policy("always")
    )
    until(lambda: "up" in house.log(house.client.pod(asked)), "the trap")
    house.client.stop(asked)
    # Last: it waits for a second only.
    ill = started(daemon, "echo up; [ -e /data/from-image ] && exit 3", annotations=policy("on-failure"))
    waits(house, ill, 0)
    daemon.end(signal.SIGKILL)
    second = kurmad(house=house)
    waits(house, ill, 1)
    second.wait_said(f"pod {house.client.pod(ill).name} is started again: its policy is on-failure")
    for uuid in (well, asked):
        assert (house.state_of(uuid)["state"], house.state_of(uuid).get("restart")) == ("stopped", None)


@pytest.mark.full
def test_ends_while_there_is_no_daemon(kurmad):
    """A daemon that comes sees to it."""
    daemon = kurmad()
    house = daemon.house
    daemon.end()
    assert "does not run: nothing restarts pods until it does" in house.kurma.out("info")
    assert "not asked: --host local" in house.kurma.out("--host", "local", "info")
    run = house.launch("exit 4", annotations=policy("on-failure"), wait=None)
    assert run.wait() == 4
    record = house.client.pod(run.uuid)
    assert record.restart == PodRestart("on-failure")
    told = f"nothing restarts pod {record.name} until kurmad runs: systemctl start kurmad, or kurma daemon run"
    assert house.notes[-1:] == [told]
    house.notes.clear()
    house.client.summaries()
    assert house.notes == [told]
    house.notes.clear()
    kurmad(house=house)
    waits(house, run.uuid, 1)
    house.client.stop(run.uuid)
    house.client.summaries()
    assert house.notes == []


@pytest.mark.full
def test_starts_that_fail_are_tried_again(kurmad, tmp_path):
    """The first one, too, of which somebody was told."""
    source = tmp_path / "source"
    source.mkdir()
    daemon = kurmad()
    house = daemon.house
    volume = [{"name": "v", "kind": "host", "source": str(source)}]
    app = {"app": {"exec": ["/bin/sleep", "1000"], "user": "0", "group": "0"}}
    app["mounts"] = [{"volume": "v", "path": "/v"}]
    request = house.request({"main": app}, annotations=policy("always"), volumes=volume)
    uuid = house.client.prepare(request).uuid
    source.rmdir()
    connection = Connection.open(daemon.socket)
    answer = connection.request("POST", f"/v1/pods/{uuid}/start", b"")
    assert answer.status >= 400
    assert "no such file or directory" in json.loads(answer.read())["error"]["message"]
    connection.close()
    waits(house, uuid, 1)
    source.mkdir()
    until(lambda: house.state_of(uuid)["state"] == "running", "the start")
    assert (house.client.pod(uuid).restart, owner(house, uuid)) == (
        PodRestart("always", 2),
        daemon.process.pid,
    )
    daemon.wait_said("cannot be started again")


@pytest.mark.full
def test_after_a_reboot(kurmad):
    daemon = kurmad()
    house = daemon.house
    before = links()
    plain = started(daemon, "sleep 1000", net="default")
    asks = started(daemon, "sleep 1000", net="default", annotations=policy("on-failure"))
    implied = started(daemon, "sleep 1000", net="default", annotations=policy("always", "kurma.io/restart"))
    daemon.end(signal.SIGKILL)
    for uuid in (plain, asks, implied):
        reboot(house, uuid, before)
    second = kurmad(house=house)
    for uuid in (asks, implied):
        until(lambda uuid=uuid: (house.state_of(uuid).get("restart") or {}).get("count") == 1, "its start")
        until(lambda uuid=uuid: house.state_of(uuid)["state"] == "running", "its being up")
        assert owner(house, uuid) == second.process.pid
        assert house.enter(uuid, "true")[0] == 0
    record = house.client.pod(plain)
    assert (record.state, record.reason) == ("errored", "the host was rebooted while it ran")
    for uuid in (plain, asks, implied):
        house.client.rm(uuid, force=True)
        assert_nothing_left(uuid)
    house.client.network_rm("default")
    assert links() == before


def test_what_cannot_be_meant(kurmad, ask):
    daemon = kurmad()
    house = daemon.house
    with pytest.raises(UsageError, match="is 'often'"):
        ask(daemon).prepare(house.request("true", annotations=policy("often")))
    with pytest.raises(KurmaError, match="cannot combine --rm with the restart policy"):
        house.client.prepare(house.request("true", annotations=policy("always"), ephemeral=True))
    assert house.kept() == ["names"]
