"""What pods have on the host by networks goes with them, whatever was killed when; what is others' never (W12)."""

import json
import os
import shutil
import signal
import subprocess

import pytest

from kurma_core.errors import HostError, NetworkError
from kurma_core.linux import namespaces
from kurma_core.linux.cgroups import CgroupTree
from tests.kit.command import KURMA
from tests.kit.images import shell
from tests.kit.waiting import alive, until

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("leaky_plugin"), pytest.mark.full]

NETWORKS = {
    "container_networks": [{"name": "leaky", "plugin": "leaky"}, {"name": "forgetful", "plugin": "forgetful"}],
    "stop_timeout": 3,
}


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def host():
    """All that networks have on the host, as its admin sees it."""
    return {
        "links": {link["ifname"]: link.get("ifalias") for link in json.loads(output("ip", "-j", "link"))},
        "addresses": [
            (link["ifname"], address["local"])
            for link in json.loads(output("ip", "-j", "address"))
            for address in link["addr_info"]
            # The kernel gives links local ones some time after they are up.
            if address["scope"] != "link"
        ],
        "routes": json.loads(output("ip", "-j", "route")),
        "nftables": output("nft", "list", "ruleset"),
        "namespaces": sorted(os.listdir("/run/netns")) if os.path.isdir("/run/netns") else [],
    }


@pytest.fixture
def leaky(make_house):
    """A house whose pods may join ``leaky``, which can be asked for leaks, and ``forgetful``, which cannot."""
    house = make_house(NETWORKS)
    output("nft", "add", "table", "inet", "leaky")
    yield house
    output("nft", "delete", "table", "inet", "leaky")


@pytest.fixture
def strangers():
    """Things of others that look like ours: as they were before, afterwards."""
    uuid = "5e0f4a1c-0000-4000-8000-00000000abcd"
    for command in (
        f"ip netns add kurma-{uuid}",
        "ip netns add others",
        "ip link add kurma-br7 type bridge",
        f"ip link add le5e0f4a1c type veth peer name lkpeer netns kurma-{uuid}",
        "ip address add 10.77.0.1/24 dev kurma-br7",
        "nft add table inet kurma",
        f"nft add chain inet kurma leaky-{uuid}",
    ):
        output(*command.split())
    os.makedirs("/run/kurma/userns", exist_ok=True)
    namespaces.pin("/proc/self/ns/user", f"/run/kurma/userns/{uuid}")
    before = host()
    yield
    assert host() == before
    assert os.stat(f"/run/kurma/userns/{uuid}").st_ino == os.stat("/proc/self/ns/user").st_ino
    namespaces.unpin(f"/run/kurma/userns/{uuid}")
    namespaces.unshare_directory("/run/kurma/userns")
    for command in (
        "ip link delete le5e0f4a1c",
        "ip link delete kurma-br7",
        f"ip netns delete kurma-{uuid}",
        "ip netns delete others",
        "nft delete table inet kurma",
    ):
        output(*command.split())


def addresses(house, driver="leaky"):
    """That the plugin has given, which exist from the network's first use on."""
    path = f"{house.state}/plugins/kurma.networks/{driver}/addresses"
    return os.listdir(path) if os.path.isdir(os.path.dirname(path)) else []


def records(house):
    """UUIDs of the pods that the core has on record."""
    return os.listdir(f"{house.state}/networks/pods")


def left_of(house, uuid):
    """Of that pod, on the host and on record."""
    everything = json.dumps(host())
    places = [path for path in (f"/run/netns/kurma-{uuid}", f"/run/kurma/userns/{uuid}") if os.path.lexists(path)]
    everything = everything.replace(f"kurma-{uuid}", "")
    found = [word for word in (f"le{uuid[:8]}", f"fo{uuid[:8]}", f"-{uuid}") if word in everything]
    return places + found + addresses(house) + addresses(house, "forgetful") + records(house)


