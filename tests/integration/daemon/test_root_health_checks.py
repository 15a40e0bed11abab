"""kurmad runs health checks when they are due, tells of changes, and acts on unhealthy apps (21.5)."""

import signal
import threading

import pytest

from tests.integration.daemon.test_root_app_events import told
from tests.integration.pods.test_root_health_requests import hold, request_of, serving
from tests.kit.images import shell
from tests.kit.waiting import until

pytestmark = pytest.mark.root

SLEEP = "exec sleep 1000"


def checked(script=SLEEP, **check):
    return {
        "app": shell(script),
        "healthCheck": {"interval": 0.2, "retries": 2, "command": "test ! -e /tmp/ill", **check},
    }


def health(client, pod, app="main"):
    return next(one.health for one in client.pod(pod.uuid).apps if one.name == app)


def wait_for(client, pod, word, app="main"):
    return until(lambda: (found := health(client, pod, app)) and found.status == word and found, word)


def ail(house, pod, app="main"):
    house.enter(pod.uuid, "touch", "/tmp/ill", app=app)


def test_a_pod_becomes_unhealthy_and_healthy(kurmad, ask):
    daemon = kurmad()
    client, house = ask(daemon), daemon.house
    house.reopen()
    since = client.here.journal.last()
    pod = client.prepare(house.request({"main": checked(), "other": SLEEP}), start=True)
    assert client.wait(pod.uuid, condition="healthy").health == "healthy"
    ail(house, pod)
    assert client.wait(pod.uuid, condition="unhealthy").health == "unhealthy"
    assert [one.health for one in client.summaries()] == ["unhealthy"]
    assert health(client, pod, "other") is None
    house.enter(pod.uuid, "rm", "/tmp/ill", app="main")
    wait_for(client, pod, "healthy")
    kinds = [kind for name, kind in told(client, since, pod.uuid) if name == "main" and kind.endswith("healthy")]
    assert kinds == ["healthy", "unhealthy", "healthy"]
    client.rm(pod.uuid, force=True)


def test_failures_of_the_start_period_do_not_count(kurmad, ask):
    daemon = kurmad()
    client, house = ask(daemon), daemon.house
    check = {"startPeriod": 500, "startInterval": 0.1, "interval": 0.1, "retries": 1}
    pod = client.prepare(house.request({"main": checked("touch /tmp/ill; " + SLEEP, **check)}), start=True)
    until(lambda: len(health(client, pod).results) == 5, "five failures")
    assert (health(client, pod).status, health(client, pod).failing_streak) == ("starting", 0)
    house.reopen()
    house.enter(pod.uuid, "rm", "/tmp/ill")
    wait_for(client, pod, "healthy")
    ail(house, pod)
    wait_for(client, pod, "unhealthy")
    client.rm(pod.uuid, force=True)


def test_an_app_that_is_added_is_checked(kurmad, ask):
    daemon = kurmad()
    client, house = ask(daemon), daemon.house
    pod = client.prepare(house.request({}), start=True)
    for _ in range(2):
        client.app_add(pod.uuid, house.request({"one": checked()}), start=True)
        wait_for(client, pod, "healthy", "one")
        client.app_rm(pod.uuid, "one", force=True)
    client.rm(pod.uuid, force=True)


def test_a_killed_app_is_restarted_by_the_policy_of_its_pod(kurmad, ask):
    daemon = kurmad()
    client, house = ask(daemon), daemon.house
    house.reopen()
    policy = [{"name": "kurma.io/pod/restart", "value": "on-failure"}]
    request = house.request({"main": checked(onFailure="kill")}, annotations=policy)
    pod = client.prepare(request, start=True)
    wait_for(client, pod, "healthy")
    ail(house, pod)
    until(lambda: client.pod(pod.uuid).restart.count == 1, "the restart")
    wait_for(client, pod, "healthy")
    assert client.pod(pod.uuid).apps[0].earlier[-1].exit_code == 137
    client.rm(pod.uuid, force=True)


