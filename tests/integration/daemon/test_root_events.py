"""Events: of whoever brings them about, told to whoever follows, with and without a daemon."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading

import pytest

from kurma_core.errors import HostError
from tests.kit.command import KURMA
from tests.kit.waiting import until

pytestmark = pytest.mark.root


def of(events, uuid):
    return [event.kind for event in events if event.id == uuid and event.subject == "pod"]


def last_behind_start(daemon):
    """The last event's number, once the daemon has told of its start: it answers some time before that."""
    client = daemon.house.client

    def told():
        starts = client.events(0, subject=["daemon"], kind=["started"])
        return any(event.detail["pid"] == daemon.process.pid for event in starts)

    until(told, "the daemon's word of its start")
    return client.here.journal.last()


def test_the_life_of_a_pod_is_told_with_and_without_a_daemon(kurmad, ask):
    daemon = kurmad()
    client, house = ask(daemon), daemon.house
    since = last_behind_start(daemon)
    record, _ = house.run("exit 3")  # in the foreground of this process
    ours = client.prepare(house.request("sleep 1000"))
    house.client.pod(ours.uuid)
    client.launch(ours.uuid)
    client.stop(ours.uuid)
    client.rm(ours.uuid)
    assert client.remote
    told = list(client.events(since))
    assert told == list(house.client.events(since))
    assert of(told, record.uuid) == ["prepared", "starting", "running", "stopped"]
    (end,) = [one for one in told if (one.id, one.subject, one.kind) == (record.uuid, "pod", "stopped")]
    assert end.detail == {"exitCode": 3}
    assert of(told, ours.uuid) == ["prepared", "starting", "running", "stopping", "stopped", "removed"]
    assert [event.seq for event in told] == list(range(told[0].seq, told[0].seq + len(told)))
    assert {event.id for event in client.events(since, pod=ours.uuid[:8])} == {ours.uuid}
    ends = client.events(since, pod=record.name, kind=["stopped"])
    assert [(event.subject, event.name) for event in ends] == [("app", "main"), ("pod", record.name)]
    assert list(client.events(since, subject=["image"])) == []
    assert list(client.events()) == []


def test_numbers_go_on_over_restarts_of_the_daemon_and_ends_meanwhile_are_told(kurmad, ask):
    daemon = kurmad()
    house = daemon.house
    client = ask(daemon)
    record = client.prepare(house.request("while [ ! -e /tmp/end ]; do sleep 0.05; done; exit 7"))
    client.launch(record.uuid)
    since = last_behind_start(daemon)
    daemon.end(signal.SIGKILL)
    house.enter(record.uuid, "touch", "/tmp/end")
    another = kurmad(house=house)
    client = ask(another)
    until(lambda: client.pod(record.uuid).state == "stopped")
    told = until(lambda: [e for e in client.events(since) if (e.id, e.kind) == (record.uuid, "stopped")])
    assert told[0].detail["exitCode"] == 7
    last_behind_start(another)
    daemons = [event for event in client.events(since) if event.subject == "daemon"]
    assert [(event.kind, event.detail["pid"]) for event in daemons] == [("started", another.process.pid)]
    assert another.end() == 0
    assert [event.kind for event in house.client.events(since, subject=["daemon"])] == ["started", "ended"]


def test_a_pod_that_is_adopted_says_so(kurmad, ask):
    daemon = kurmad()
    record = ask(daemon).prepare(daemon.house.request("sleep 1000"))
    ask(daemon).launch(record.uuid)
    since = daemon.house.client.here.journal.last()
    daemon.end(signal.SIGKILL)
    again = kurmad(house=daemon.house)
    until(lambda: "adopted" in of(ask(again).events(since), record.uuid))