def dead(house, dies=None, *, net="leaky", faults=(), then=None, **options):
    """UUID of a pod whose owner was killed somewhere."""
    if dies is not None:
        os.environ["KURMA_LEAKY_DIES"] = dies
    try:
        run = house.launch(
            "trap exit TERM; while :; do sleep 0.02; done", net=net, wait=None, faults=faults, **options
        )
        if then is not None:
            run.wait_state("running")
            run.signal(then)
        assert run.wait() == -signal.SIGKILL, run.errors
    finally:
        os.environ.pop("KURMA_LEAKY_DIES", None)
    return run.uuid


def said(findings):
    return [(one.kind, one.repaired) for one in findings]


# --- killed ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("net", ["leaky", "forgetful"])
@pytest.mark.parametrize(
    "dies", ["add:0", "add:1", "add:2", "add:3", "delete:0", "delete:1", "delete:2", "delete:3"]
)
def test_killed_inside_the_plugin(leaky, strangers, net, dies):
    uuid = dead(leaky, dies, net=net, then=signal.SIGTERM if dies.startswith("delete") else None, userns="auto")
    assert left_of(leaky, uuid)
    assert leaky.client.gc(grace=1000).lines == (f"pod {uuid}: taken down",)
    assert left_of(leaky, uuid) == []
    assert leaky.client.network_check() == []


@pytest.mark.parametrize("step", ["user-namespace", "network-namespace", "networks"])
@pytest.mark.parametrize("when", ["before", "after", "undoing", "undone"])
def test_killed_at_a_step_and_its_directory_removed(leaky, strangers, when, step):
    """Nobody but the record outside of it knows that pod."""
    then = signal.SIGTERM if when.startswith("und") else None
    uuid = dead(leaky, faults=[[when, step]], then=then, userns="auto", net=["leaky", "forgetful"])
    name = next(name for name in os.listdir(f"{leaky.state}/pods/names"))
    shutil.rmtree(leaky.path(uuid))
    os.unlink(f"{leaky.state}/pods/names/{name}")
    shutil.rmtree(f"/sys/fs/cgroup/none/{uuid}", ignore_errors=True)
    before = left_of(leaky, uuid)
    lines = leaky.client.gc(grace=0, dry_run=True).lines
    assert lines
    assert all(line.endswith(": would be freed") for line in lines)
    assert left_of(leaky, uuid) == before
    done = leaky.client.gc(grace=0)
    assert done.lines == tuple(line.replace("would be freed", "freed") for line in lines)
    assert not done.failed
    assert left_of(leaky, uuid) == []
    assert leaky.client.gc(grace=0).lines == ()
    end_cgroups(uuid)


def test_the_cgroup_of_a_pod_whose_directory_is_gone(leaky, strangers):
    uuid = dead(leaky, faults=[["after", "networks"]], name="gone")
    shutil.rmtree(leaky.path(uuid))
    os.unlink(f"{leaky.state}/pods/names/gone")
    tree = CgroupTree(f"kurma/{uuid}")
    assert tree.exists()
    assert not leaky.client.gc(grace=0).failed
    assert not tree.exists()


def test_a_pod_that_runs_without_an_owner_is_told_as_that(house):
    run = house.launch("sleep 1000")
    run.kill()
    said = f"pod {run.uuid}: runs without an owner: left (kurma stop {run.uuid[:8]})"
    assert said in house.client.gc(grace=1000, dry_run=True).left
    assert said in house.client.gc(grace=1000).left
    os.kill(house.client.pod(run.uuid).stager_pid, signal.SIGKILL)
    lines = (f"pod {run.uuid}: its owner has died: would be taken down", f"pod {run.uuid}: taken down")
    until(lambda: lines[0] in house.client.gc(grace=1000, dry_run=True).lines, "the stager's end")
    assert lines[1] in house.client.gc(grace=1000).lines


