"""kurmad is killed (SIGKILL) at every step of creating, starting, stopping and removing a pod, and another one
comes each time. Beside that, a pod goes on as if nothing had been."""

import pytest

from kurma_core.errors import KurmaError
from kurma_core.models.pod import ENDED_STATES
from kurma_core.pods.run.launch import STEPS
from tests.integration.daemon.test_root_adoption import SIGNS, TICKS, descriptors, owner, started
from tests.integration.daemon.test_root_prestarted import begin, full, left, waiting
from tests.integration.pods.test_pods_crash import assert_nothing_left
from tests.kit.host import links
from tests.kit.waiting import alive, until

pytestmark = [pytest.mark.root, pytest.mark.full]

NAMES = [step.name for step in STEPS]
_STORE, _OWNED = "kurma_core.pods.record.pod_store:PodStore", "kurma_core.pods.run.owner:OwnedPod"
_DIRECTORY, _ACI = "kurma_core.pods.record.pod_directory:PodDirectory", "kurma_core.staging.aci_stager:AciStager"
_ENDS = "trap 'echo bye; exit 4' TERM; echo up; while :; do sleep 0.02; done"
_NET = "default"

POINTS = {
    "create": [
        ("entering", f"{_STORE}.publish"),
        ("leaving", f"{_STORE}._reserve"),
        ("entering", f"{_DIRECTORY}.write_pod"),
        ("leaving", f"{_DIRECTORY}.write_pod"),
        ("leaving", f"{_DIRECTORY}.write_state#2"),
    ],
    "start": [
        ("entering", f"{_OWNED}.claim"),
        *(("before", name) for name in NAMES),
        ("leaving", f"{_ACI}.start"),
        ("after", NAMES[-1]),
        ("leaving", "kurma_core.staging.stager_process:StagerProcess.wait_running"),
        ("leaving", f"{_OWNED}.start"),
        ("leaving", "kurma_core.daemon.pods.owned:OwnedPods.take"),
    ],
    "stop": [
        ("entering", f"{_ACI}.stop"),
        ("leaving", f"{_ACI}.stop"),
        ("entering", f"{_OWNED}.finish"),
        *(("undoing", name) for name in reversed(NAMES)),
        ("undone", NAMES[0]),
        ("leaving", f"{_OWNED}.finish"),
    ],
    "remove": [
        ("entering", "kurma_core.pods.change.remove:PodRemover._make_removable"),
        ("entering", f"{_STORE}.delete"),
        ("leaving", "kurma_core.linux.beneath:remove_tree"),
        ("leaving", f"{_STORE}.delete"),
    ],
}
#: Of a pod that is made and started by one request, and takes a stager that waits.
_PRESTARTED = "kurma_core.pods.run.prestarted:PrestartedPod"
POINTS["take"] = [
    ("entering", f"{_PRESTARTED}.become"),
    ("leaving", f"{_PRESTARTED}.become"),
    ("leaving", f"{_DIRECTORY}.write_pod"),
    ("entering", f"{_OWNED}.claim"),
    ("leaving", f"{_OWNED}.claim"),
    ("before", "network-namespace"),
    ("before", "networks"),
    ("entering", "kurma_core.staging.prestarted:PrestartedStager.go"),
    ("leaving", f"{_ACI}.hand_over"),
    ("after", "stager"),
    ("leaving", "kurma_core.daemon.pods.owned:OwnedPods.take"),
]
FAULTS = [point for points in POINTS.values() for point in points]


