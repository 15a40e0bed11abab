"""Records that cannot be read: the rest is listed all the same, and the broken ones can be removed."""

import json
import os
import signal

import pytest

from kurma_core.errors import FormatVersionError, PodDamagedError, PodStateError
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.linux.files import replace_file
from tests.kit.host import links
from tests.kit.waiting import alive, until

pytestmark = [pytest.mark.root, pytest.mark.full]

DAMAGE = {
    "not-json": "{",
    "empty": "",
    "a-list": "[]",
    "no-version": "{}",
    "no-keys": '{"version": 1}',
    "nonsense": '{"version": 1, "state": 7, "manifest": 8, "uuid": null, "name": []}',
    "binary": "\0\0\0",
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
@pytest.mark.parametrize("name", ["pod.json", "state.json"])
def test_a_damaged_record(house, name, damage):
    good, _ = house.run("echo good", name="good")
    bad, _ = house.run("echo bad", name="bad")
    with open(house.path(bad, name), "w") as file:
        file.write(damage)
    records = {record.uuid: record for record in house.client.pods()}
    assert records[good.uuid].state == "stopped"
    assert records[bad.uuid].state == "errored"
    assert f"{name} is damaged" in records[bad.uuid].reason
    with pytest.raises(PodDamagedError, match="is damaged") as caught:
        house.client.pod(bad.uuid)
    assert caught.value.hint == f"kurma rm {bad.uuid}"
    for dry_run in (True, False):
        said = house.client.gc(grace=1000, dry_run=dry_run)
        (line,) = said.left
        assert line.startswith(f"pod {bad.uuid}: left: {name} is damaged")
        assert line.endswith(f"(kurma rm --force {bad.uuid})")
        assert said.failed
    assert set(house.uuids()) == {good.uuid, bad.uuid}, "nobody removes it unasked"
    house.client.image_gc(grace=1000)
    house.client.rm(bad.uuid)
    assert house.uuids() == [good.uuid]
    assert os.listdir(f"{house.state}/pods/names") == ["good"]


def test_a_missing_record(house):
    bad, _ = house.run("true", name="bad")
    os.unlink(house.path(bad, "pod.json"))
    assert [record.state for record in house.client.pods()] == ["errored"]
    (line,) = house.client.gc(grace=1000).left
    assert line == f"pod {bad.uuid}: left: no pod.json (kurma rm --force {bad.uuid})"
    house.client.rm("bad", force=True)
    assert not house.client.gc(grace=1000).failed
    assert house.uuids() == []


def test_a_newer_format_is_left_alone(house):
    record, _ = house.run("true")
    value = house.state_of(record)
    with open(house.path(record, "state.json"), "w") as file:
        json.dump({**value, "version": 99}, file)
    assert "newer version" in house.client.pods()[0].reason
    with pytest.raises(FormatVersionError):
        house.client.pod(record.uuid)
    house.client.gc(grace=0)
    with pytest.raises(FormatVersionError, match="newer version") as caught:
        house.client.rm(record.uuid)
    assert f"kurma rm --force {record.uuid}" in caught.value.hint
    assert house.uuids() == [record.uuid]
    house.client.rm(record.uuid, force=True)
    assert house.uuids() == []


def test_a_running_pod_with_a_damaged_record(house):
    """Its processes are not ended unasked; by force they are, with its networks."""
    before = links()
    run = house.launch("sleep 1000", net="default")
    uuid = run.uuid
    run.kill()
    joined = links()
    with open(house.path(uuid, "state.json"), "r+") as file:
        state = file.read()
        file.seek(0)
        file.write("!")
    house.client.gc(grace=0)
    house.client.network_check(repair=True)
    assert links() == joined, "what is damaged is not gone"
    assert os.path.exists(f"/run/netns/kurma-{uuid}")
    with open(house.path(uuid, "state.json"), "w") as file:
        file.write(state)
    with open(house.path(uuid, "pod.json"), "w") as file:
        file.write("{")
    assert [record.state for record in house.client.pods()] == ["errored"]
    with pytest.raises(PodStateError, match="its record is damaged, and processes of it run"):
        house.client.rm(uuid)
    house.client.rm(uuid, force=True)
    assert house.uuids() == []
    assert not [link for link in links() if link.startswith(("veth", "kv"))]
    house.client.network_rm("default")
    assert links() <= before, "its bridge may have been there before"


def test_a_damaged_stager_identity(house):
    run = house.launch("sleep 1000")
    state = house.state_of(run.uuid)
    pid = state["stager"]["pid"]
    run.kill()
    with open(house.path(run.uuid, "state.json"), "w") as file:
        json.dump({**state, "stager": {"pid": "one"}}, file)
    # Nobody can find the stager: the pod counts as dead, and is taken down.
    (record,) = house.client.pods()
    assert record.state == "errored"
    assert not alive(pid)


def test_another_process_with_the_stagers_number_is_left_alone(house):
    """A PID that was used anew: its start time differs."""
    run = house.launch("sleep 1000")
    state = house.state_of(run.uuid)
    bystander = os.fork()
    if bystander == 0:
        signal.pause()
    try:
        run.kill()
        os.kill(state["stager"]["pid"], signal.SIGKILL)
        with open(house.path(run.uuid, "state.json"), "w") as file:
            json.dump({**state, "stager": {**state["stager"], "pid": bystander}}, file)
        assert house.client.stop(run.uuid, force=True).state == "errored"
        assert os.waitpid(bystander, os.WNOHANG) == (0, 0)
    finally:
        os.kill(bystander, signal.SIGKILL)
        os.waitpid(bystander, 0)


def test_the_plugin_of_a_stager_is_gone(make_house):
    """Listed; and it can be ended all the same."""
    house = make_house()
    run = house.launch("sleep 1000")
    path = house.path(run.uuid, "pod.json")
    with open(path) as file:
        text = file.read()
    # At once: its owner must not find half a document.
    replace_file(path, text.replace('"stager": "default"', '"stager": "gone"').encode())
    (record,) = house.client.pods()
    assert (record.state, record.stager) == ("running", "gone")
    house.client.stop(run.uuid, force=True)
    run.wait()
    assert house.state_of(record)["steps"] == []


def test_a_dead_pod_in_a_state_directory_that_is_read_only(make_house, tmp_path, busybox_image):
    """It cannot be taken down: that is noted, and all are listed; the collection fails, and says so."""
    state = str(tmp_path / "state")
    house = make_house(state=state, image=busybox_image)
    good, _ = house.run("true")
    run = house.launch("sleep 1000")
    pid = house.state_of(run.uuid)["stager"]["pid"]
    run.kill()
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid), "the stager's end")
    assert os.system(f"mount --bind {state} {state} && mount -o remount,bind,ro {state}") == 0
    try:
        assert {record.uuid: record.state for record in house.client.pods()} == {
            good.uuid: "stopped",
            run.uuid: "running",
        }
        (note,) = house.notes
        assert run.uuid in note
        assert "Read-only file system" in note
        collected = house.client.gc(grace=1000)
        assert collected.failed
        assert "Read-only file system" in collected.left[0]
    finally:
        assert os.system(f"umount {state}") == 0
    assert {record.state for record in house.client.pods()} == {"stopped", "errored"}


def test_a_cgroup_that_an_ended_pod_has_left_is_removed(house):
    """As a call-in leaves it that is killed while its pod ends."""
    pod, _ = house.run("true")
    lost = CgroupTree(f"{pod.cgroup}/callins")
    lost.create()
    assert any("cgroup" in line for line in house.client.gc(grace=1000, dry_run=True).lines)
    assert lost.exists()
    (line,) = house.client.gc(grace=1000).lines
    assert line == f"pod {pod.uuid}: it has ended, its cgroup is left: removed"
    assert not CgroupTree(pod.cgroup).exists()
    lost.create()
    house.client.rm(pod.uuid)
    assert not CgroupTree(pod.cgroup).exists()