def test_a_fault_of_the_network_is_told_once(house):
    """And not of each of its pods again."""
    try:
        with house.running(net="default"):
            (bridge,) = [name for name in host()["links"] if name.startswith("kurma-")]
            for command, kind in (("ip link set {} down", "bridge"), ("nft flush ruleset", "rule")):
                output(*command.format(bridge).split())
                found = house.client.network_check()
                assert {one.kind for one in found} == {kind}
                words = [(one.what, one.why) for one in found]
                assert len(set(words)) == len(words)
                assert all(one.repaired for one in house.client.network_check(repair=True))
                assert house.client.network_check() == []
    finally:
        house.client.network_rm("default")


def test_the_damaged_record_of_the_default_network(house):
    """It is told of that network, and hides nothing of the others; with it removed, all is as before."""
    with house.running(net="none"):
        record = f"{house.state}/plugins/kurma.networks/bridge/choices/default.json"
        os.makedirs(os.path.dirname(record), exist_ok=True)
        with open(record, "w") as file:
            file.write("{")
        (found,) = house.client.network_check()
        assert (found.kind, found.network) == ("network", "default")
        assert found.why.startswith(f"cannot read {record}")
        assert {one.name: one.problem for one in house.client.here.networks.catalog.all()}["default"] == found.why
        assert house.client.gc(grace=1000).lines == ()
        with pytest.raises(HostError) as caught:
            house.client.prepare(house.request("true", net="default"))
        assert caught.value.hint.startswith("without that file")
        os.unlink(record)
        assert house.client.network_check() == []


def end_cgroups(uuid):
    tree = CgroupTree(f"kurma/{uuid}")
    tree.kill()
    tree.remove()


def test_another_state_directory_is_a_stranger(leaky, make_house, tmp_path, busybox_image, session_state):
    """Its pods, living and dead, are its own to look after, though they use the same places."""
    state = str(tmp_path / "other")
    other = make_house(NETWORKS, state=state, image=leaky.image)
    other.client.here.images.fetch(busybox_image)
    with other.running(net="leaky", userns="auto") as living:
        uuid = dead(other, "add:3")
        shutil.rmtree(other.path(uuid))
        before = host()
        assert leaky.client.network_check() == leaky.client.network_check(repair=True) == []
        assert leaky.client.gc(grace=0).lines == ()
        assert host() == before
        kinds = [one.kind for one in other.client.network_check()]
        assert sorted(kinds) == ["address", "chain", "interface", "namespace", "record"]
        assert {one.pod for one in other.client.network_check()} == {uuid}
        assert all(one.repaired for one in other.client.network_check(repair=True))
        assert other.client.network_check() == []
        assert addresses(other) == ["10.77.0.2"]
        assert other.enter(living.uuid, "ip", "link", "show", "eth0")[0] == 0
        end_cgroups(uuid)


def test_a_port_that_a_pod_of_another_state_directory_has(house, make_house, tmp_path, busybox_image):
    """Nothing listens there, and the packet filter of one state directory knows nothing of the other's."""
    other = make_house({"stop_timeout": 3}, state=str(tmp_path / "other"), image=house.image)
    other.client.here.images.fetch(busybox_image)
    port = {"name": "web", "hostPort": 8046}
    app = {"main": {"app": shell("sleep 1000", ports=[{"name": "web", "port": 80, "protocol": "tcp"}])}}
    later = house.client.prepare(house.request(app, net="default", name="later", ports=[port]))
    run = other.launch(app, net="default", name="web", ports=[port])
    claims = os.listdir("/run/kurma/ports")
    assert any(name.startswith(run.uuid) for name in claims)
    before = host()
    words = f"port 8046/tcp of the host leads to pod web already, of the state directory {other.state}"
    with pytest.raises(NetworkError) as caught:
        house.client.prepare(house.request(app, net="default", ports=[port]))
    assert caught.value.message == words
    assert caught.value.hint.endswith(f"kurma --dir {other.state} stop {run.uuid[:8]}")
    with pytest.raises(NetworkError, match="leads to pod web already"):
        house.start(later.uuid)
    assert host() == before
    # Its owner dies: it runs on, and has its port.
    pid = other.client.pod(run.uuid).stager_pid
    run.kill()
    with pytest.raises(NetworkError, match="leads to pod web already"):
        house.start(later.uuid)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid), "the stager's end")
    other.client.gc(grace=1000)
    assert not any(name.startswith(run.uuid) for name in os.listdir("/run/kurma/ports"))
    again = house.launch(start=later.uuid)
    with pytest.raises(NetworkError, match="leads to pod later already"):
        other.client.prepare(other.request(app, net="default", ports=[port]))
    again.signal(signal.SIGTERM)
    again.wait()
    assert os.listdir("/run/kurma/ports") == [".lock"]
    house.client.rm(later.uuid)
    for one in (house, other):
        one.client.network_rm("default")