class Host:
    """A state directory, its daemon of the moment, and a pod that has nothing to do with what is killed."""

    def __init__(self, house, make, ask):
        self.house = house
        self._make = make
        self._ask = ask
        self.daemon = make(house=house, faults=FAULTS)
        self.neighbour = started(self.daemon, {"main": f"{TICKS}"}, net=_NET)
        self.record = house.client.pod(self.neighbour)
        self._signature = house.enter(self.neighbour, "sh", "-c", SIGNS)
        assert self._signature[0] == 0
        self.descriptors = descriptors(self.daemon.process.pid)

    def dies(self, fault, action):
        """At that point, while it does that; and a new one comes. :returns: what the action has raised."""
        raised = None
        with self.daemon.armed(fault):
            try:
                action(self._ask(self.daemon))
            except KurmaError as error:
                raised = error
        self.daemon = self._make(house=self.house, faults=FAULTS)
        self.recovered()
        return raised

    def recovered(self):
        client = self._ask(self.daemon)
        until(lambda: client.info().daemon.recovered, "the recovery")
        client.close()
        assert owner(self.house, self.neighbour) == self.daemon.process.pid
        now = self.house.client.pod(self.neighbour)
        assert (now.state, now.stager_pid) == ("running", self.record.stager_pid)
        assert now.apps[0].pid == self.record.apps[0].pid
        assert self.house.enter(self.neighbour, "sh", "-c", SIGNS) == self._signature, "the same key"

    def is_whole(self, uuids, before):
        """Of all that there was, nothing is left but the neighbour, whose every word is there."""
        assert self.house.uuids() == [self.neighbour]
        assert self.house.names() == {self.record.name}
        for uuid in uuids:
            assert_nothing_left(uuid)
        until(
            lambda: descriptors(self.daemon.process.pid) <= self.descriptors + 1,
            "descriptors being let go of",
        )
        record = self._ask(self.daemon).stop(self.neighbour)
        lines = self.house.log(record).split()
        assert lines == [str(number) for number in range(1, len(lines) + 1)], "nothing is lost, nothing twice"
        self.house.client.rm(self.neighbour)
        assert_nothing_left(self.neighbour)
        self.house.client.network_rm(_NET)
        assert links() <= before


@pytest.fixture
def host(kurmad, make_house, ask):
    # No pods to come: it is the pods that are asked for whose steps are struck.
    return Host(make_house({"stop_timeout": 2, "daemon": {"prestarted_stagers": 0}}), kurmad, ask)


@pytest.fixture
def before():
    return links()


def test_create(before, host):
    house = host.house
    uuids = []
    for fault in POINTS["create"]:
        request = house.request(_ENDS, name="new", net=_NET)
        assert host.dies(fault, lambda client, request=request: client.prepare(request)) is not None
        made = [uuid for uuid in house.uuids() if uuid != host.neighbour]
        if made:
            # It was wholly there: it can be used.
            assert house.state_of(made[0])["state"] == "prepared", fault
            assert fault == POINTS["create"][-1]
            house.client.rm("new")
        house.client.gc(grace=0)
        assert house.kept() == sorted(["names", host.neighbour]), fault
        uuids += made
    assert uuids
    host.is_whole(uuids, before)


def test_a_start_that_takes_what_waits(before, kurmad, make_house, ask):
    """Each time one is left half-way from waiting to a pod: that runs, and is the next daemon's, or is undone."""
    house = make_house({"stop_timeout": 2, "daemon": {"prestarted_stagers": 1}})
    host = Host(house, kurmad, ask)
    uuids, states = [], {}
    for fault in POINTS["take"]:
        begin(host.daemon, "true", ephemeral=True)
        (uuid,) = full(house, 1)
        uuids.append(uuid)
        # The other is wholly gone: who is killed while it frees a name leaves that to a later sweep.
        until(lambda: house.names() == {host.record.name}, "the other's going")
        request = house.request(_ENDS, net=_NET)
        host.dies(fault, lambda client, request=request: client.prepare(request, start=True))
        until(lambda uuid=uuid: uuid not in waiting(house), f"its going, {fault}")
        state = house.state_of(uuid) if uuid in house.uuids() else {"state": "undone"}
        states[fault] = state["state"]
        if state["state"] == "running":
            assert owner(house, uuid) == host.daemon.process.pid
            until(lambda uuid=uuid: "up" in house.log(house.client.pod(uuid)), "its trap")
            record = house.client.stop(uuid)
            assert (record.state, record.exit_code, house.log(record)) == ("stopped", 4, "up\nbye\n")
        if state["state"] != "undone":
            until(lambda uuid=uuid: house.state_of(uuid)["steps"] == [], f"its teardown, {fault}")
            house.client.rm(uuid)
        until(lambda uuid=uuid: left(house, uuid) == [], f"what is left to go, {fault}")
        assert_nothing_left(uuid)
        assert waiting(house) == {}
    found = list(states.values())
    # One that is prepared to be started at once is not a pod before its start is on record.
    assert found == ["undone"] * 4 + ["errored"] * 5 + ["running"] * 2, states
    host.is_whole(uuids, before)


