"""Services of a kurmad in a process of its own (C1): its client, what is told of them, kurmad's start and end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.daemon.test_root_initial import configure, hang_up
from tests.integration.daemon.test_root_metrics import get
from tests.integration.pods.test_pods_crash import assert_nothing_left
from tests.kit.installed import unpack
from tests.kit.waiting import until

pytestmark = pytest.mark.root

KEEPER = """
from kurma_core.api.pods import PodRequest
from kurma_core.appc.template import PodTemplate
from kurma_core.cancellation import shielded
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, Option

class Keeper:
    def __init__(self, context):
        self.pod, self.trouble = context.config["pod"], context.config["trouble"]
        self.farewell = context.config["farewell"]

    @hookimpl
    def serve(self, host):
        if self.trouble == "slow":
            list(host.client.events(follow=True))
        if self.trouble:
            raise OSError(self.trouble)
        events = host.client.events(follow=True)
        if not host.client.summaries():
            record = host.client.prepare(PodRequest(PodTemplate.parse(self.pod), name="kept"), start=True)
            host.log.info("made pod %s", record.name)
        record = host.client.pods()[0]
        host.ready()
        try:
            self.watch(host, events, record)
        finally:
            if self.farewell:
                with shielded(), open(self.farewell) as word:
                    word.read()
                    request = PodRequest(PodTemplate.parse(self.pod), name="farewell")
                    host.client.prepare(request, start=True)

    def watch(self, host, events, record):
        for event in events:
            host.log.info("saw %s", event.kind)
            if event.kind == "stopped":
                raise OSError(f"the pod ended with {host.client.wait(record.uuid).apps[0].exit_code}")