def watching(daemon):
    """How many inotify instances it has."""
    found = 0
    for fd in os.listdir(f"/proc/{daemon.process.pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(f"/proc/{daemon.process.pid}/fd/{fd}") == "anon_inode:inotify"
    return found


def test_many_follow_and_hear_at_once_and_are_let_go(kurmad, ask):
    daemon = kurmad()
    house, heard = daemon.house, [[] for _ in range(5)]
    since = last_behind_start(daemon)
    before = watching(daemon)  # by itself: by then that is all

    def collect(into):
        for event in ask(daemon).events(since, follow=True, kind=["removed"]):
            into.append(event)

    def follow(into):
        with pytest.raises(HostError, match="has gone"):
            collect(into)

    threads = [threading.Thread(target=follow, args=(into,)) for into in heard]
    for thread in threads:
        thread.start()
    until(lambda: watching(daemon) == before + 1)
    record = house.client.prepare(house.request("true"))
    house.client.rm(record.uuid)
    until(lambda: all(of(into, record.uuid) == ["removed"] for into in heard))
    assert watching(daemon) == before + 1  # one for all of them
    # Its end is told: who wants to hear more goes on from the last number.
    assert daemon.end() == 0
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_server_sent_events_go_on_from_the_last_one(kurmad, ask):
    daemon = kurmad()
    house = daemon.house
    last_behind_start(daemon)
    before = watching(daemon)
    record = house.client.prepare(house.request("true"))
    last = house.client.here.journal.last()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(daemon.socket)
        connection.sendall(
            f"GET /v1/events?follow=true HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n"
            f"Last-Event-ID: {last - 2}\r\n\r\n".encode()
        )
        data = b""
        while b"\n\n" not in data.partition(b"\r\n\r\n")[2]:
            data += connection.recv(65536)
        head, _, body = data.partition(b"\r\n\r\n")
        assert b"text/event-stream" in head
        first = body.decode().partition("\n\n")[0]
        fields = dict(line.split(": ", 1) for line in first.splitlines() if ": " in line)
        assert (fields["id"], fields["event"]) == (str(last - 1), "prepared")
        assert json.loads(fields["data"])["id"] == record.uuid
        house.client.rm(record.uuid)
        while b"event: removed" not in data:
            data += connection.recv(65536)
    # Who went away is not waited for: nobody watches the journal any more.
    until(lambda: watching(daemon) == before)


@pytest.mark.parametrize("by", ["local", None])
def test_the_command_prints_them(kurmad, by):
    daemon = kurmad()
    house = daemon.house
    since = str(last_behind_start(daemon))
    words = [*KURMA, "--dir", house.state, "--config", house.config_file]
    words += ["--host", by or f"unix:{daemon.socket}", "events", "--format", "json"]
    with subprocess.Popen([*words, "--since", since], stdout=subprocess.PIPE, text=True) as following:
        run = house.launch("echo ready; until [ -e /dev/shm/go ]; do sleep 0.02; done; exit 5")
        run.wait_output("ready")
        # A follower that comes late is told of the last of two states: it has seen that the pod runs by then.
        while (event := json.loads(following.stdout.readline()))["kind"] != "running":
            assert event["id"] == run.uuid
        assert house.enter(run.uuid, "touch", "/dev/shm/go")[0] == 0
        while (event := json.loads(following.stdout.readline()))["subject"] == "app":
            assert event["id"] == run.uuid
        assert (event["kind"], event["id"], event["detail"]) == ("stopped", run.uuid, {"exitCode": 5})
        assert run.wait() == 5
        following.send_signal(signal.SIGINT)
        assert following.wait(10) == 130
    done = subprocess.run([*words, "--no-follow", "--since", since], capture_output=True, text=True, timeout=30)
    kinds = [json.loads(line)["kind"] for line in done.stdout.splitlines()]
    of_apps = [json.loads(line)["kind"] for line in done.stdout.splitlines() if '"app"' in line]
    assert (of_apps, done.stderr) == (["created", "started", "stopped"], "")
    assert [kind for kind in kinds if kind not in ("created", "started")] == [
        *("prepared", "starting", "running", "stopped", "stopped"),
    ]


def test_the_journal_is_not_what_a_pod_fails_of(make_house):
    """Something else lies in its place."""
    house = make_house()
    place = house.client.here.journal.directory
    os.rename(place, f"{place}.aside") if os.path.exists(place) else None
    try:
        with open(place, "w"):
            pass
        record, _ = house.run("exit 4")
        assert record.exit_code == 4
    finally:
        os.unlink(place)
        if os.path.exists(f"{place}.aside"):
            os.rename(f"{place}.aside", place)