def test_start(before, host):
    house = host.house
    uuids, states = [], {}
    for fault in POINTS["start"]:
        uuid = house.client.prepare(house.request(_ENDS, net=_NET)).uuid
        uuids.append(uuid)
        host.dies(fault, lambda client, uuid=uuid: start(host.daemon, uuid))
        state = house.state_of(uuid)
        states[fault] = state["state"]
        if state["state"] == "running":
            assert owner(house, uuid) == host.daemon.process.pid
            until(lambda uuid=uuid: "up" in house.log(house.client.pod(uuid)), "its trap")
            assert house.enter(uuid, "echo", "well")[:2] == (0, "well\n")
            record = house.client.stop(uuid)
            assert (record.state, record.exit_code, house.log(record)) == ("stopped", 4, "up\nbye\n")
        elif state["state"] == "errored":
            assert state["reason"] == "its owner died while it started", fault
            assert_nothing_left(uuid)
        # What was undone can be started again.
        again = start(host.daemon, uuid)
        assert again == 200, (fault, states[fault])
        house.client.rm(uuid, force=True)
    assert states.pop(POINTS["start"][0]) == "prepared"
    assert set(list(states.values())[:8]) == {"errored"}
    assert set(list(states.values())[-3:]) == {"running"}, states
    host.is_whole(uuids, before)


def start(daemon, uuid):
    from kurma_core.client.remote.http import Connection

    connection = Connection.open(daemon.socket)
    try:
        return connection.request("POST", f"/v1/pods/{uuid}/start", b"").status
    finally:
        connection.close()


def test_stop(before, host):
    house = host.house
    uuids = []
    for fault in POINTS["stop"]:
        uuid = started(host.daemon, _ENDS, net=_NET)
        uuids.append(uuid)
        until(lambda uuid=uuid: "up" in house.log(house.client.pod(uuid)), "its trap")
        host.dies(fault, lambda client, uuid=uuid: client.stop(uuid))
        if fault == POINTS["stop"][0]:
            # Nobody has told it yet.
            assert owner(house, uuid) == host.daemon.process.pid
            house.client.stop(uuid)
        until(lambda uuid=uuid: house.state_of(uuid)["state"] in ENDED_STATES, f"its end, {fault}")
        record = house.client.pod(uuid)
        assert (record.state, record.exit_code, house.log(record)) == ("stopped", 4, "up\nbye\n"), fault
        until(lambda uuid=uuid: house.state_of(uuid)["steps"] == [], f"its teardown, {fault}")
        assert_nothing_left(uuid)
        house.client.rm(uuid)
    host.is_whole(uuids, before)


def test_remove(before, host):
    house = host.house
    uuids = []
    for fault in POINTS["remove"]:
        uuid = started(host.daemon, _ENDS, net=_NET, name="old")
        uuids.append(uuid)
        stager = house.state_of(uuid)["stager"]["pid"]
        until(lambda uuid=uuid: "up" in house.log(house.client.pod(uuid)), "its trap")
        house.client.stop(uuid)
        host.dies(fault, lambda client, uuid=uuid: client.rm(uuid))
        assert not alive(stager)
        if uuid in house.uuids():
            assert house.client.pod("old").state == "stopped", fault
            house.client.rm("old")
        house.client.gc(grace=0)
        assert house.kept() == sorted(["names", host.neighbour]), fault
        assert_nothing_left(uuid)
    host.is_whole(uuids, before)
