"""`kurma list` by way of a daemon that keeps its answers, and without one: what other processes do to pods is seen
at once, in every form."""

import json
import os
import signal
import subprocess
import sys

import pytest

from kurma_core.client.remote.http import Connection
from kurma_core.daemon.pods.listing import RECORDS, Listing
from kurma_core.pods.daemon_interface import DaemonInterface
from tests.cli.test_cli_imports import HEAVY, NOT_FOR_LISTS
from tests.cli.test_cli_imports import PROGRAM as LISTER
from tests.integration.daemon.test_root_metrics import figures
from tests.kit.waiting import alive, until

pytestmark = pytest.mark.root


class Watcher:
    """A daemon and what it tells, beside a client that has no part in it."""

    def __init__(self, daemon, client):
        self.daemon = daemon
        self.there = client
        self.here = daemon.house.connect(host="local")

    def settle(self):
        """All that is told is kept."""
        self.told()

    def told(self):
        """Pods and their states, in every form the same, and the same as without the daemon."""
        table = self.there.summaries()
        assert self.there.pods_json() == [record.to_json() for record in self.here.pods()]
        assert table == self.here.summaries()
        states = [one.state for one in table]
        counts = {
            dict(labels)["state"]: n for (name, labels), n in figures(self.daemon).items() if name == "kurma_pods"
        }
        assert {state: n for state, n in counts.items() if n} == {one: states.count(one) for one in set(states)}
        return {one.name: one.state for one in table}

    def reads(self):
        """How often the daemon reads something while it lists all pods."""

        def count():
            with open(f"/proc/{self.daemon.process.pid}/io") as file:
                return next(int(line.split()[1]) for line in file if line.startswith("syscr"))

        with Connection.open(self.daemon.socket) as connection:
            found = []
            for path in ("/v1/listing", "/v1/pods"):
                connection.request("GET", path).read()
                before = count()
                answer = connection.request("GET", path)
                assert answer.status == 200
                found.append(count() - before)
                answer.read()
        return max(found)


@pytest.fixture
def watcher(kurmad, ask):
    daemon = kurmad()
    made = Watcher(daemon, ask(daemon))
    yield made
    made.here.close()


def listed_here(house):
    """A table without the daemon, and the modules that it takes."""
    which = ["--dir", house.state, "--config", house.config_file, "--host", "local"]
    command = [sys.executable, "-c", LISTER, *which, "list", "--no-legend"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.splitlines(), set(done.stderr.split("MODULES ")[1].split())


def test_what_others_do_to_pods_is_seen_at_once(watcher):
    house, there, here = watcher.daemon.house, watcher.there, watcher.here
    apps = {"stays": "sleep 1000", "goes": "until [ -e /go ]; do sleep 0.05; done; exit 7"}
    mine = there.launch(there.prepare(house.request(apps, name="mine")).uuid)
    for name in ("first", "second", "third"):
        here.prepare(house.request("sleep 1000", name=name))
    theirs = house.launch("sleep 1000", name="theirs")
    watcher.settle()
    assert watcher.told() == {
        **dict.fromkeys(("first", "second", "third"), "prepared"),
        **dict.fromkeys(("mine", "theirs"), "running"),
    }
    # None of their files is read again; and without the daemon, each is read by as little as may be.
    assert watcher.reads() <= 2
    lines, modules = listed_here(house)
    assert sorted(line.split()[1] for line in lines) == ["first", "mine", "second", "theirs", "third"]
    assert not (HEAVY - {"yaml"} | NOT_FOR_LISTS) & modules  # the configuration is YAML

    # An app that ends: its stager alone writes that down.
    assert house.enter(mine.uuid, "touch", "/go", app="goes")[0] == 0
    until(lambda: here.pod("mine").apps[1].exit_code == 7, "its end")
    (found,) = [one["apps"] for one in there.pods_json() if one["name"] == "mine"]
    assert (found["goes"]["exitCode"], found["stays"]["exited"]) == (7, False)

    here.rm("first")
    assert "first" not in watcher.told()
    watcher.settle()
    # Another pod of the same UUID.
    second = here.pod("second").uuid
    here.rm("second")
    here.prepare(house.request("sleep 1000", name="anew", uuid=second))
    assert [one.name for one in there.summaries() if one.uuid == second] == ["anew"]
    assert {"anew": "prepared"}.items() <= watcher.told().items()

    here.stop("mine", force=True)
    assert watcher.told()["mine"] == "errored"
    here.stop("theirs", force=True)
    theirs.wait()
    watcher.settle()
    assert watcher.told() == {"mine": "errored", "theirs": "errored", "third": "prepared", "anew": "prepared"}
    assert watcher.reads() <= 2
    for name in ("mine", "theirs", "third", "anew"):
        here.rm(name)
    assert watcher.told() == {}


@pytest.mark.full
def test_owners_and_stagers_that_are_killed_are_missed_at_once(watcher):
    """No file changes by that."""
    house, there, here = watcher.daemon.house, watcher.there, watcher.here
    run = house.launch("sleep 1000", name="theirs")
    record = here.pod("theirs")
    assert record.owner == run.process.pid
    watcher.settle()
    assert watcher.told() == {"theirs": "running"}
    os.kill(record.stager_pid, signal.SIGSTOP)  # else its end is seen before it is killed
    run.kill()
    os.kill(record.stager_pid, signal.SIGKILL)
    until(lambda: not alive(record.stager_pid), "its end")
    # The first who looks takes it down; or the daemon has, that heard of it.
    until(lambda: there.summaries()[0].state == "errored", "its end")
    assert watcher.told() == {"theirs": "errored"}
    assert there.pods_json()[0]["owner"] is None
    here.rm("theirs")
    assert there.pods_json() == []


def test_answers_of_a_store_are_no_more_than_its_pods(watcher):
    """In the daemon's own terms, on pods that ran."""
    house, here = watcher.daemon.house, watcher.here
    listing = Listing(DaemonInterface(here.here.pods))
    with house.running(name="up") as up:
        other = here.prepare(house.request("true", name="other"))
        told = json.loads(listing.json(RECORDS))
        assert [one["state"] for one in told] == ["running", "prepared"]
        assert set(listing._kept) == {up.uuid, other.uuid}
        assert sum(len(text) for one in listing._kept.values() for text in one.answers.values()) < 10_000
        here.rm("other")
        listing.json(RECORDS)
        assert set(listing._kept) == {up.uuid}
        # A stager that keeps no such file is asked each time.
        os.unlink(f"{house.path(up.uuid)}/pod/status.json")
        listing.json(RECORDS)
        assert RECORDS not in getattr(listing._kept.get(up.uuid), "answers", {})
    here.rm("up")
    listing.json(RECORDS)
    assert listing._kept == {}
