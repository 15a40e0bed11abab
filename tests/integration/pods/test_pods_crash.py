"""The foreground command is killed (SIGKILL) at every point of a pod's life; any other command makes it clean."""

import contextlib
import os
import signal
import time

import pytest

from kurma_core.pods.run.launch import STEPS
from tests.kit.host import links
from tests.kit.waiting import alive, until

pytestmark = [pytest.mark.root, pytest.mark.full]

NAMES = [step.name for step in STEPS]
LAST = ("after", NAMES[-1])
CHANGE = "kurma_core.pods.record.pod_directory:PodDirectory.change_state"


def left_of(uuid):
    """What there is of a pod outside of its directory."""
    found = [path for path in (f"/run/netns/kurma-{uuid}",) if os.path.exists(path)]
    for base, directories, _ in os.walk("/sys/fs/cgroup"):
        found += [f"{base}/{name}" for name in directories if name == uuid]
        if base.count("/") > 5:
            directories.clear()
    return found


def assert_nothing_left(uuid):
    """Besides that: no mount, no process, no pinned namespace."""
    assert left_of(uuid) == []
    with open("/proc/self/mountinfo") as file:
        assert uuid not in file.read()
    for place in ("/run/netns", "/run/kurma"):
        for _, directories, files in os.walk(place):
            assert not [name for name in (*directories, *files) if uuid in name]
    # What was killed may still be on its way out.
    until(lambda: not processes_of(uuid), "the end of its processes")


