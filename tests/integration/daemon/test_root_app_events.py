"""Events of apps: each start and each end once, in order with those of their pod, at once, and over kurmad's death
(C13)."""

import signal

import pytest

from tests.kit.waiting import until

pytestmark = pytest.mark.root

SLEEP = "exec sleep 1000"


def told(client, since, uuid):
    """Subject, name of the app, and kind of each event of that pod."""
    found = [event for event in client.events(since) if event.id == uuid]
    return [(event.name if event.subject == "app" else "pod", event.kind) for event in found]


def ends(client, since, uuid, app):
    found = client.events(since, subject=["app"], kind=["stopped"], pod=uuid)
    return [event.detail for event in found if event.name == app]


def test_apps_come_and_go(kurmad, ask):
    daemon = kurmad()
    client, house = ask(daemon), daemon.house
    since = client.here.journal.last()
    pod = client.prepare(house.request({}), start=True)
    client.app_add(pod.uuid, house.request({"one": "exit 3"}), start=True)
    until(lambda: ends(client, since, pod.uuid, "one"), "the end of the app")
    assert told(client, since, pod.uuid) == [
        *[("pod", kind) for kind in ("prepared", "starting", "running")],
        *[("one", kind) for kind in ("created", "started", "stopped")],
    ]
    assert ends(client, since, pod.uuid, "one") == [
        {"pod": pod.name, "instance": 1, "exitCode": 3, "reason": "exited"}
    ]
    client.app_rm(pod.uuid, "one")
    client.app_add(pod.uuid, house.request({"one": SLEEP}), start=True)
    client.stop(pod.uuid)
    client.rm(pod.uuid)
    until(lambda: told(client, since, pod.uuid)[-1] == ("pod", "removed"), "the last event")
    assert told(client, since, pod.uuid)[6:] == [
        *[("one", kind) for kind in ("removed", "created", "started")],
        ("pod", "stopping"),
        ("one", "stopped"),
        ("pod", "stopped"),
        ("one", "removed"),
        ("pod", "removed"),
    ]
    # Names of pods find the events of their apps, too.
    assert [event.kind for event in client.events(since, pod=pod.name, subject=["app"], kind=["removed"])] == [
        "removed"
    ] * 2


@pytest.mark.full
def test_an_end_is_told_to_a_client_that_follows(kurmad, ask):
    daemon = kurmad()
    client, house = ask(daemon), daemon.house
    script = "trap 'exit 7' USR1; while :; do sleep 0.01; done"
    pod = client.prepare(house.request({"main": script, "b": SLEEP}), start=True)
    since = client.here.journal.last()
    client.kill(pod.uuid, signal.SIGUSR1, "main")
    event = next(client.events(since, follow=True, subject=["app"], kind=["stopped"], pod=pod.uuid))
    assert (event.name, event.detail["exitCode"]) == ("main", 7)
    assert not client.pod(pod.uuid).apps[1].exited
    client.rm(pod.uuid, force=True)


def test_in_the_foreground(house):
    """Without kurmad the command that owns the pod tells of them."""
    since = house.client.here.journal.last()
    run = house.launch({"main": SLEEP, "two": "exit 4"}, net="none")
    until(lambda: ends(house.client, since, run.uuid, "two"), "the end of the second app")
    assert ("main", "started") in told(house.client, since, run.uuid)
    house.client.stop(run.uuid)
    run.wait()
    assert told(house.client, since, run.uuid)[-2:] == [("main", "stopped"), ("pod", "stopped")]


@pytest.mark.full
def test_ends_while_kurmad_is_dead_are_told_once(kurmad, ask):
    first = kurmad()
    house = first.house
    client = ask(first)
    since = client.here.journal.last()
    script = "trap 'exit 5' USR1; while :; do sleep 0.01; done"
    pod = client.prepare(house.request({"main": script, "other": SLEEP}), start=True)
    until(lambda: ("other", "started") in told(client, since, pod.uuid), "the starts")
    first.process.kill()
    first.process.wait()
    with house.connect(host="local") as local:
        local.kill(pod.uuid, signal.SIGUSR1, "main")
        until(lambda: local.pod(pod.uuid).apps[0].exited, "its end")
        assert ends(local, since, pod.uuid, "main") == []
    for _ in range(2):
        again = kurmad(house=house)
        client = ask(again)
        until(lambda: ends(client, since, pod.uuid, "main"), "the event")  # noqa: B023
        until(lambda: told(client, since, pod.uuid).count(("pod", "adopted")), "the adoption")  # noqa: B023
        again.process.kill()
        again.process.wait()
    with house.connect(host="local") as local:
        assert [one["exitCode"] for one in ends(local, since, pod.uuid, "main")] == [5]
        assert told(local, since, pod.uuid).count(("main", "started")) == 1
        local.rm(pod.uuid, force=True)
