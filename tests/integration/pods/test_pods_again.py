"""Pods started again, many at once, and in each other's way."""

import os
import threading

import pytest

from kurma_core.errors import PodStateError

pytestmark = pytest.mark.root


def test_start_again_is_from_a_clean_copy(house):
    script = "cat /data/mark /vol/mark 2>/dev/null; echo root > /data/mark; echo volume > /vol/mark; echo ran"
    app = {
        "exec": ["/bin/sh", "-c", script],
        "user": "0",
        "group": "0",
        "mountPoints": [{"name": "vol", "path": "/vol"}],
    }
    record, output = house.run({"main": app})
    assert output == "ran\n"
    again, output = house.start(record.uuid)
    assert output == "ran\n"
    assert house.log(again) == "ran\n", "the logs of the earlier run are gone"
    assert again.uuid == record.uuid
    assert again.started_at > record.started_at
    assert again.exit_code == 0


@pytest.mark.full
@pytest.mark.parametrize("storage", ["overlay", "copy"])
def test_many_starts_take_no_more_disk(make_house, storage):
    """What an execution wrote to its root is gone; of its log there is but text: fifty take less than 1 MB."""
    house = make_house({"plugins": {"stagers": {"default": {"config": {"graphStorage": storage}}}}})
    script = "[ -e /mark ] && echo unclean; dd if=/dev/zero of=/mark bs=1M count=4 2>/dev/null; echo ran"
    record, output = house.run(script)
    first = disk_usage(house.path(record))
    starts = 8
    for _ in range(starts):
        record, output = house.start(record.uuid)
        assert (record.exit_code, output) == (0, "ran\n")
    assert disk_usage(house.path(record)) - first < (1 << 20) * starts / 50


def disk_usage(path):
    return sum(
        os.lstat(os.path.join(directory, name)).st_blocks * 512
        for directory, _, names in os.walk(path)
        for name in names
    )


def test_what_an_earlier_run_ended_with_is_not_told_of_the_next(house, tmp_path):
    flag = tmp_path / "flag"
    flag.mkdir()
    volume = {"name": "flag", "kind": "host", "source": str(flag)}
    app = {
        "exec": ["/bin/sh", "-c", "ls /flag; [ -e /flag/good ]"],
        "user": "0",
        "group": "0",
        "mountPoints": [{"name": "flag", "path": "/flag"}],
    }
    record, _ = house.run({"main": app}, volumes=[volume])
    assert (record.state, record.exit_code) == ("stopped", 1)
    (flag / "good").touch()
    record, _ = house.start(record.uuid)
    assert (record.state, record.exit_code, record.apps[0].exit_code) == ("stopped", 0, 0)


def test_restart_of_a_running_pod(house):
    run = house.launch(
        "trap 'exit 4' TERM; echo up; [ -e /tmp/x ] && echo unclean; touch /tmp/x; while :; do sleep 0.02; done"
    )
    run.wait_output("up")
    again = house.launch(restart=run.uuid, wait=None)
    assert run.wait() == 4
    again.wait_output("up")
    assert "unclean" not in again.output
    assert house.client.pod(run.uuid).owner == again.process.pid
    house.client.stop(run.uuid)
    assert again.wait() == 4


def test_a_running_pod_is_not_started_again(house):
    with house.running() as pod:
        with pytest.raises(PodStateError, match="it is running"):
            house.start(pod.uuid)
        assert house.client.pod(pod.uuid).state == "running"


def test_a_prepared_pod_runs_by_its_name(house):
    house.client.prepare(house.request("echo hello; exit 2", name="ready"))
    record, output = house.start("ready")
    assert (record.exit_code, output) == (2, "hello\n")


@pytest.mark.full
def test_twenty_pods_at_once(house):
    """Five at a time, each by a process of its own, while others list."""
    expected = {}
    runs = []
    for batch in range(4):
        batch_runs = [
            house.launch(f"echo pod {5 * batch + n}; sleep 0.1; exit {5 * batch + n}", wait=None) for n in range(5)
        ]
        for _ in range(3):
            house.client.pods()
        for n, run in enumerate(batch_runs):
            assert run.wait(60) == 5 * batch + n, run.errors
            assert run.output == f"pod {5 * batch + n}\n"
            expected[run.uuid] = 5 * batch + n
        runs += batch_runs
    assert {record.uuid: record.exit_code for record in house.client.pods()} == expected
    assert all(record.state == "stopped" for record in house.client.pods())
    assert house.notes == []
    assert len(house.client.gc(grace=0).removed) == 20
    assert house.uuids() == []


@pytest.mark.full
def test_listing_is_in_nobodys_way(house):
    """Pods are prepared, started and removed while others look at everything all the time."""
    stop = threading.Event()
    seen = []

    def look():
        with house.connect() as client:
            while not stop.is_set():
                seen.extend((record.state, record.reason) for record in client.pods())
                client.gc(grace=1000)

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(5):
            record = house.client.prepare(house.request("exit 3"))
            record, _ = house.start(record.uuid)
            assert (record.state, record.exit_code) == ("stopped", 3)
            house.client.rm(record.uuid)
    finally:
        stop.set()
        for looker in lookers:
            looker.join()
    assert house.notes == []
    allowed = {"preparing", "prepared", "starting", "running", "stopping", "stopped"}
    assert [each for each in seen if each[0] not in allowed] == []
    assert house.uuids() == []
    assert house.kept() == ["names"]