def test_the_default_network_of_a_pod_that_is_gone(house):
    """By whatever plugin it is: its address, its cable, its ports and their rules."""
    with house.running("sleep 1000", net="default") as neighbour:
        assert house.client.network_check() == []
        before = host()
        port = {"name": "web", "hostPort": 8047}
        app = {"app": shell("sleep 1000", ports=[{"name": "web", "port": 80, "protocol": "tcp"}])}
        run = house.launch({"main": app}, net="default", ports=[port])
        uuid, pid = run.uuid, house.client.pod(run.uuid).stager_pid
        run.kill()
        os.kill(pid, signal.SIGKILL)
        until(lambda: not alive(pid), "the stager's end")
        end_cgroups(uuid)
        shutil.rmtree(house.path(uuid))
        assert len(host()["links"]) == len(before["links"]) + 1
        found = house.client.network_check()
        assert uuid in {one.pod for one in found}
        assert not house.client.gc(grace=0).failed
        assert house.client.network_check() == []
        after = host()
        # Chains that its network's plugin shares among pods may be new.
        rules = after.pop("nftables")
        assert before.pop("nftables") != ""
        assert [rules.count(word) for word in (uuid, uuid[:8], "8047")] == [0, 0, 0]
        assert after == before
        assert house.enter(neighbour.uuid, "ip", "link", "show", "eth0")[0] == 0
    house.client.network_rm("default")


# --- check and repair --------------------------------------------------------------------------------------------


def test_what_a_running_pod_lacks(leaky, strangers):
    with leaky.running(net="leaky", userns="auto") as pod, leaky.running(net="leaky") as neighbour:
        assert leaky.client.network_check() == []
        inode = os.stat(f"/run/netns/kurma-{pod.uuid}").st_ino
        output("ip", "netns", "delete", f"kurma-{pod.uuid}")
        namespaces.unpin(f"/run/kurma/userns/{pod.uuid}")
        found = leaky.client.network_check()
        assert [one.what for one in found] == [
            f"user namespace /run/kurma/userns/{pod.uuid}",
            f"network namespace /run/netns/kurma-{pod.uuid}",
        ]
        assert {one.pod for one in found} == {pod.uuid}
        assert said(leaky.client.network_check(repair=True)) == [("namespace", True)] * 2
        assert leaky.client.network_check() == []
        assert os.stat(f"/run/netns/kurma-{pod.uuid}").st_ino == inode
        assert "eth0" in output("ip", "netns", "exec", f"kurma-{pod.uuid}", "ip", "link")
        # Another one in its place is somebody's: told, and left alone.
        output("ip", "netns", "delete", f"kurma-{pod.uuid}")
        output("ip", "netns", "add", f"kurma-{pod.uuid}")
        (one,) = leaky.client.network_check(repair=True)
        assert (one.why.endswith("is another one"), one.repaired) == (True, False)
        output("ip", "netns", "delete", f"kurma-{pod.uuid}")
        assert said(leaky.client.network_check(repair=True)) == [("namespace", True)]
        output("ip", "link", "delete", f"le{pod.uuid[:8]}")
        for repair in (False, True):
            (one,) = leaky.client.network_check(repair=repair)
            assert (one.kind, one.network, one.repaired) == ("attachment", "leaky", False)
            assert one.why == "its cable is gone"
        assert leaky.client.network_check(["forgetful"]) == []
        assert seen(leaky, neighbour) == 0
    assert left_of(leaky, pod.uuid) == []


