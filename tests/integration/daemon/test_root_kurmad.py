"""kurmad: pods made through it are its own, and outlive whoever asked for them."""

import json
import os
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kurma_core.client.remote.http import Connection
from kurma_core.errors import ConfigError, HostError, PodNotFoundError
from kurma_core.models.streams import Stdio
from tests.kit.client import open_client

pytestmark = pytest.mark.root


@pytest.fixture
def null():
    fd = os.open("/dev/null", os.O_RDWR)
    yield Stdio(fd, fd, fd)
    os.close(fd)


def test_a_pod_in_the_foreground_belongs_to_the_daemon(kurmad, ask, null):
    daemon = kurmad()
    client, lines, seen = ask(daemon), [], []
    assert client.remote

    def prepared(record):
        seen.append(record)

    request = daemon.house.request("echo hello; echo oops >&2; exit 3")
    record = client.run(request, null, lines.append, prepared=prepared)
    assert sorted((one.stream, one.text) for one in lines) == [("stderr", b"oops"), ("stdout", b"hello")]
    assert (record.state, record.exit_code) == ("stopped", 3)
    assert [one.state for one in seen] == ["prepared"]
    assert client.pod(record.uuid) == daemon.house.client.pod(record.uuid)
    client.rm(record.uuid)
    with pytest.raises(PodNotFoundError):
        client.pod(record.uuid)


def test_a_started_pod_runs_on_when_the_daemon_ends(kurmad, ask):
    daemon = kurmad()
    record = ask(daemon).prepare(daemon.house.request("while :; do sleep 0.1; done"))
    connection = Connection.open(daemon.socket)
    answer = connection.request("POST", f"/v1/pods/{record.uuid}/start", b"")
    assert answer.status == 200
    started = json.loads(answer.read())
    connection.close()
    assert (started["state"], started["owner"]) == ("running", daemon.process.pid)
    assert daemon.end() == 0
    assert not os.path.exists(daemon.socket)
    assert daemon.house.client.pod(record.uuid).state == "running"


@pytest.mark.full
def test_ten_that_start_at_once_while_everybody_looks(kurmad, ask):
    """Looking at a pod that is being set up is in nobody's way (v1 closes no cgroup that has others below)."""
    daemon = kurmad()
    house, over = daemon.house, threading.Event()

    def look():
        here, there = house.connect("local"), ask(daemon)
        with here:
            while not over.is_set():
                for client in (here, there):
                    for record in client.pods():
                        list(client.logs(record.uuid))

    def start(uuid):
        with Connection.open(daemon.socket) as connection:
            answer = connection.request("POST", f"/v1/pods/{uuid}/start", b"")
            return answer.status, answer.read()

    uuids = [house.client.prepare(house.request("echo up; sleep 1000")).uuid for _ in range(10)]
    with ThreadPoolExecutor(12) as threads:
        looking = [threads.submit(look) for _ in range(2)]
        try:
            answers = list(threads.map(start, uuids, timeout=60))
        finally:
            over.set()
        for one in looking:
            one.result(30)
    assert [text for status, text in answers if status != 200] == []
    assert {record.uuid: record.state for record in house.client.pods()} == dict.fromkeys(uuids, "running")


def test_there_is_one_daemon_for_a_state_directory(kurmad):
    daemon = kurmad()
    second = subprocess.run(daemon.command, capture_output=True, text=True, timeout=20)
    assert (second.returncode, second.stdout) == (125, "")
    assert second.stderr.splitlines() == [f"kurma: a kurmad serves {daemon.house.state} already"]
    assert daemon.process.poll() is None
    assert os.path.exists(daemon.socket)


def test_a_configuration_that_has_become_wrong_keeps_nobody_from_the_daemon(kurmad, tmp_path):
    daemon = kurmad()
    house = daemon.house
    pod = house.client.prepare(house.request("true"))
    file = Path(house.config_file)
    right = file.read_text()

    def ask(text, **settings):
        file.write_text(text)
        notes = []
        with open_client(str(file), note=notes.append, **settings) as client:
            with pytest.raises(ConfigError, match=r"unknown key|not JSON"):
                client.here.registry.listing(True)
            return [record.uuid for record in client.pods()], notes

    place, odd = f'{{"state_dir": "{house.state}"', '"rendrer": "overlay"}'
    told = "; kurmad goes on with the configuration that it has read before"
    for text, settings in (
        (f"{place}, {odd}", {}),
        (f"{{{odd}", {"state_dir": house.state}),
        ('{"state_dir": [', {"state_dir": house.state}),
        ('{"state_dir": [', {"host": f"unix:{daemon.socket}", "state_dir": house.state}),
    ):
        uuids, (note,) = ask(text, **settings)
        assert uuids == [pod.uuid]
        assert note.startswith(f"{file}: ")
        assert note.endswith(told)
    file.write_text(f"{{{odd}")
    with open_client(str(file), state_dir=house.state, note=lambda text: None) as client:
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        assert client.start(pod.uuid, Stdio(null, null, null), lambda text: None).exit_code == 0
        os.close(null)
    for text, settings in (
        (f"{place}, {odd}", {"host": "local"}),
        # Nobody knows which daemon is meant.
        (f'{place}, "log": [', {}),
        (f'{{"state_dir": "{tmp_path}", {odd}', {}),
    ):
        with pytest.raises(ConfigError):
            ask(text, **settings)
    # A broken file that is not kurmad's own is the caller's mistake.
    file.write_text(right)
    file = tmp_path / "another.json"
    with pytest.raises(ConfigError):
        ask(f"{{{odd}", state_dir=house.state)


def test_a_daemon_that_was_killed_is_followed_by_another(kurmad, ask):
    daemon = kurmad()
    daemon.end(signal.SIGKILL)
    assert os.path.exists(daemon.socket)
    with pytest.raises(HostError, match="cannot reach the daemon"):
        ask(daemon)
    assert ask(kurmad(house=daemon.house)).remote