def processes_of(uuid):
    """PIDs of the living processes that are in a cgroup of that pod, or were."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/cgroup") as file:
            if uuid in file.read() and alive(pid):
                found.append(int(pid))
    return found


@contextlib.contextmanager
def beside(house, **options):
    """A pod that has nothing to do with it: it goes on as if nothing had been, and is as it was."""
    with house.running("while :; do echo tick; sleep 0.05; done", **options) as pod:
        until(lambda: "tick" in house.log(pod), "the neighbour")
        before = seen_of(house, pod)
        yield pod
        assert seen_of(house, pod) == before
        size = len(house.log(pod))
        until(lambda: len(house.log(pod)) > size, "the neighbour's next word")


def seen_of(house, pod):
    """What of a running pod stays the same as long as it runs, from outside and from inside."""
    record = house.client.pod(pod.uuid)
    (app,) = record.apps
    state = house.state_of(pod)
    script = "hostname; cat /etc/hosts; ip addr | grep 'inet '; readlink /proc/self/ns/net"
    inside = house.enter(pod.uuid, "sh", "-c", script)
    assert inside[0] == 0, inside
    return record.state, record.stager_pid, app.pid, state["steps"], state.get("attachments"), inside


def assert_dead(run):
    assert run.wait() == -signal.SIGKILL, run.errors


# After the last one, the pod may have come up by itself.
@pytest.mark.parametrize(
    ("when", "name"), [(when, name) for when in ("before", "after") for name in NAMES if (when, name) != LAST]
)
def test_killed_at_each_step_up(house, when, name):
    with beside(house) as neighbour:
        run = house.launch("sleep 1000", faults=[[when, name]], wait=None)
        uuid = run.uuid
        assert_dead(run)
        assert house.state_of(uuid)["state"] == "starting"
        said = house.client.gc(grace=1000).lines
        assert said == (f"pod {uuid}: taken down",)
        assert_nothing_left(uuid)
        record = house.client.pod(uuid)
        assert (record.state, record.reason) == ("errored", "its owner died while it started")
        assert house.state_of(uuid)["steps"] == []
        assert [one.name for one in house.client.gc(grace=0).removed] == [uuid]
        assert house.uuids() == [neighbour.uuid]


@pytest.mark.parametrize(
    "fault",
    [["after", "networks"], ["leaving", "kurma_core.staging.aci_stager:AciStager.start"]],
    ids=["before", "stager"],
)
def test_killed_on_a_real_network(house, fault):
    """The address and the interface of a half-made pod are given back."""
    before = links()
    with beside(house, net="default") as neighbour:
        (own,) = [link for link in links() if link.startswith("kv")]
        run = house.launch("sleep 1000", net="default", faults=[fault], wait=None)
        uuid = run.uuid
        assert_dead(run)
        assert len([link for link in links() if link.startswith("kv")]) == 2
        records = {record.uuid: record.state for record in house.client.pods()}
        assert records == {neighbour.uuid: "running", uuid: "errored"}
        assert_nothing_left(uuid)
        assert [link for link in links() if link.startswith("kv")] == [own]
    house.client.network_rm("default")
    assert links() == before


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(["entering", "kurma_core.pods.run.launch:Launch.record"], id="stager-not-recorded"),
        pytest.param(["leaving", "kurma_core.staging.aci_stager:AciStager.start"], id="stager-started"),
    ],
)
def test_killed_around_the_stagers_start(house, fault):
    """A stager that nobody knows of is found by its cgroup."""
    run = house.launch("sleep 1000", faults=[fault], wait=None)
    uuid = run.uuid
    assert_dead(run)
    (record,) = house.client.pods()
    assert (record.uuid, record.state) == (uuid, "errored")
    assert left_of(uuid) == []


def test_killed_before_it_has_recorded_that_the_pod_runs(house):
    """The pod has come up, which the stager has told by closing descriptor 4: whoever comes by records that."""
    fault = ["leaving", "kurma_core.staging.stager_process:StagerProcess.wait_running"]
    run = house.launch("sleep 1000", faults=[fault], wait=None)
    assert_dead(run)
    assert house.state_of(run.uuid)["state"] == "starting"
    (record,) = house.client.pods()
    assert (record.uuid, record.state, record.apps[0].state) == (run.uuid, "running", "running")
    assert house.client.stop(run.uuid).state in ("stopped", "errored")
    assert_nothing_left(run.uuid)


def test_killed_before_it_has_recorded_that_the_pod_has_run(house):
    """It was over so soon that nothing but its end was to be recorded."""
    fault = ["entering", "kurma_core.staging.stager_process:StagerProcess.wait_running"]
    run = house.launch("echo seen; exit 3", net="default", faults=[fault], wait=None)
    assert run.wait() == -signal.SIGKILL
    until(lambda: not processes_of(run.uuid), "its end")
    assert house.state_of(run.uuid)["state"] == "starting"
    record = house.client.pod(run.uuid)
    assert (record.state, record.exit_code, record.reason) == ("stopped", 3, None)
    assert house.log(record) == "seen\n"
    assert_nothing_left(run.uuid)
    house.client.network_rm("default")


@pytest.mark.parametrize(
    "where",
    [
        "entering kurma_core.pods.record.pod_store:PodStore._reserve",
        "leaving kurma_core.pods.record.pod_store:PodStore._reserve",
        "entering kurma_core.pods.prepare.prepare_pod:reify",
        "entering kurma_core.pods.record.pod_directory:PodDirectory.write_pod",
        "leaving kurma_core.pods.record.pod_directory:PodDirectory.write_pod",
        "entering kurma_core.pods.record.pod_directory:PodDirectory.write_state#2",
    ],
)
def test_killed_while_it_is_prepared(house, where):
    run = house.launch("true", name="half", faults=[where.split()], wait=None)
    assert_dead(run)
    assert [record.state for record in house.client.pods()] == []
    house.client.gc(grace=0)
    assert house.kept() == ["names"]
    house.client.rm(house.client.prepare(house.request("true", name="half")).uuid)


def test_killed_before_its_directory_is_a_pod(house):
    run = house.launch(
        "true", faults=[["leaving", "kurma_core.pods.record.pod_directory:PodDirectory.try_own"]], wait=None
    )
    assert_dead(run)
    assert house.client.pods() == []
    house.client.gc(grace=0)
    assert house.kept() == ["names"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("when", ["undoing", "undone"])
def test_killed_at_each_step_down(house, when, name):
    with beside(house):
        run = house.launch("trap 'exit 7' TERM; echo up; while :; do sleep 0.02; done", faults=[[when, name]])
        run.wait_output("up")
        uuid = run.uuid
        run.signal(signal.SIGTERM)
        assert_dead(run)
        assert house.client.gc(grace=1000).lines == (f"pod {uuid}: taken down",)
        assert_nothing_left(uuid)
    record = house.client.pod(uuid)
    assert (record.state, record.exit_code, record.reason) == ("stopped", 7, None)
    assert house.state_of(uuid)["steps"] == []
    assert house.log(record) == "up\n"


def test_killed_before_the_end_is_recorded(house):
    run = house.launch("exit 7", faults=[["entering", "kurma_core.pods.run.owner:pod_record"]], wait=None)
    assert_dead(run)
    assert house.client.pod(run.uuid).exit_code == 7
    run = house.launch("exit 7", faults=[["leaving", "kurma_core.pods.run.owner:tear_down"]], wait=None)
    assert_dead(run)
    record = house.client.pod(run.uuid)
    assert (record.state, record.exit_code) == ("stopped", 7)


def test_a_running_pod_goes_on_without_its_owner(house):
    run = house.launch("trap 'echo asked; exit 3' TERM; echo up; while :; do sleep 0.05; echo tick; done")
    run.wait_output("tick")
    uuid = run.uuid
    assert house.client.pod(uuid).owner == run.process.pid
    run.kill()
    (record,) = house.client.pods()
    assert (record.state, record.owner) == ("running", None)
    assert alive(record.apps[0].pid)
    before = len(house.log(record))
    until(lambda: len(house.log(record)) > before, "more output")
    assert house.enter(uuid, "echo", "inside")[:2] == (0, "inside\n")
    assert house.client.gc(grace=0).left == (f"pod {uuid}: runs without an owner: left (kurma stop {uuid[:8]})",)
    record = house.client.stop(uuid)
    assert (record.state, record.exit_code) == ("stopped", 3)
    assert house.log(record).endswith("asked\n")
    assert left_of(uuid) == []


def test_it_ends_without_its_owner(house):
    """Nobody is there to see; what the stager wrote down is told."""
    run = house.launch("echo up; sleep 0.4; exit 9")
    run.wait_output("up")
    run.kill()
    record = house.client.wait(run.uuid)
    assert (record.state, record.exit_code) == ("stopped", 9)
    assert left_of(run.uuid) == []


def test_an_ephemeral_one_goes_with_its_end(house):
    run = house.launch("echo up; sleep 1000", ephemeral=True)
    run.wait_output("up")
    uuid = run.uuid
    run.kill()
    assert house.client.pod(uuid).state == "running"
    house.client.stop(uuid, force=True)
    assert house.uuids() == []
    assert left_of(uuid) == []


def test_rm_of_a_dead_ephemeral_one(house):
    """Its teardown removes it, which is what was asked for."""
    run = house.launch("sleep 1000", ephemeral=True)
    record = house.client.pod(run.uuid)
    run.kill()
    os.kill(record.stager_pid, signal.SIGKILL)
    until(lambda: not alive(record.stager_pid), "the stager's end")
    house.client.rm(run.uuid)
    assert house.uuids() == []
    assert left_of(run.uuid) == []


def test_stager_and_owner_killed(house):
    run = house.launch("sleep 1000")
    record = house.client.pod(run.uuid)
    run.kill()
    os.kill(record.stager_pid, signal.SIGKILL)
    record = until(
        lambda: (found := house.client.pod(run.uuid)).state == "errored" and found, "the pod being taken down"
    )
    assert record.reason.startswith("the stager ended")
    assert not any(app.pid for app in record.apps)
    assert left_of(run.uuid) == []


def test_two_clean_up_at_once(house):
    fault = ["leaving", "kurma_core.staging.aci_stager:AciStager.start"]
    runs = [house.launch("sleep 1000", faults=[fault], wait=None) for _ in range(2)]
    for run in runs:
        assert_dead(run)
    children = []
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                with house.connect() as client:
                    code = 0 if {record.state for record in client.pods()} <= {"errored", "starting"} else 2
            finally:
                os._exit(code)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0, 0, 0]
    assert [record.state for record in house.client.pods()] == ["errored", "errored"]
    for run in runs:
        assert left_of(run.uuid) == []


def test_a_finished_run_takes_no_time_to_be_seen(house):
    """wait() of another process returns as soon as the owner is done, by no polling."""
    run = house.launch("echo up; sleep 0.3")
    run.wait_output("up")
    house.client.wait(run.uuid)
    ended = time.monotonic()
    run.wait()
    assert time.monotonic() - ended < 3