@hookimpl
def kurma_service():
    trouble = Option("trouble", str, "", "to raise")
    farewell = Option("farewell", str, "", "a FIFO: at its end it waits for a writer, and runs another pod")
    return Driver(Keeper, options=(Option("pod", dict, {}, "to run"), trouble, farewell))
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin, where programs that the test starts find it."""
    site = tmp_path / "site"
    unpack(site, "keeper", "[kurma.services]\nkeeper = kurma_test_keeper", {"kurma_test_keeper": KEEPER})
    monkeypatch.setenv("PYTHONPATH", str(site))


def section(house, **more):
    pod = house.template({"main": "trap 'exit 7' TERM; while :; do sleep 0.02; done"})
    config = {"pod": pod, "trouble": more.pop("trouble", ""), "farewell": more.pop("farewell", "")}
    return {"plugins": {"services": {"keeper": {"config": config, **more}}}}


@pytest.fixture
def house(make_house, tmp_path, installed, session_state):
    """A house without pods, whose configuration has the service."""
    made = make_house()
    configure(made, **section(made))
    return made


def state(client):
    """What kurmad tells of the service: state and reason."""
    (service,) = client.info().daemon.services
    return service.state, service.reason


def test_its_pods_are_kurmads(kurmad, ask, house):
    daemon = kurmad(house=house)
    client = ask(daemon)
    until(lambda: state(client) == ("running", ""), daemon.log.read_text)
    (pod,) = client.pods()
    assert (pod.name, pod.state) == ("kept", "running")
    assert house.client.here.services.store.directory(pod.uuid).owned()
    log = daemon.log.read_text()
    assert "service keeper: made pod kept" in log
    assert "service keeper: running" in log
    (row,) = [row for row in client.plugins() if (row.kind, row.name) == ("services", "keeper")]
    assert (row.name, row.distribution, row.status, row.reason) == ("keeper", "keeper", "running", "")
    client.reload()
    until(lambda: "service keeper: saw reloaded" in daemon.log.read_text(), "it is told of each reload")

    assert daemon.end() == 0
    house.reopen()
    assert house.client.pod(pod.uuid).state == "running", "it outlives the service, and kurmad"

    again_served = kurmad(house=house)
    client = ask(again_served)
    until(lambda: state(client) == ("running", ""))
    (again,) = client.pods()
    assert again.uuid == pod.uuid, "the service began once the pod was recovered"
    client.stop(pod.uuid)
    until(lambda: state(client)[0] == "waiting")
    assert state(client)[1].endswith("failed in serve: OSError: the pod ended with 7; started again after 1 s")
    hang_up(again_served)
    until(lambda: client.info().daemon.services == (), "the configuration has it no more")
    client.rm(pod.uuid)
    assert_nothing_left(pod.uuid)


def test_they_are_stopped_first(kurmad, ask, house, tmp_path):
    """C1: while a service stops, kurmad still answers requests, and starts pods for it."""
    fifo = tmp_path / "farewell"
    os.mkfifo(fifo)
    configure(house, **section(house, farewell=str(fifo)))
    daemon = kurmad(house=house)
    client = ask(daemon)
    until(lambda: state(client) == ("running", ""), daemon.log.read_text)
    daemon.process.terminate()
    with fifo.open("w"):  # the service is being stopped
        assert get(daemon, "/healthz")[0] == 200
    assert daemon.process.wait(20) == 0
    house.reopen()
    pods = {pod.name: pod.state for pod in house.client.pods()}
    assert pods == {"kept": "running", "farewell": "running"}, daemon.log.read_text()
    for name in pods:
        house.client.rm(name, force=True)


def test_one_that_fails_is_told_everywhere_and_the_rest_works(kurmad, ask, house):
    configure(house, **section(house, trouble="no luck"))
    daemon = kurmad(house=house)
    client = ask(daemon)
    until(lambda: state(client)[0] == "waiting", lambda: str(state(client)))
    why = "service plugin 'keeper' of keeper 1.0 failed in serve: OSError: no luck; started again after"
    assert state(client)[1].startswith(why)
    (row,) = [row for row in client.plugins() if (row.kind, row.name) == ("services", "keeper")]
    assert row.status in ("waiting", "starting")
    status, _, body = get(daemon, "/healthz")
    health = json.loads(body)
    assert (status, health["status"], health["problems"]) == (200, "ok", [])
    assert [one["name"] for one in health["services"]] == ["keeper"]
    assert f"warning: service keeper: waiting: {why}" in daemon.log.read_text()
    assert client.pods() == []


def test_one_that_is_required_keeps_kurmad_from_starting(house):
    configure(house, **section(house, trouble="no luck", required=True))
    command = [sys.executable, "-m", "kurma_core.cli.main", "--dir", house.state, "--config", house.config_file]
    done = subprocess.run([*command, "daemon", "run"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 125
    assert "kurma: service 'keeper' is required and does not run: service plugin" in done.stderr
    assert "OSError: no luck" in done.stderr.splitlines()[-1]


def test_the_wait_for_a_required_service_heeds_signals(house):
    """A reload, and the end."""
    configure(house, **section(house, trouble="slow", required=True))
    command = [sys.executable, "-m", "kurma_core.cli.main", "--dir", house.state, "--config", house.config_file]
    log = Path(house.state).parent / "waiting.log"
    with log.open("wb") as stream:
        daemon = subprocess.Popen([*command, "daemon", "run"], stderr=stream)
    until(lambda: "serves" in log.read_text(), log.read_text)
    assert "nothing that takes effect is new" in subprocess.check_output([*command, "daemon", "reload"], text=True)
    daemon.terminate()
    assert daemon.wait() == 0, log.read_text()
    assert "is required and does not run" not in log.read_text()


def test_one_that_is_required_and_ends_is_a_problem_of_kurmad(kurmad, house):
    configure(house, **section(house, required=True))
    daemon = kurmad(house=house)
    until(lambda: get(daemon, "/healthz")[0] == 200, daemon.log.read_text)
    (pod,) = house.client.pods()
    house.client.stop(pod.uuid)
    until(lambda: get(daemon, "/healthz")[0] == 503)
    (problem,) = json.loads(get(daemon, "/healthz")[2])["problems"]
    assert problem.startswith("service 'keeper' is required and waiting: service plugin")
    assert "OSError: the pod ended with 7" in problem
    daemon.end()
    house.reopen()
    house.client.rm(pod.uuid)


STUBBORN = """
import sys
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver

class Stubborn:
    @hookimpl
    def serve(self, host):
        host.ready()
        while True:
            try:
                print("noise of a service", file=sys.stderr)
                print("noise of a service")
            except BaseException:
                pass

@hookimpl
def kurma_service():
    return Driver(lambda context: Stubborn())
"""


@pytest.mark.full
def test_kurmad_ends_without_one_that_prints_on_and_heeds_nothing(kurmad, ask, house, tmp_path):
    (tmp_path / "site/kurma_test_keeper.py").write_text(STUBBORN)
    configure(house, plugins={"services": {"keeper": {}}})
    daemon = kurmad(house=house)
    until(lambda: state(ask(daemon)) == ("running", ""), "the service")
    assert daemon.end() == 0
    log = daemon.log.read_text()
    assert log.count("service keeper: failed: it does not end") == 1
    assert "Fatal Python error" not in log
