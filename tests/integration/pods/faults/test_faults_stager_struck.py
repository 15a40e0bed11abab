"""The stager is struck at each step of a pod's life; the state is told right, nothing is left, no one else suffers
(G6, G7)."""

import os
import signal

import pytest

from kurma_core.linux import process
from tests.integration.pods.faults import steps
from tests.integration.pods.test_pods_crash import left_of, processes_of
from tests.kit.host import links
from tests.kit.waiting import alive, until

pytestmark = [pytest.mark.root, pytest.mark.full]

#: Every so many steps, here; ``./dev stager-kill-test`` takes each.
STRIDE = int(os.environ.get("KURMA_TEST_STRIDE", "6"))


@pytest.fixture(scope="module")
def waiting_stager(tmp_path_factory):
    return steps.waiting_stager(str(tmp_path_factory.mktemp("waiting")))


@pytest.fixture
def struck_house(make_house, waiting_stager):
    """What a struck stager orphans comes to us: the machine's own init may take its time."""
    process.set_child_subreaper(True)
    yield make_house(steps.configuration(waiting_stager))
    process.set_child_subreaper(False)


def reap():
    """Waits for our children that have ended."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        for pid in file.read().split():
            if not alive(pid):
                os.waitpid(int(pid), 0)


def assert_whole(house, life):
    """What is true of a pod whose stager was struck, whenever that was."""
    assert left_of(life.uuid) == [], life.steps[-1]
    # The pod's PID 1 ends once all that a killed stager has orphaned is waited for.
    until(lambda: reap() or processes_of(life.uuid) == [], f"the end of all, after {life.steps[-1]},")
    assert not [link for link in links() if link.startswith(("veth", "kv"))]
    assert house.state_of(life.uuid)["steps"] == []
    assert not os.path.exists(house.path(life.uuid, "pod/apps"))
    assert not any(app.pid for app in life.record.apps)
    house.client.rm(life.uuid)
    assert not os.path.exists(house.path(life.uuid))


@pytest.mark.parametrize(
    ("number", "status", "stride"),
    [(signal.SIGKILL, 137, STRIDE), (signal.SIGSEGV, 139, 3 * STRIDE), (signal.SIGSTOP, 137, 5 * STRIDE)],
    ids=["killed", "crashed", "stopped"],
)
def test_struck_at_a_step(struck_house, house, tmp_path, number, status, stride):
    before_all = links()
    whole = steps.Life(struck_house, str(tmp_path))
    assert (whole.record.state, whole.record.exit_code) == ("stopped", 4), whole.record.reason
    assert_whole(struck_house, whole)
    places = steps.names_of(whole.steps)
    failed_starts = failed_lives = 0
    with house.running("while :; do echo tick; sleep 0.1; done") as neighbour:
        (before,) = house.client.pod(neighbour.uuid).apps
        # The last one is a step that no life goes without: the end of the pod's PID 1.
        for step in [*places[::stride], ("pidfd_send_signal", 1)]:
            life = steps.Life(struck_house, str(tmp_path), step, number, "default" if step[1] % 8 == 1 else "none")
            if not life.struck:
                # It slept, or looked for ended children, less often this time.
                assert life.record.state == "stopped", step
            elif life.told is not None:
                failed_starts += 1
                said = f"the stager failed to start its pod: it ended with status {status}"
                if number == signal.SIGSTOP:
                    said = "the stager did not report its pod as running within"
                assert life.told.message.startswith(said), step
                assert (life.record.state, life.record.exit_code) == ("errored", 125), step
                assert life.record.reason == life.told.message
            else:
                failed_lives += 1
                assert (life.record.state, bool(life.record.exit_code)) == ("errored", True), step
                assert life.record.reason.startswith(f"the stager ended with status {status}"), step
            assert_whole(struck_house, life)
            (now,) = house.client.pod(neighbour.uuid).apps
            assert (now.pid, now.exited) == (before.pid, False)
            assert alive(before.pid)
        assert house.enter(neighbour.uuid, "echo", "well")[:2] == (0, "well\n")
        size = len(house.log(neighbour))
        until(lambda: len(house.log(neighbour)) > size, "the neighbour's log")
    until(lambda: reap() or processes_of(neighbour.uuid) == [], "the neighbour's end")
    reap()
    house.client.network_rm("default")
    assert links() == before_all
    assert failed_starts
    assert failed_lives
