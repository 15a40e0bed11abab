"""Pods across what nobody asks them about: a reboot, and a state directory that is moved (W11, W12)."""

import json
import os
import signal
import subprocess

import pytest

from kurma_core.linux import namespaces
from kurma_core.linux.cgroups import CgroupTree
from tests.integration.pods.test_pods_crash import assert_nothing_left
from tests.kit.house import address
from tests.kit.waiting import alive, until

pytestmark = pytest.mark.root

NETWORKS = {"container_networks": [{"name": "leaky", "plugin": "leaky"}]}
LIVES = "trap exit TERM; echo up; while :; do sleep 0.02; done"
#: That it is on its network: the default one, or ``leaky``.
REACHES = "ping -c1 -W3 $(ip route | sed -n 's/^default via \\([^ ]*\\).*/\\1/p') >&2"
JOINED = {"default": REACHES, "leaky": "ip address show dev eth0 | grep -q 10.77.0"}
#: The built-in one, and one of a driver that has nothing but its own records to go by.
EACH = pytest.mark.parametrize("net", JOINED)


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def links():
    return {link["ifname"] for link in json.loads(output("ip", "-j", "link"))}


@pytest.fixture
def own_house(make_house, tmp_path, busybox_image, busybox_id):
    """``own_house(name, networks)``: a house of a state directory that only this test has."""

    def make(name, networks=None):
        pool = {"first": 3200000000, "count": 131072, "size": 65536}
        config = {**(networks or {}), "stop_timeout": 3, "userns_pool": pool}
        house = make_house(config, state=str(tmp_path / name), image=busybox_id)
        house.client.here.images.fetch(busybox_image)
        return house

    return make


# --- a reboot ----------------------------------------------------------------------------------------------------


def reboot(house, uuid, before):
    """The kernel is empty, the disk as it was: all that pod's processes, cgroups, namespaces, links and rules go.

    :param before: links that are not of pods.
    """
    record = house.client.pod(uuid)
    CgroupTree(f"kurma/{uuid}").kill()
    os.kill(record.stager_pid, signal.SIGKILL)
    until(lambda: not alive(record.stager_pid), "the stager's end")
    CgroupTree(f"kurma/{uuid}").remove()
    for path in (f"/run/netns/kurma-{uuid}", f"/run/kurma/userns/{uuid}"):
        namespaces.unpin(path)
    for name in links() - before:
        subprocess.run(["ip", "link", "delete", name], check=False, capture_output=True)
    output("nft", "flush", "ruleset")
    for name in ("state.json",):
        with open(house.path(uuid, name)) as file:
            state = json.load(file)
        state["stager"]["bootId"] = "0" * 36
        with open(house.path(uuid, name), "w") as file:
            json.dump(state, file)
    joined = f"{house.state}/networks/pods/{uuid}"
    with open(joined) as file:
        head, *rest = file.readlines()
    with open(joined, "w") as file:
        file.writelines([json.dumps({**json.loads(head), "boot": "0" * 36}) + "\n", *rest])


def test_after_a_reboot(own_house):
    house = own_house("state")
    before = links()
    run = house.launch(LIVES, net="default", userns="auto")
    run.wait_output("up")
    uuid, first = run.uuid, address(house, run)
    run.kill()
    reboot(house, uuid, before)
    # A namespace of that name, and an empty file, may be there by now: not this pod's.
    output("ip", "netns", "add", f"kurma-{uuid}")
    with open(f"/run/kurma/userns/{uuid}", "w"):
        pass
    found = {one.kind for one in house.client.network_check()}
    assert "pod" in found
    said = house.client.gc(grace=1000).lines
    assert f"pod {uuid}: taken down" in said
    record = house.client.pod(uuid)
    assert (record.state, record.reason) == ("errored", "the host was rebooted while it ran")
    assert not os.path.exists(f"/run/kurma/userns/{uuid}")
    assert "lo" in output("ip", "netns", "exec", f"kurma-{uuid}", "ip", "link"), "a stranger's, since the reboot"
    output("ip", "netns", "delete", f"kurma-{uuid}")
    assert house.client.network_check() == []
    again = house.launch(restart=uuid)
    assert house.enter(uuid, "sh", "-c", REACHES)[0] == 0
    with house.running(LIVES, net="default") as other:
        assert address(house, other) != address(house, again)
        assert house.enter(other.uuid, "sh", "-c", REACHES)[0] == 0
    assert first
    house.client.stop(uuid)
    again.wait()
    assert_nothing_left(uuid)
    house.client.network_rm("default")
    assert links() == before


# --- a state directory that is moved -----------------------------------------------------------------------------


def bridge_of(before):
    """Names, addresses and MACs of the bridges that are there and were not before."""
    found = json.loads(output("ip", "-j", "address", "show", "type", "bridge"))
    return {
        (one["ifname"], one["address"], each["local"], each["prefixlen"])
        for one in found
        for each in one["addr_info"]
        if one["ifname"] not in before and each["scope"] == "global"
    }


def nothing_is_left(net, before):
    assert links() == before
    ruleset = output("nft", "list", "ruleset")
    assert "leaky" not in ruleset
    assert net == "leaky" or "kurma-" not in ruleset


@EACH
def test_moved_while_no_pod_runs(own_house, leaky_plugin, tmp_path, net):
    house = own_house("old", NETWORKS)
    before = links()
    ended, _ = house.run(JOINED[net], net=net)
    assert ended.exit_code == 0
    bridge = bridge_of(before)
    prepared = house.client.prepare(house.request(JOINED[net], net=net, userns="auto"))
    house.client.close()
    os.rename(tmp_path / "old", tmp_path / "new")
    moved = own_house("new", NETWORKS)
    assert {record.state for record in moved.client.pods()} == {"stopped", "prepared"}
    with moved.running(LIVES, net=net) as other:
        assert bridge_of(before) == bridge
        assert net == "leaky" or len(bridge) == 2, "of both families"
        for pod in (ended, prepared):
            record, _ = moved.start(pod.uuid)
            assert (record.exit_code, record.reason) == (0, None)
            assert address(moved, pod) != address(moved, other)
    assert moved.client.network_check() == []
    assert not (tmp_path / "old").exists(), "nothing writes there any more"
    moved.client.network_rm(net)
    nothing_is_left(net, before)


@EACH
def test_moved_while_a_pod_runs(own_house, leaky_plugin, tmp_path, net):
    """It goes on; its owner takes it down at its end and says why it cannot record that, the next command does."""
    house = own_house("old", NETWORKS)
    before = links()
    run = house.launch(LIVES, net=net, userns="auto", name="mover")
    run.wait_output("up")
    uuid = run.uuid
    house.client.close()
    os.rename(tmp_path / "old", tmp_path / "new")
    moved = own_house("new", NETWORKS)
    run.house = moved
    record = moved.client.pod(uuid)
    assert (record.state, record.owner) == ("running", run.process.pid)
    assert moved.enter(uuid, "sh", "-c", JOINED[net])[0] == 0
    assert moved.client.network_check() == []
    os.kill(record.stager_pid, signal.SIGTERM)
    assert run.wait() == 125
    assert "its directory was removed while it ran" in run.errors
    record = moved.client.pod(uuid)
    assert (record.state, record.exit_code) == ("stopped", 0)
    assert_nothing_left(uuid)
    assert moved.client.gc(grace=1000).lines == ()
    assert moved.client.network_check() == []
    again = moved.launch(start=uuid)
    assert moved.enter(uuid, "sh", "-c", JOINED[net])[0] == 0
    moved.client.stop(uuid)
    again.wait()
    moved.client.network_rm(net)
    nothing_is_left(net, before)
