"""A pod from its request to its removal: exit codes, records, logs."""

import os

import pytest

from kurma_core.errors import PodExistsError, PodNotFoundError

pytestmark = pytest.mark.root


def test_exit_codes_logs_and_records_until_rm(house):
    record, output = house.run({"one": "echo out of one", "two": "echo out of two; echo err >&2; exit 42"})
    assert (record.state, record.exit_code, record.reason) == ("stopped", 42, None)
    assert {app.name: (app.exited, app.exit_code, app.reason) for app in record.apps} == {
        "one": (True, 0, "exited"),
        "two": (True, 42, "exited"),
    }
    assert sorted(output.splitlines()) == ["err", "out of one", "out of two"]
    assert [listed.uuid for listed in house.client.pods()] == [record.uuid]
    assert house.client.pod(record.name) == house.client.pod(record.uuid) == house.client.pod(record.uuid[:8])
    assert house.client.pod(record.uuid).exit_code == 42
    assert house.log(record, "one") == "out of one\n"
    assert sorted(house.log(record).splitlines()) == ["err", "out of one", "out of two"]
    assert [line.text for line in house.client.logs(record.uuid, "two", stream="stderr")] == [b"err"]
    house.client.rm(record.uuid)
    assert house.uuids() == []
    assert os.listdir(f"{house.state}/pods") == ["names"]
    assert os.listdir(f"{house.state}/pods/names") == []
    with pytest.raises(PodNotFoundError):
        house.client.pod(record.uuid)


def test_the_first_failure_in_manifest_order_is_the_exit_code(house):
    record, _ = house.run({"slow": "sleep 0.3; exit 3", "quick": "exit 4", "good": "true"})
    assert record.exit_code == 3


def test_an_ephemeral_pod_leaves_no_trace(house):
    record, output = house.run("echo here", ephemeral=True)
    assert (record.exit_code, output) == (0, "here\n")
    assert house.uuids() == []


def test_a_taken_uuid_and_a_taken_name_are_refused(house):
    first = house.client.prepare(house.request("true", name="mine"))
    with pytest.raises(PodExistsError, match="a pod with this UUID exists"):
        house.client.prepare(house.request("true", uuid=first.uuid))
    with pytest.raises(PodExistsError, match=f"cannot name the pod mine: pod {first.uuid} has that name"):
        house.client.prepare(house.request("true", name="mine"))
    assert house.uuids() == [first.uuid]
    assert house.client.pod("mine").state == "prepared"
    house.client.rm("mine")
    house.client.rm(house.client.prepare(house.request("true", name="mine")).uuid)
