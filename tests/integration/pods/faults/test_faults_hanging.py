"""What hangs, stands still, or cannot be written to: the state is told right, everything else goes on (G6, G7)."""

import os
import signal
import subprocess
import threading
import time

import pytest

from kurma_core.errors import KurmaError, PodError, PodStateError
from kurma_core.linux.cgroups import CgroupTree, Layout
from kurma_core.value import replace
from tests.integration.pods.faults.hanging import HangingFilesystem
from tests.integration.pods.test_pods_crash import left_of
from tests.kit.waiting import alive, until

pytestmark = [pytest.mark.root, pytest.mark.full]

SERVE = "trap 'exit 0' TERM; exec 4>&-; while :; do sleep 0.02; done"


def took(function, *arguments, **options):
    """Seconds that it took, and what it gave, or raised."""
    began = time.monotonic()
    try:
        found = function(*arguments, **options)
    except KurmaError as error:
        found = error
    return time.monotonic() - began, found


@pytest.fixture
def hanging(tmp_path):
    place = tmp_path / "hanging"
    place.mkdir()
    filesystem = HangingFilesystem(place)
    yield filesystem
    filesystem.close()


def hanging_pod(house, hanging, beside="sleep 1000"):
    """A foreground command, whose pod has an app that hangs in the kernel. Its post-stop handler cannot help."""
    app = {
        "app": {
            "exec": ["/bin/sh", "-c", "exec cat /hanging/file"],
            "user": "0",
            "group": "0",
            "mountPoints": [{"name": "v", "path": "/hanging"}],
        }
    }
    run = house.launch(
        {"main": app, "beside": beside},
        volumes=[{"name": "v", "kind": "host", "source": hanging.path}],
        prelude="impatient",
    )
    hanging.wait_hung()
    return run


@pytest.mark.parametrize("force", [False, True])
def test_an_app_in_uninterruptible_sleep(make_house, hanging, force):
    house = make_house({"stop_timeout": 0.5})
    with house.running("sleep 1000") as neighbour:
        run = hanging_pod(house, hanging, "trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 0.02; done")
        run.wait_output("up")
        (pid,) = [app.pid for app in house.client.pod(run.uuid).apps if app.name == "main"]
        # Told by its record, or as what it is that cannot be done, where the owner has given up already.
        seconds, found = took(house.client.stop, run.uuid, force=force)
        assert seconds < 30
        said = found.message if isinstance(found, KurmaError) else found.reason
        assert "cannot end" in said
        assert f"{pid}]" in said
        assert run.wait() == 125
        record = house.client.pod(run.uuid)
        assert record.state == "errored"
        assert str(pid) in record.reason
        assert f"pod {run.uuid}: teardown is not complete: cannot end" in run.errors
        assert record.reason.startswith("teardown is not complete: cannot end")
        assert ("asked" in house.log(record, "beside")) != force
        if not force:
            assert f"process {pid} hangs in the kernel" in record.apps[0].message
        # Nobody waits for it again; and it is told what is in the way.
        seconds, records = took(house.client.pods)
        assert seconds < 3
        assert {each.uuid: each.state for each in records} == {run.uuid: "errored", neighbour.uuid: "running"}
        seconds, error = took(house.client.rm, run.uuid)
        assert seconds < 5
        assert isinstance(error, KurmaError)
        assert str(pid) in error.message
        said = house.client.gc(grace=0).left
        assert any(str(pid) in line for line in said)
        assert house.enter(neighbour.uuid, "echo", "well")[:2] == (0, "well\n")
        # The kernel lets go of it.
        hanging.close()
        until(lambda: not alive(pid), "the end of what hung")
        house.client.gc(grace=0)
        assert run.uuid not in house.uuids()
        assert left_of(run.uuid) == []


def test_one_that_is_frozen_is_ended_all_the_same(house):
    """By v1's freezer, as somebody may who was killed before he could thaw it."""
    layout = Layout.detect()
    freezers = [one for one in layout.hierarchies if one.version == 1 and "freezer" in one.controllers]
    assert freezers, "this test needs v1's freezer"
    with house.running("sleep 1000") as pod:
        for below in ("app-main", ""):
            name = f"kurma/{pod.uuid}/{below}".rstrip("/")
            CgroupTree(name).write("freezer", "freezer.state", "FROZEN")
        pod.stop(force=True)
        record = pod.finish()
        assert record.state == "errored"
    assert left_of(pod.uuid) == []