def seen(house, pod):
    return house.enter(pod.uuid, "ip", "link", "show", "eth0")[0]


def test_a_dead_pod_is_told_and_taken_down(leaky, strangers):
    uuid = dead(leaky, faults=[["after", "networks"]], name="half")
    (one,) = leaky.client.network_check()
    assert (one.what, one.pod) == ("pod half", uuid)
    assert leaky.state_of(uuid)["steps"], "only looked at"
    assert said(leaky.client.network_check(repair=True)) == [("pod", True)]
    assert left_of(leaky, uuid) == []
    assert leaky.client.network_check() == []


def test_networks_that_cannot_be_used(make_house):
    house = make_house(
        {
            "container_networks": [
                {"name": "off", "plugin": "leaky", "broken": True},
                {"name": "none-such", "plugin": "nonesuch"},
                {"name": "spare", "plugin": "leaky", "broken": True, "optional": True},
            ]
        }
    )
    found = {one.network: one.why for one in house.client.network_check()}
    assert found["off"] == "it is broken on purpose"
    assert "nonesuch" in found["none-such"]
    assert [one.network for one in house.client.network_check(["off"], repair=True)] == ["off"]
    with pytest.raises(NetworkError, match='no network "of"'):
        house.client.network_check(["of"])
    # What pods may go without, and none has: it is told, and nothing is wrong, unless it is asked for by name.
    assert "spare" not in found
    told = "network spare, which is optional, cannot be joined: it is broken on purpose"
    assert house.notes.count(told) == 1
    assert [one.network for one in house.client.network_check(["spare"])] == ["spare"]
    assert house.notes.count(told) == 1


def test_the_command(leaky, strangers):
    def kurma(*words):
        command = [
            *KURMA,
            "--dir",
            leaky.state,
            "--config",
            leaky.config_file,
        ]
        done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout, done.stderr

    assert kurma("network", "check") == (0, "", "")
    uuid = dead(leaky, "add:3")
    shutil.rmtree(leaky.path(uuid))
    code, out, err = kurma("network", "check")
    assert (code, err) == (
        1,
        "kurma: problems were found; to repair them: kurma network check --repair\n",
    )
    assert out.splitlines()[0].split() == ["KIND", "NETWORK", "POD", "WHAT", "PROBLEM"]
    assert f"interface le{uuid[:8]}" in out
    code, out, _ = kurma("network", "check", "leaky", "--format", "json")
    assert code == 1
    assert {one["kind"] for one in json.loads(out)} == {"interface", "address", "chain"}
    assert set(json.loads(out)[0]) == {"kind", "network", "pod", "what", "why", "repaired"}
    code, out, err = kurma("network", "check", "--repair")
    assert (code, err) == (0, "")
    assert out.splitlines()[0].split()[-1] == "REPAIRED"
    assert {line.split()[-1] for line in out.splitlines()[1:]} == {"yes"}
    assert kurma("network", "check", "--repair", "--format", "json") == (0, "[]\n", "")
    assert left_of(leaky, uuid) == []
    end_cgroups(uuid)


def test_no_false_leak_beside_pods_that_come_and_go(leaky):
    """Checks and sweeps all the while: nothing is wrong, and every pod has its network to the end."""
    script = "ip addr show eth0 | grep -q 10.77 && sleep 0.3 && ip link show eth0"
    left, running, looks = 8, [], 0
    with leaky.connect() as client:
        while left or running:
            while left and len(running) < 2:
                left -= 1
                running.append(leaky.launch(script, net=["leaky", "forgetful"], ephemeral=True, wait=None))
            assert client.network_check() == []
            assert client.gc(grace=1000).lines == ()
            assert client.network_check(repair=True) == []
            looks += 1
            for run in [run for run in running if run.process.poll() is not None]:
                running.remove(run)
                assert run.wait() == 0, run.errors
    assert looks > 4
    assert addresses(leaky) == addresses(leaky, "forgetful") == records(leaky) == []
