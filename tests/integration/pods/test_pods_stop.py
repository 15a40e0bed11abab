"""Stopping, by force and without, from anywhere; signals to apps (G7)."""

import os
import signal
import threading
import time

import pytest

from kurma_core.errors import AppNotFoundError, KurmaError, ManifestError, PodError, PodStateError
from kurma_core.models.streams import Stdio
from kurma_core.pods.change import stop
from kurma_core.pods.run import launch
from tests.kit.waiting import alive, until

pytestmark = pytest.mark.root

DEAF = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
POLITE = "trap 'echo asked; exit 4' TERM; echo ready; while :; do sleep 0.02; done"


@pytest.mark.vm
def test_apps_are_asked_first(house):
    run = house.launch({"polite": POLITE, "other": POLITE})
    run.wait_output("ready\nready")
    record = house.client.stop(run.uuid)
    assert (record.state, record.exit_code) == ("stopped", 4)
    assert house.log(record, "polite") == house.log(record, "other") == "ready\nasked\n"
    assert run.wait() == 4


@pytest.mark.parametrize("force", [False, True])
def test_one_that_starts_is_stopped_and_has_not_failed(foreign, force):
    """Whoever stops it waits until there is a stager; this one never says that its pod runs."""
    house = foreign("exec sleep 1000")
    record = house.client.prepare(house.request("true"))
    held, caught = threading.Event(), []
    step = next(step for step in launch.STEPS if step.name == "networks")

    class Held:
        name = "networks"
        undo = step.undo

        def do(self, launch):
            held.wait(20)
            step.do(launch)

    def start():
        null = os.open("/dev/null", os.O_RDWR)
        with pytest.raises(PodStateError) as error, open(null, "rb"):
            house.client.here.pods.start(record.uuid, Stdio(null, null, null))
        caught.append(error.value.message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "STEPS", tuple(Held() if one is step else one for one in launch.STEPS))
        starting = threading.Thread(target=start)
        starting.start()
        until(lambda: house.state_of(record)["state"] == "starting", "the start")
        stopping = threading.Thread(target=lambda: caught.append(house.client.stop(record.uuid, force=force)))
        stopping.start()
        until(lambda: house.state_of(record)["cause"] == "stop", "the stop")
        held.set()
        for thread in (starting, stopping):
            thread.join(30)
    (stopped,) = [one for one in caught if not isinstance(one, str)]
    assert f"pod {record.name} was stopped while it started" in caught
    assert (stopped.state, stopped.reason) == ("stopped", "it was stopped while it started")
    assert stopped.exit_code == (137 if force else 143)


def test_who_does_not_listen_is_killed_after_the_time_out(make_house):
    house = make_house({"stop_timeout": 0.6})
    run = house.launch({"deaf": DEAF, "polite": POLITE})
    run.wait_output("ready\nready")
    started = time.monotonic()
    record = house.client.stop(run.uuid)
    assert 0.5 < time.monotonic() - started < 4
    assert record.state == "stopped"
    assert {app.name: (app.exit_code, app.reason) for app in record.apps} == {
        "deaf": (137, "killed"),
        "polite": (4, "exited"),
    }
    assert run.wait() == 137


def test_a_pod_has_a_stop_timeout_of_its_own(make_house):
    house = make_house({"stop_timeout": 1000})
    note = {"name": "kurma.io/stop-timeout", "value": "300ms"}
    run = house.launch({"deaf": DEAF}, annotations=[note])
    run.wait_output("ready")
    assert house.client.stop(run.uuid).exit_code == 137
    assert run.wait() == 137
    for text in ("soon", "2d", "-1", ""):
        with pytest.raises(ManifestError, match="seconds, or text such as 1m30s"):
            house.client.prepare(house.request("true", annotations=[{**note, "value": text}]))


def test_the_callers_own_time_out_is_that_of_the_apps(house):
    """Shorter than the pod's: apps are killed then, handlers run, and how the apps ended is known."""
    handlers = [{"name": "post-stop", "exec": ["/bin/sh", "-c", "echo after"]}]
    deaf = {"exec": ["/bin/sh", "-c", DEAF], "user": "0", "group": "0", "eventHandlers": handlers}
    run = house.launch({"deaf": deaf, "polite": POLITE})
    run.wait_output("ready\nready")
    started = time.monotonic()
    record = house.client.stop(run.uuid, timeout=0.4)
    assert 0.4 < time.monotonic() - started < 5
    assert (record.state, record.reason, record.exit_code) == ("stopped", None, 137)
    assert {app.name: (app.exit_code, app.reason) for app in record.apps} == {
        "deaf": (137, "killed"),
        "polite": (4, "exited"),
    }
    assert house.log(record, "deaf") == "ready\nafter\n"
    assert run.wait() == 137


@pytest.mark.vm
def test_force_asks_nobody(house):
    run = house.launch(POLITE)
    run.wait_output("ready")
    started = time.monotonic()
    record = house.client.stop(run.uuid, force=True)
    assert time.monotonic() - started < 2
    assert record.state == "errored"
    assert "asked" not in house.log(record)
    (app,) = record.apps
    assert (app.exited, app.state, app.exit_code, app.pid) == (True, "killed", None, None)
    assert app.finished_at, "when its end was found: no process saw it"
    assert app.message is None
    assert run.wait() == 137