@pytest.mark.parametrize("force", [False, True])
def test_a_stager_that_stands_still(make_house, force):
    """SIGSTOP: it answers nobody; it is looked at, entered and ended."""
    house = make_house({"stop_timeout": 0.4})
    run = house.launch("trap 'echo asked' TERM; echo up; while :; do sleep 0.02; done")
    run.wait_output("up")
    record = house.client.pod(run.uuid)
    os.kill(record.stager_pid, signal.SIGSTOP)
    until(lambda: _state(record.stager_pid) == "T", "the stager standing still")
    seconds, found = took(house.client.pod, run.uuid)
    assert seconds < 2
    assert (found.state, found.apps[0].pid) == ("running", record.apps[0].pid)
    seconds, found = took(house.client.stop, run.uuid, force=force)
    assert seconds < (3 if force else 10)
    assert found.state == "errored"
    assert found.reason.startswith("the stager ended with status 137")
    assert run.wait() == 137
    assert left_of(run.uuid) == []
    assert not alive(record.apps[0].pid)


def _state(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def test_call_ins_that_hang(foreign):
    """``status`` of every such pod says nothing: lists, stops and removals go on, and do not wait for each."""
    house = foreign(SERVE, {"status": "exec sleep 1000", "run": "cat <&3 > /dev/null; exec sleep 1000"})
    driver = house.client.here.services.stagers.get("shell")
    driver.times = replace(driver.times, status=1.0)
    runs = [house.launch("true") for _ in range(3)]
    seconds, records = took(house.client.pods)
    assert [record.state for record in records] == ["running"] * 3
    assert seconds < 4  # 1 s for the first, one for each other
    seconds, record = took(house.client.pod, runs[0].uuid)
    assert seconds < 3
    assert (record.apps[0].name, record.apps[0].pid, record.apps[0].exited) == ("main", None, False)
    entering = threading.Thread(target=lambda: took(house.enter, runs[0].uuid, "true"))
    entering.start()
    tree = CgroupTree(f"kurma/{runs[0].uuid}/callins")
    until(lambda: len(tree.pids()) > 0, "the call-in")
    seconds, record = took(house.client.stop, runs[0].uuid)
    assert seconds < 8
    assert record.state == "stopped"
    entering.join(10)
    assert not entering.is_alive()
    seconds, _ = took(house.client.stop, runs[1].uuid, force=True)
    assert seconds < 8
    seconds, _ = took(house.client.rm, runs[2].uuid, force=True)
    assert seconds < 8
    assert runs[2].uuid not in house.uuids()
    for run in runs:
        run.wait()
        assert left_of(run.uuid) == []


@pytest.fixture
def disk(tmp_path):
    """A disk that can be broken."""
    path = tmp_path / "disk"
    path.mkdir()
    with open(f"{path}.image", "wb") as file:
        file.truncate(256 << 20)
    subprocess.run(["mkfs.ext4", "-q", f"{path}.image"], check=True)
    subprocess.run(["mount", "-o", "loop,errors=remount-ro", f"{path}.image", path], check=True)
    yield str(path)
    subprocess.run(["umount", path], check=True)


def test_a_disk_that_has_become_read_only(make_house, disk, busybox_image):
    """As after an error of the disk: what runs goes on, is seen, and is ended whole, though none can record it."""
    house = make_house({"stop_timeout": 1}, state=f"{disk}/state", image=busybox_image)
    house.client.rm(house.run("true")[0].uuid)
    prepared = house.client.prepare(house.request("true"))
    run = house.launch("trap 'exit 3' TERM; echo up; while :; do sleep 0.02; done")
    run.wait_output("up")
    (pid,) = [app.pid for app in house.client.pod(run.uuid).apps]
    subprocess.run(["mount", "-o", "remount,abort", disk], check=False)
    with pytest.raises(OSError, match="Read-only file system"):
        open(f"{disk}/x", "x").close()
    assert alive(pid)
    assert {record.uuid: record.state for record in house.client.pods()} == {
        run.uuid: "running",
        prepared.uuid: "prepared",
    }
    record = house.client.stop(run.uuid)
    assert record.state == "stopped"
    run.wait()
    assert not alive(pid)
    assert left_of(run.uuid) == []
    attempts = (
        lambda: house.client.rm(run.uuid),
        lambda: house.run("true"),
        lambda: house.start(prepared.uuid),
    )
    for attempt in attempts:
        seconds, error = took(attempt)
        assert seconds < 5
        assert "Read-only file system" in error.message
        assert "\n" not in error.message


# --- stopping, at the wrong moments ----------------------------------------------------------------------------


def test_a_stop_that_is_killed_in_the_middle(make_house):
    """Killed (SIGKILL) before and after it has asked: the pod ends as asked, or can be stopped again."""
    house = make_house({"stop_timeout": 0.5})
    run = house.launch("trap '' TERM; echo up; while :; do sleep 0.02; done")
    run.wait_output("up")
    stopper = os.fork()
    if stopper == 0:
        try:
            house.connect().stop(run.uuid)
        finally:
            os._exit(0)
    run.wait_state("stopping")
    os.kill(stopper, signal.SIGKILL)
    os.waitpid(stopper, 0)
    record = house.client.stop(run.uuid)
    assert (record.state, record.exit_code) == ("stopped", 137)
    assert run.wait() == 137
    assert left_of(run.uuid) == []


def test_a_stop_while_it_starts(foreign):
    """The stager has begun, and does not come to say that its pod runs."""
    house = foreign("trap 'exit 9' TERM; while :; do sleep 0.02; done")
    run = house.launch("true", wait="starting")
    until(lambda: house.state_of(run.uuid).get("stager"), "the stager")
    seconds, record = took(house.client.stop, run.uuid)
    assert seconds < 10
    assert (record.state, record.exit_code) == ("stopped", 143)
    assert record.reason == "it was stopped while it started"
    assert run.wait() == 125
    assert left_of(run.uuid) == []


def test_a_stop_by_force_while_a_handler_runs(house):
    app = {
        "exec": ["/bin/sh", "-c", "exit 3"],
        "user": "0",
        "group": "0",
        "eventHandlers": [{"name": "post-stop", "exec": ["/bin/sh", "-c", "echo handling; exec sleep 1000"]}],
    }
    run = house.launch({"main": app, "other": "sleep 1000"})
    run.wait_output("handling")
    seconds, record = took(house.client.stop, run.uuid, force=True)
    assert seconds < 4
    assert (record.state, record.exit_code) == ("errored", 3)
    assert run.wait() == 3
    assert left_of(run.uuid) == []


def test_an_orderly_stop_lets_handlers_finish(make_house):
    """H4: main takes all of its time, and its handler most of the same again: neither is cut short."""
    house = make_house({"stop_timeout": 3})
    app = {
        "exec": ["/bin/sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.02; done"],
        "user": "0",
        "group": "0",
        "eventHandlers": [{"name": "post-stop", "exec": ["/bin/sh", "-c", "sleep 2; echo finished"]}],
    }
    run = house.launch({"main": app})
    run.wait_output("up")
    # What a stop without --timeout waits; a shorter one than both together would kill the stager.
    record = house.client.stop(run.uuid)
    assert (record.state, house.log(record)) == ("stopped", "up\nfinished\n")
    assert run.wait() == 137


def test_bombs_within_their_limit(make_house):
    """An app that forks for ever, within its pids limit: the other works, a stop works, nothing is left."""
    house = make_house({"stop_timeout": 1})
    bomb = "trap '' TERM; bomb() { while :; do (bomb &); done; }; (bomb 2>/dev/null &); exec sleep 1000"
    run = house.launch({"bomb": bomb, "other": "i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done"})
    tree = CgroupTree(f"kurma/{run.uuid}/app-bomb")
    tree.write("pids", "pids.max", "150")
    until(lambda: len(tree.pids()) >= 100, "the bomb")
    before = len(run.output.split())
    until(lambda: len(run.output.split()) > before + 5, "the other app")
    assert house.enter(run.uuid, "echo", "well", app="other")[:2] == (0, "well\n")
    seconds, record = took(house.client.stop, run.uuid)
    assert seconds < 15
    assert record.state == "stopped"
    assert {app.name: app.reason for app in record.apps} == {"bomb": "killed", "other": "killed"}
    run.wait()
    assert left_of(run.uuid) == []


def test_not_removed_by_a_second_hand_while_it_hangs(make_house, hanging):
    """A pod that is being taken down by its owner is nobody else's, however long that takes."""
    house = make_house({"stop_timeout": 0.3})
    run = hanging_pod(house, hanging)
    stopper = threading.Thread(target=lambda: took(house.connect().stop, run.uuid))
    stopper.start()
    run.wait_state("stopping")
    with pytest.raises((PodStateError, PodError)):
        house.client.rm(run.uuid)
    hanging.close()
    stopper.join(60)
    run.wait(60)
    assert house.client.pod(run.uuid).state in ("stopped", "errored")
    assert left_of(run.uuid) == []