@pytest.mark.parametrize("action", ["restart", "stop"])
def test_a_pod_is_restarted_or_stopped(kurmad, ask, action):
    daemon = kurmad()
    client, house = ask(daemon), daemon.house
    house.reopen()
    policy = [{"name": "kurma.io/pod/restart", "value": "always" if action == "stop" else "never"}]
    script = "trap 'exit 0' TERM; while :; do sleep 0.05; done"
    request = house.request({"main": checked(script, onFailure=action)}, annotations=policy)
    pod = client.prepare(request, start=True)
    wait_for(client, pod, "healthy")
    ail(house, pod)
    if action == "restart":
        until(lambda: client.pod(pod.uuid).restart.count == 1, "the restart")
        wait_for(client, pod, "healthy")
        client.rm(pod.uuid, force=True)
    else:
        # Its own policy does not start it again: it was stopped.
        assert client.wait(pod.uuid).restart.next is None
        assert client.pod(pod.uuid).restart.count == 0
        assert health(client, pod).status == "unhealthy"
        client.rm(pod.uuid)


@pytest.mark.full
def test_kurmad_is_killed_during_a_check(kurmad, ask):
    """The check ends with it; the next kurmad goes on."""
    first = kurmad()
    client, house = ask(first), first.house
    house.reopen()
    command = "test ! -e /tmp/slow || exec sleep 1011"
    pod = client.prepare(house.request({"main": checked(command=command, timeout=500, retries=1)}), start=True)
    wait_for(client, pod, "healthy")
    house.enter(pod.uuid, "touch", "/tmp/slow")

    def hangs():
        return [one for one in client.processes(pod.uuid) if "1011" in one.command]

    until(hangs, "the check that hangs")
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    with house.connect(host="local") as local:
        until(lambda: not [one for one in local.processes(pod.uuid) if "1011" in one.command], "the check's end")
        kept = health(local, pod)
        assert kept.status == "healthy"
    again = kurmad(house=house)
    client = ask(again)
    house.reopen()
    until(hangs, "the next check")
    house.enter(pod.uuid, "rm", "/tmp/slow")
    # It ends with kurmad, as one that hangs does not keep kurmad from its end.
    again.process.terminate()
    again.process.wait(60)
    last = kurmad(house=house)
    client = ask(last)
    until(lambda: health(client, pod).results[-1].started_at > kept.results[-1].started_at, "a result")
    assert health(client, pod).status == "healthy"
    client.rm(pod.uuid, force=True)


WEB = "echo well > /tmp/well; exec httpd -f -p 8080 -h /tmp"


def test_kurmad_sends_requests(kurmad, ask):
    daemon = kurmad()
    client, house = ask(daemon), daemon.house
    house.reopen()
    policy = [{"name": "kurma.io/pod/restart", "value": "on-failure"}]
    check = {
        "command": None,
        "http": {"port": 8080, "path": "/well"},
        "onFailure": "kill",
        "startPeriod": 500,
        "startInterval": 0.1,
    }
    pod = client.prepare(house.request({"main": checked(WEB, **check)}, annotations=policy), start=True)
    found = wait_for(client, pod, "healthy")
    assert found.results[-1].output == "HTTP 200 from http://127.0.0.1:8080/well\nwell\n"
    house.enter(pod.uuid, "rm", "/tmp/well")
    until(lambda: client.pod(pod.uuid).restart.count == 1, "the restart")
    wait_for(client, pod, "healthy")
    client.rm(pod.uuid, force=True)


@pytest.mark.full
def test_kurmad_is_killed_and_stopped_during_a_request(kurmad, ask):
    """The connection ends with it; the next kurmad goes on."""
    first = kurmad()
    client, house = ask(first), first.house
    house.reopen()
    reached, gone, slow = threading.Semaphore(0), threading.Semaphore(0), threading.Event()

    def serve(connected):
        request_of(connected)
        if slow.is_set():
            reached.release()
            hold(connected)
            gone.release()
        else:
            connected.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    check = {
        "command": None,
        "http": {"port": 8080},
        "timeout": 500,
        "retries": 1,
        "startPeriod": 500,
        "startInterval": 0.1,
    }
    pod = client.prepare(house.request({"main": checked(**check)}), start=True)
    with serving(pod, serve):
        wait_for(client, pod, "healthy")
        slow.set()
        assert reached.acquire(timeout=60)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        assert gone.acquire(timeout=60)
        with house.connect(host="local") as local:
            kept = health(local, pod)
            assert kept.status == "healthy"
        again = kurmad(house=house)
        assert reached.acquire(timeout=60)
        # It ends with kurmad, as one that hangs does not keep kurmad from its end.
        again.process.terminate()
        again.process.wait(60)
        assert gone.acquire(timeout=60)
        slow.clear()
        client = ask(kurmad(house=house))
        until(lambda: health(client, pod).results[-1].started_at > kept.results[-1].started_at, "a result")
        assert health(client, pod).status == "healthy"
        client.rm(pod.uuid, force=True)