def test_a_deaf_stager_is_killed_as_well(foreign):
    house = foreign("trap '' TERM; echo $$ > /pod/me; exec 4>&-; while :; do sleep 0.05; done")
    run = house.launch("true")
    record = house.client.stop(run.uuid, timeout=0.3)
    assert (record.state, record.exit_code) == ("errored", 137)
    with open(house.path(record, "pod/me")) as file:
        assert not alive(int(file.read()))
    run.wait()


@pytest.mark.full
def test_a_failed_stop_leaves_a_state_from_which_force_works(house, monkeypatch):
    run = house.launch(POLITE)
    run.wait_output("ready")
    monkeypatch.setattr(stop, "_TEARDOWN_PATIENCE", 0.3)
    run.signal(signal.SIGSTOP)
    with pytest.raises(PodStateError, match="its owner does not clean up"):
        house.client.stop(run.uuid)
    assert house.state_of(run.uuid)["state"] == "stopping"
    run.kill()
    record = house.client.stop(run.uuid, force=True)
    assert record.state == "stopped"
    assert not os.path.exists(f"/run/netns/kurma-{record.uuid}")


def test_stop_of_what_has_ended_or_never_ran(house):
    prepared = house.client.prepare(house.request("true"))
    assert house.client.stop(prepared.uuid).state == "prepared"
    record, _ = house.run("exit 3")
    assert house.client.stop(record.uuid, force=True) == house.client.pod(record.uuid)


def test_stop_of_an_ephemeral_pod(house):
    run = house.launch(POLITE, ephemeral=True)
    run.wait_output("ready")
    assert house.client.stop(run.uuid).state in ("stopped", "errored")
    assert run.wait() == 4
    assert house.uuids() == []


def test_everybody_stops_it_at_once(house):
    run = house.launch(POLITE)
    run.wait_output("ready")
    uuid = run.uuid
    clients = [house.connect() for _ in range(3)]
    states, errors, listed = [], [], []

    def stop(client, force):
        try:
            states.append(client.stop(uuid, force=force).state)
        except KurmaError as error:
            errors.append(error)

    with house.connect() as lister:
        stopping = threading.Event()

        def listing():
            while not stopping.is_set():
                listed.extend(record.uuid for record in lister.pods())

        threads = [threading.Thread(target=stop, args=(client, n == 2)) for n, client in enumerate(clients)]
        looker = threading.Thread(target=listing)
        looker.start()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stopping.set()
        looker.join()
    for client in clients:
        client.close()
    assert errors == []
    assert len(set(states)) == 1
    assert states[0] in ("stopped", "errored")
    assert uuid in listed
    run.wait()


def test_rm_while_it_stops(house):
    run = house.launch(DEAF)
    run.wait_output("ready")
    with house.connect() as other:
        stopper = threading.Thread(target=lambda: other.stop(run.uuid))
        stopper.start()
        run.wait_state("stopping")
        with pytest.raises(PodStateError, match="it is stopping"):
            house.client.rm(run.uuid)
        house.client.rm(run.uuid, force=True)
        stopper.join()
    assert house.uuids() == []
    assert run.wait() in (125, 137)


def test_signals_reach_apps(house):
    script = "trap 'echo one; exit 1' USR1; trap 'echo two' USR2; echo ready; while :; do sleep 0.02; done"
    run = house.launch({"left": script, "right": script})
    run.wait_output("ready\nready")
    house.client.kill(run.uuid, signal.SIGUSR2)
    run.wait_output("two\ntwo")
    house.client.kill(run.uuid, signal.SIGUSR1, "right")
    until(lambda: house.client.pod(run.uuid).apps[1].exited, "the app's end")
    assert not house.client.pod(run.uuid).apps[0].exited
    with pytest.raises(AppNotFoundError, match=r"app right of pod .* does not run"):
        house.client.kill(run.uuid, signal.SIGUSR1, "right")
    with pytest.raises(AppNotFoundError, match="has no app middle"):
        house.client.kill(run.uuid, signal.SIGUSR1, "middle")
    house.client.kill(run.uuid, signal.SIGKILL)
    assert run.wait() == 137
    with pytest.raises(PodStateError, match="it is stopped"):
        house.client.kill(run.uuid, signal.SIGKILL)


def test_a_lying_stager_has_nobody_else_signalled(foreign):
    """It names a process outside of its pod as its app."""
    bystander = os.fork()
    if bystander == 0:
        signal.pause()
    try:
        house = foreign(
            "trap 'exit 0' TERM; exec 4>&-; while :; do sleep 0.02; done",
            {"status": f"""echo '{{"main": {{"pid": {bystander}, "exited": false}}}}'"""},
        )
        with house.running() as pod:
            with pytest.raises(
                PodError, match=f"process {bystander}, which it names for app main, is not in its pod"
            ):
                house.client.kill(pod.uuid, signal.SIGKILL)
            assert alive(bystander)
    finally:
        os.kill(bystander, signal.SIGKILL)
        os.waitpid(bystander, 0)


def test_a_pod_whose_stager_has_left_the_configuration_can_be_ended(foreign, make_house):
    house = foreign("exec 4>&-; while :; do sleep 0.05; done")
    run = house.launch("true")
    later = make_house({}, state=house.state)
    (record,) = [record for record in later.client.pods() if record.uuid == run.uuid]
    assert (record.state, record.stager) == ("running", "shell")
    later.client.rm(run.uuid, force=True)
    assert run.uuid not in [record.uuid for record in later.client.pods()]
    run.wait()
